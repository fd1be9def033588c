//! [`Call`]: a request that was let in, with its parameters.

use std::future::Future;
use std::sync::Arc;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::Response;
use dlq_core::store::Actor;
use dlq_core::{DeadLetter, DeadLetters, Message};
use maud::Markup;
use serde::Serialize;

use crate::Console;
use crate::access::Role;
use crate::door::Visitor;
use crate::kept::{Counted, Kept, Question};
use crate::log::{CachedLog, Taken};
use crate::params::Params;
use crate::refusal::Refusal;
use crate::shown::{Document, diff};

/// Request that was let in.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) console: Arc<Console>,
    pub(crate) visitor: Visitor,
    /// Store or log that the path names, with its letters: those of a log as of the latest reading, and none where the route
    /// needs none.
    pub(crate) store: Option<(String, Option<DeadLetters>)>,
    /// Log that the path names.
    pub(crate) log: Option<Arc<CachedLog>>,
    /// Reading that its letters are of.
    // After `store`: what the reading keeps is dropped behind its letters.
    pub(crate) taken: Option<Arc<Taken>>,
    /// Parameters of the path, by name.
    pub(crate) path: Vec<(String, String)>,
    pub(crate) params: Params,
    pub(crate) headers: HeaderMap,
    /// Address that the request came from, where the server says.
    pub(crate) source: Option<std::net::IpAddr>,
    /// Relative reference to the place where the router is mounted, with a `/` at its end.
    pub(crate) root: String,
}

impl Call {
    /// The letters of the store that the path names.
    pub(crate) fn letters(&self) -> Result<&DeadLetters, Refusal> {
        let letters = self.store.as_ref().and_then(|(_, letters)| letters.as_ref());
        letters.ok_or_else(|| Refusal::not_found("the path names no store"))
    }

    /// The log that the path names.
    pub(crate) fn log(&self) -> Result<&Arc<CachedLog>, Refusal> {
        self.log.as_ref().ok_or_else(|| Refusal::not_found("the path names no log of a broker"))
    }

    /// Returns what is counted for the page, from what is kept if that is not too old.
    pub(crate) async fn counted<T>(
        &self,
        kept: &Kept<T>,
        count: impl Future<Output = Result<T, Refusal>>,
    ) -> Result<Arc<Counted<T>>, Refusal> {
        let store = self.store.as_ref().map(|(name, _)| name.clone()).unwrap_or_default();
        let mut asks = self.params.hash();
        if let Some(taken) = &self.taken {
            // Counts of a log are of one reading, or they would contradict the letters beside them.
            asks = blake3::keyed_hash(asks.as_bytes(), taken.at.to_string().as_bytes());
        }
        let question = Question { store, asks };
        kept.get(question, self.console.max_age, count).await
    }

    /// Returns true if the path names a log of a broker.
    pub(crate) const fn is_log(&self) -> bool {
        self.log.is_some()
    }

    /// Returns true if the visitor may do what this role may, with letters that can be changed.
    pub(crate) fn may_change(&self, role: Role) -> bool {
        self.may(role) && !self.is_log()
    }

    /// A parameter of the path.
    pub(crate) fn path(&self, name: &str) -> &str {
        let found = self.path.iter().find(|(one, _)| one == name);
        found.map_or("", |(_, value)| value)
    }

    /// Returns true if the visitor may do what this role may.
    pub(crate) fn may(&self, role: Role) -> bool {
        self.visitor.role >= role
    }

    /// Returns the letter with what rules mask of it.
    pub(crate) fn masked(&self, letter: DeadLetter) -> DeadLetter {
        self.console.mask.letter(&letter).unwrap_or(letter)
    }

    /// Returns true if rules mask parts of the letter.
    pub(crate) fn is_masked(&self, letter: &DeadLetter) -> bool {
        self.console.mask.message(&letter.message).is_some()
    }

    /// Returns the differences of two messages, with what rules mask of them.
    pub(crate) fn diff(&self, before: &Message, after: &Message) -> Vec<String> {
        let mask = |message: &Message| self.console.mask.message(message);
        let lines =
            diff(&mask(before).unwrap_or(before.clone()), &mask(after).unwrap_or(after.clone()));
        // No lines would look like an edit that does nothing.
        if lines.is_empty() && before != after {
            return vec!["what changes is masked".to_owned()];
        }
        lines
    }

    /// The visitor, with the reason that they gave.
    pub(crate) fn actor(&self) -> Actor {
        let actor = Actor::new(&self.visitor.name);
        match self.params.text("note").map(str::trim).filter(|note| !note.is_empty()) {
            Some(note) => actor.with_note(note),
            None => actor,
        }
    }

    /// A link to a path of the router.
    pub(crate) fn link(&self, path: &str) -> String {
        format!("{}{path}", self.root)
    }

    /// A link to a path of the store, with a query.
    pub(crate) fn at_store<N: AsRef<str>, V: AsRef<str>>(
        &self,
        path: &str,
        query: impl IntoIterator<Item = (N, V)>,
    ) -> String {
        let name = self.store.as_ref().map_or("", |(name, _)| name.as_str());
        let mut link = self.link(&format!("s/{}", segment(name)));
        if !path.is_empty() {
            link = format!("{link}/{path}");
        }
        let mut pairs = form_urlencoded::Serializer::new(String::new());
        pairs.extend_pairs(query);
        match pairs.finish() {
            query if query.is_empty() => link,
            query => format!("{link}?{query}"),
        }
    }
}

/// A link without a query.
pub(crate) const NO_QUERY: [(&str, &str); 0] = [];

/// Returns a text as a segment of a path.
pub(crate) fn segment(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

/// Returns a document, as the command prints it.
pub(crate) fn json(value: &impl Serialize) -> Result<Response, Refusal> {
    let text = serde_json::to_vec(&Document::new(value)).map_err(|error| {
        Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, format!("cannot write JSON: {error}"))
    })?;
    Ok(respond(StatusCode::OK, "application/json", text))
}

/// Returns a page.
pub(crate) fn html(status: StatusCode, page: Markup) -> Response {
    respond(status, "text/html; charset=utf-8", page.into_string())
}

/// Sends a browser to another page, which it asks for with GET.
pub(crate) fn see_other(link: &str) -> Result<Response, Refusal> {
    let location = HeaderValue::from_str(link)
        .map_err(|_| Refusal::invalid("the link has characters that no link has"))?;
    // After 303 a reload asks for the page again, where after 307 it would send the change again.
    let mut response = respond(StatusCode::SEE_OTHER, "text/plain; charset=utf-8", "");
    response.headers_mut().insert(header::LOCATION, location);
    Ok(response)
}

pub(crate) fn respond(status: StatusCode, kind: &'static str, body: impl Into<Body>) -> Response {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}
