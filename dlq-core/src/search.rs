//! [`Search`]: letters by what their messages hold.
//!
//! ```
//! use dlq_core::search::{Search, SearchRequest};
//! use dlq_core::{DeadLetters, Filter, StoreError};
//!
//! # async fn of_customer(letters: DeadLetters) -> Result<(), StoreError> {
//! let search = Search::new().field("customer.id", "4711");
//! let mut request = SearchRequest::new();
//! loop {
//!     let page = letters.search(&search, Filter::new(), request).await?;
//!     for letter in &page.letters {
//!         println!("{} {}", letter.id, letter.error);
//!     }
//!     let Some(next) = page.next else { break };
//!     request = request.after(next);
//! }
//! # Ok(()) }
//! ```

use serde_json::Value;

use crate::store::Letters;
use crate::store::reading::cut;
use crate::{
    Cursor, DeadLetter, Filter, LetterId, LetterSummary, Order, PageRequest, StoreError, Timestamp,
    searchable,
};

/// Conditions on the message of a letter, joined by *and*.
///
/// No index serves them: each letter that the filter leaves is read whole. What is searched for often is better
/// [declared](DeadLetter::attributes) as an attribute, by which a [`Filter`] finds letters at once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
#[must_use]
pub struct Search {
    /// Keys of the message, one of which it has.
    pub keys: Vec<String>,
    /// Headers by name, upper and lower case alike, and value; the message has all of them.
    pub headers: Vec<(String, String)>,
    /// Fields of a JSON payload by path and value; the payload has all of them. See [`Search::field`].
    pub fields: Vec<(String, String)>,
    /// Text that the payload contains, upper and lower case alike.
    pub payload: Option<String>,
}

impl Search {
    /// No condition: every letter.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a key.
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.keys.push(key.into());
        self
    }

    /// Adds a header.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// Adds a field of a JSON payload. The path names the members of objects, with a dot between them: `customer.id`. It leads
    /// through every element of a list. A member with a dot in its name is found too. Text, numbers, truth values and null are
    /// compared as they are written: `4711` is the number and the text.
    pub fn field(mut self, path: impl Into<String>, value: impl Into<String>) -> Self {
        self.fields.push((path.into(), value.into()));
        self
    }

    /// Sets the text that the payload contains. Defaults to any. Bytes that are not UTF-8 match no text.
    pub fn payload(mut self, text: impl Into<String>) -> Self {
        self.payload = Some(text.into());
        self
    }

    /// Returns true if there is no condition.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns true if the message of `letter` meets every condition.
    #[must_use]
    pub fn matches(&self, letter: &DeadLetter) -> bool {
        let message = &letter.message;
        let has_key = |key: &[u8]| self.keys.iter().any(|wanted| wanted.as_bytes() == key);
        let has_header = |(name, value): &(String, String)| {
            message.headers().iter().any(|header| {
                header.name.eq_ignore_ascii_case(name.as_bytes())
                    && header.value.as_deref() == Some(value.as_bytes())
            })
        };
        (self.keys.is_empty() || message.key().is_some_and(|key| has_key(key)))
            && self.headers.iter().all(has_header)
            && self.is_in(message.payload().map(|payload| &payload[..]))
    }

    fn is_in(&self, payload: Option<&[u8]>) -> bool {
        if self.fields.is_empty() && self.payload.is_none() {
            return true;
        }
        let Some(payload) = payload else { return false };
        if let Some(text) = &self.payload
            && !searchable(&String::from_utf8_lossy(payload)).contains(&searchable(text))
        {
            return false;
        }
        // The payload is read as JSON only if a field is asked for, which costs far more than a search for text.
        if self.fields.is_empty() {
            return true;
        }
        let Ok(json) = serde_json::from_slice::<Value>(payload) else { return false };
        self.fields.iter().all(|(path, value)| has_field(&json, path, value))
    }

    /// Searches a part of the letters that match `filter`; see [`DeadLetters::search`](crate::DeadLetters::search).
    ///
    /// # Errors
    ///
    /// When the letters cannot be read.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing: a search only reads.
    pub async fn page(
        &self,
        letters: &impl Letters,
        filter: Filter,
        request: SearchRequest,
    ) -> Result<SearchPage, StoreError> {
        let limit = request.limit.max(1) as usize;
        let mut found = SearchPage { letters: Vec::new(), read: 0, next: request.after };
        loop {
            // No more is listed than may be read, so that the next part begins right behind.
            let left = request.read_at_most.max(1) - found.read;
            let list = PageRequest::new().order(request.order).after(found.next);
            let batch = list.limit(u32::try_from(left).unwrap_or(u32::MAX).min(BATCH));
            let page = letters.list(filter.clone(), batch).await?;
            let seen = self.sift(letters, &page.letters, limit, &mut found).await?;
            let is_full = found.letters.len() >= limit;
            found.next = if seen < page.letters.len() {
                // The rest of what was listed is the next part's.
                let request = list.limit(u32::try_from(seen).unwrap_or(u32::MAX));
                cut(page.letters, &request).next
            } else {
                page.next
            };
            if found.next.is_none() || is_full || found.read >= request.read_at_most {
                return Ok(found);
            }
        }
    }

    /// Adds those of these letters that match, until `limit` are found. Returns how many were looked at.
    async fn sift(
        &self,
        letters: &impl Letters,
        listed: &[LetterSummary],
        limit: usize,
        found: &mut SearchPage,
    ) -> Result<usize, StoreError> {
        let mut seen = 0;
        while seen < listed.len() && found.letters.len() < limit {
            let some = in_memory(&listed[seen..]);
            // One call reads all of these, since one for each would cost as many round trips.
            let whole = letters.get_all(some.iter().map(|letter| letter.id).collect()).await?;
            let mut whole = whole.iter().peekable();
            for summary in some {
                seen += 1;
                found.read += 1;
                // A letter that was deleted in between is not there any more.
                let letter = whole.next_if(|letter| letter.id == summary.id);
                if letter.is_some_and(|letter| self.matches(letter)) {
                    found.letters.push(summary.clone());
                }
                if found.letters.len() >= limit {
                    break;
                }
            }
        }
        Ok(seen)
    }
}

/// Returns the first of these letters, so many that their payloads fit into memory together, and at least one.
fn in_memory(letters: &[LetterSummary]) -> &[LetterSummary] {
    let mut bytes: u64 = 0;
    let fit = letters.iter().take_while(|letter| {
        bytes = bytes.saturating_add(letter.payload_size.unwrap_or(0));
        bytes <= IN_MEMORY
    });
    &letters[..fit.count().max(1)]
}

/// Number of letters that are listed at a time.
const BATCH: u32 = 500;
/// Size of the payloads that are in memory at once, in bytes. One that is larger comes alone.
const IN_MEMORY: u64 = 8 * 1024 * 1024;

/// Returns true if the path leads to the value from here.
fn has_field(json: &Value, path: &str, wanted: &str) -> bool {
    match json {
        Value::Array(elements) => elements.iter().any(|json| has_field(json, path, wanted)),
        Value::Object(members) => {
            let is_here = members.get(path).is_some_and(|json| is_value(json, wanted));
            // A name may have dots in it, so the path is cut at each.
            is_here
                || path.match_indices('.').any(|(dot, _)| {
                    let (name, rest) = (&path[..dot], &path[dot + 1..]);
                    members.get(name).is_some_and(|json| has_field(json, rest, wanted))
                })
        }
        _ => false,
    }
}

fn is_value(json: &Value, wanted: &str) -> bool {
    match json {
        Value::String(text) => text == wanted,
        Value::Array(elements) => elements.iter().any(|json| is_value(json, wanted)),
        Value::Object(_) => false,
        json => {
            let written = json.to_string();
            written == wanted
        }
    }
}

/// Request for a part of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[must_use]
pub struct SearchRequest {
    /// Maximum number of letters found; 0 is read as 1.
    pub limit: u32,
    /// Maximum number of letters read; 0 is read as 1.
    pub read_at_most: u64,
    /// Order of the letters.
    pub order: Order,
    /// End of the previous part; `None` for the first.
    pub after: Option<Cursor>,
}

impl SearchRequest {
    /// The first part, newest first: 50 letters, among 5,000.
    pub const fn new() -> Self {
        Self {
            limit: PageRequest::DEFAULT_LIMIT,
            read_at_most: 5_000,
            order: Order::NewestFirst,
            after: None,
        }
    }

    /// Sets the maximum number of letters found. Defaults to 50.
    pub const fn limit(mut self, limit: u32) -> Self {
        self.limit = limit;
        self
    }

    /// Sets the maximum number of letters read, which bounds how long the call takes. Defaults to 5,000.
    pub const fn read_at_most(mut self, letters: u64) -> Self {
        self.read_at_most = letters;
        self
    }

    /// Sets the order. Defaults to newest first.
    pub const fn order(mut self, order: Order) -> Self {
        self.order = order;
        self
    }

    /// Continues after a former part. Defaults to the beginning.
    pub const fn after(mut self, next: Cursor) -> Self {
        self.after = Some(next);
        self
    }
}

impl Default for SearchRequest {
    fn default() -> Self {
        Self::new()
    }
}

/// Part of a search.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct SearchPage {
    /// The letters that match, in the order asked for. May be empty although the search goes on.
    pub letters: Vec<LetterSummary>,
    /// Number of letters that were read.
    pub read: u64,
    /// Start of the next part; `None` once all letters were read.
    pub next: Option<Cursor>,
}

impl Filter {
    /// Sets the only letters that match, if they meet the other conditions; none for an empty list. An index finds them.
    pub fn only(mut self, ids: Vec<LetterId>) -> Self {
        if ids.is_empty() {
            // An empty list of ids would be no condition.
            self.until = Some(Timestamp::EPOCH);
        }
        self.ids = ids;
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_json(payload: &str, path: &str, value: &str) -> bool {
        Search::new().field(path, value).is_in(Some(payload.as_bytes()))
    }

    #[test]
    fn a_path_leads_through_objects_and_lists() {
        let payload = r#"{"customer":{"id":4711,"vip":true},"items":[{"sku":"a"},{"sku":"b"}],"a.b":{"c.d":null},"tags":["x"]}"#;
        for (path, value) in [
            ("customer.id", "4711"),
            ("customer.vip", "true"),
            ("items.sku", "b"),
            ("a.b.c.d", "null"),
            ("tags", "x"),
        ] {
            assert!(in_json(payload, path, value), "{path}={value}");
        }
        for (path, value) in [
            ("customer", "4711"),
            ("customer.id", "471"),
            ("id", "4711"),
            ("items.sku", "c"),
            ("items", "a"),
            ("", ""),
            (".", ""),
        ] {
            assert!(!in_json(payload, path, value), "{path}={value}");
        }
        assert!(in_json(r#"[{"customer":"4711"}]"#, "customer", "4711"));
        assert!(!in_json("not json", "customer", "4711"));
        assert!(!Search::new().field("a", "b").is_in(None), "a tombstone has no field");
    }

    #[test]
    fn text_is_found_in_any_case_and_beside_bytes_that_are_none() {
        let search = Search::new().payload("STRASSE ÄÖ");
        assert!(search.is_in(Some("\u{0}in der strasse äö".as_bytes())));
        assert!(Search::new().payload("ok").is_in(Some(b"\xff\xfeOK\xff")));
        assert!(!search.is_in(Some(b"strasse")));
        assert!(!search.is_in(None));
    }
}
