//! A console over a store, asked as a browser or a program asks it.

use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, Request, StatusCode};
use dlq_admin::{Access, Admin, Role, Token};
use dlq_core::{DeadLetter, DeadLetters};
use dlq_letters::memory::MemoryStore;
use dlq_sql::sqlite::SqliteStore;
use serde_json::Value;
use tower::ServiceExt as _;

pub(crate) const TOKENS: [(&str, Role, &str); 3] = [
    ("rita", Role::Read, "read-token-0123456789"),
    ("otto", Role::Operate, "operate-token-0123456"),
    ("ana", Role::Admin, "admin-token-012345678"),
];

/// Token of a role.
pub(crate) fn token(role: Role) -> &'static str {
    TOKENS.iter().find(|(_, one, _)| *one == role).unwrap().2
}

pub(crate) fn tokens() -> Access {
    Access::tokens(TOKENS.map(|(name, role, secret)| Token::new(name, role, secret)))
}

pub(crate) struct Site {
    pub(crate) letters: DeadLetters,
    router: Router,
    /// Added to every request.
    headers: Vec<(String, String)>,
}

pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: String,
}

impl Reply {
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    #[track_caller]
    pub(crate) fn ok(self) -> Self {
        assert_eq!(self.status, StatusCode::OK, "{}", self.body);
        self
    }

    #[track_caller]
    pub(crate) fn is(self, status: u16) -> Self {
        assert_eq!(self.status.as_u16(), status, "{}", self.body);
        self
    }

    #[track_caller]
    pub(crate) fn location(&self) -> &str {
        let location = self.headers.get("location").unwrap_or_else(|| panic!("{}", self.body));
        location.to_str().unwrap()
    }

    /// The value of a hidden field.
    #[track_caller]
    pub(crate) fn field(&self, name: &str) -> String {
        let start = format!("name=\"{name}\" value=\"");
        let rest =
            self.body.split_once(&start).unwrap_or_else(|| panic!("no {name}: {}", self.body)).1;
        rest.split('"')
            .next()
            .unwrap()
            .replace("&amp;", "&")
            .replace("&lt;", "<")
            .replace("&gt;", ">")
            .replace("&quot;", "\"")
    }
}

impl Site {
    pub(crate) async fn of(letters: Vec<DeadLetter>) -> Self {
        Self::with(DeadLetters::new(MemoryStore::new()), letters).await
    }

    pub(crate) async fn with(store: DeadLetters, letters: Vec<DeadLetter>) -> Self {
        store.put(letters).await.unwrap();
        let router = Admin::new(store.clone()).max_age(Duration::ZERO).router();
        Self { letters: store, router, headers: Vec::new() }.header("host", "localhost")
    }

    pub(crate) fn access(self, access: Access) -> Self {
        let router =
            Admin::new(self.letters.clone()).max_age(Duration::ZERO).access(access).router();
        Self { router, ..self }
    }

    pub(crate) fn router(self, router: Router) -> Self {
        Self { router, ..self }
    }

    /// Adds a header to every request, in the place of one of the same name.
    pub(crate) fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.retain(|(other, _)| other != name);
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Asks with the token of a role.
    pub(crate) fn bearer(self, role: Role) -> Self {
        self.header("authorization", &format!("Bearer {}", token(role)))
    }

    pub(crate) fn request(&self, method: &str, path: &str) -> axum::http::request::Builder {
        let request = Request::builder().method(method).uri(path);
        self.headers.iter().fold(request, |request, (name, value)| request.header(name, value))
    }

    pub(crate) async fn send(&self, request: Request<Body>) -> Reply {
        let response = self.router.clone().oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        let body = to_bytes(body, usize::MAX).await.unwrap();
        let body = String::from_utf8_lossy(&body).into_owned();
        Reply { status: parts.status, headers: parts.headers, body }
    }

    /// The whole answer, also to what streams.
    pub(crate) async fn get(&self, path: &str) -> Reply {
        self.send(self.request("GET", path).body(Body::empty()).unwrap()).await
    }

    pub(crate) async fn post(&self, path: &str, form: &str) -> Reply {
        let kind = "application/x-www-form-urlencoded";
        let request = self.request("POST", path).header("content-type", kind);
        self.send(request.body(Body::from(form.to_owned())).unwrap()).await
    }

    pub(crate) async fn post_json(&self, path: &str, body: Value) -> Reply {
        let request = self.request("POST", path).header("content-type", "application/json");
        self.send(request.body(Body::from(body.to_string())).unwrap()).await
    }

    pub(crate) async fn response(&self, path: &str) -> axum::response::Response {
        let request = self.request("GET", path).body(Body::empty()).unwrap();
        self.router.clone().oneshot(request).await.unwrap()
    }
}

/// A store in memory and one in a file, one after the other.
pub(crate) async fn stores() -> Vec<(&'static str, DeadLetters, Option<tempfile::TempDir>)> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("dlq.db");
    let sqlite = SqliteStore::builder().path(path).open().await.unwrap();
    vec![
        ("memory", DeadLetters::new(MemoryStore::new()), None),
        ("sqlite", DeadLetters::new(sqlite), Some(folder)),
    ]
}

/// A form of these fields.
pub(crate) fn form(pairs: &[(&str, &str)]) -> String {
    form_urlencoded::Serializer::new(String::new()).extend_pairs(pairs).finish()
}
