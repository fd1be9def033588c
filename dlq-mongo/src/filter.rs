//! The one compiler of filters: listing, counting, groups, marks, deletion, claims and plans all use it.
//!
//! Text is matched literally. An error text is looked for by `$indexOfBytes`, which knows no pattern, in a copy in lower
//! case; a subject with wildcards is an anchored pattern in which everything but the wildcards is quoted.

use dlq_core::{Cursor, Filter, Order, SubjectPattern, searchable};
use mongodb::bson::raw::CString;
use mongodb::bson::{Bson, Document, Regex, doc};

use crate::codec::time;
use crate::keys;

/// Conditions that must all hold.
#[derive(Clone, Debug, Default)]
pub(crate) struct All(Vec<Document>);

impl All {
    /// Letters that match. Their documents have a time of storing; those of letters that are being written do not.
    pub(crate) fn letters(filter: &Filter) -> Self {
        let mut all = Self::default();
        all.add(doc! { "created": { "$gte": i64::MIN } });
        all.filter(filter);
        all
    }

    pub(crate) fn add(&mut self, condition: Document) {
        self.0.push(condition);
    }

    pub(crate) fn with(mut self, condition: Document) -> Self {
        self.add(condition);
        self
    }

    /// The condition, with everything that concerns one field only as an index takes it.
    pub(crate) fn build(self) -> Document {
        let mut simple = Document::new();
        let mut rest = Vec::new();
        for condition in self.0 {
            // A field can stand in a document once: a second condition on it would replace the first.
            let is_free =
                condition.keys().all(|name| !name.starts_with('$') && !simple.contains_key(name));
            if is_free { simple.extend(condition) } else { rest.push(Bson::Document(condition)) }
        }
        if !rest.is_empty() {
            simple.insert("$and", rest);
        }
        simple
    }

    fn any<T: Into<Bson>>(&mut self, field: &str, wanted: impl IntoIterator<Item = T>) {
        let mut wanted: Vec<Bson> = wanted.into_iter().map(Into::into).collect();
        match wanted.len() {
            0 => {}
            1 => self.add(doc! { field: wanted.remove(0) }),
            _ => self.add(doc! { field: { "$in": wanted } }),
        }
    }

    pub(crate) fn filter(&mut self, filter: &Filter) {
        self.any("_id", filter.ids.iter().map(|id| keys::letter(*id)));
        self.any("message_id", filter.message_ids.iter().map(String::as_str));
        self.subjects(&filter.subjects);
        self.any("event", filter.events.iter().map(String::as_str));
        self.any("consumer", filter.consumers.iter().map(String::as_str));
        self.any("service", filter.services.iter().map(String::as_str));
        self.any("status", filter.statuses.iter().map(|word| word.as_str()));
        self.any("reason", filter.reasons.iter().map(|word| word.as_str()));
        self.any("cause", filter.causes.iter().map(|word| word.as_str()));
        self.any("class", filter.classes.iter().map(|word| word.as_str()));
        self.any("fingerprint", filter.fingerprints.iter().map(ToString::to_string));
        if let Some(text) = filter.error.as_deref().filter(|text| !text.is_empty()) {
            // `search` is kept only where it differs from the error.
            let within = doc! { "$ifNull": ["$search", "$error"] };
            // Without `$literal`, a text that begins with `$` would name a field.
            let at = doc! { "$indexOfBytes": [within, { "$literal": searchable(text) }] };
            self.add(doc! { "$expr": { "$gte": [at, 0_i32] } });
        }
        if let Some(since) = filter.since {
            self.add(doc! { "created": { "$gte": time(since) } });
        }
        if let Some(until) = filter.until {
            self.add(doc! { "created": { "$lt": time(until) } });
        }
        if let Some(since) = filter.died_since {
            self.add(doc! { "died": { "$gte": time(since) } });
        }
        let bounds = [
            ("attempts", "$gte", filter.min_attempts),
            ("attempts", "$lte", filter.max_attempts),
            ("retries", "$gte", filter.min_retries),
            ("retries", "$lte", filter.max_retries),
        ];
        for (field, operator, bound) in bounds {
            if let Some(bound) = bound {
                self.add(doc! { field: { operator: i64::from(bound) } });
            }
        }
        if let Some(operation) = filter.operation {
            self.add(doc! { "operation": keys::operation(operation) });
        }
        for (name, value) in &filter.attributes {
            let pair = doc! { "k": name.as_str(), "v": value.as_str() };
            self.add(doc! { "attributes": { "$elemMatch": pair } });
        }
    }

    fn subjects(&mut self, subjects: &[SubjectPattern]) {
        let mut any: Vec<_> = subjects.iter().map(subject).collect();
        match any.len() {
            0 => {}
            1 => self.add(any.remove(0)),
            _ => self.add(doc! { "$or": any }),
        }
    }

    /// Letters behind `after`, up to `upto`, in an order.
    pub(crate) fn between(&mut self, order: Order, after: Option<Cursor>, upto: Option<Cursor>) {
        let (beyond, before) = match order {
            Order::OldestFirst => ("$gt", "$lt"),
            Order::NewestFirst => ("$lt", "$gt"),
        };
        if let Some(cursor) = after {
            self.place(beyond, cursor, false);
        }
        if let Some(cursor) = upto {
            self.place(before, cursor, true);
        }
    }

    /// Letters on one side of a place. The bound on the first field stands apart, so that an index takes it for a range.
    fn place(&mut self, side: &str, cursor: Cursor, is_included: bool) {
        let (at, id) = (time(cursor.created_at), keys::letter(cursor.id));
        let bound = format!("{side}e");
        let of_id = if is_included { bound.as_str() } else { side };
        self.add(doc! { "created": { bound.as_str(): at.clone() } });
        self.add(doc! { "$or": [
            { "created": { side: at.clone() } },
            { "created": at, "_id": { of_id: id } },
        ] });
    }
}

/// The fields by which letters are in an order.
pub(crate) fn sort(order: Order) -> Document {
    match order {
        Order::OldestFirst => doc! { "created": 1_i32, "_id": 1_i32 },
        Order::NewestFirst => doc! { "created": -1_i32, "_id": -1_i32 },
    }
}

fn subject(pattern: &SubjectPattern) -> Document {
    if pattern.is_literal() {
        return doc! { "subject": pattern.as_str() };
    }
    let mut expression = String::from("^");
    let mut tokens = pattern.as_str().split('.').peekable();
    while let Some(token) = tokens.next() {
        match token {
            ">" => {
                // One token or more, and a token may be empty.
                // A dot would not match the end of a line.
                expression.push_str(r"[\s\S]*");
                break;
            }
            "*" => expression.push_str("[^.]*"),
            token => expression.push_str(&quoted(token)),
        }
        if tokens.peek().is_some() {
            expression.push_str(r"\.");
        }
    }
    // A dollar would also match before a line's end that is the last character.
    expression.push_str(r"\z");
    match (CString::try_from(expression), CString::try_from("")) {
        (Ok(pattern), Ok(options)) => {
            doc! { "subject": Bson::RegularExpression(Regex { pattern, options }) }
        }
        // Not reached, as NUL is quoted.
        _ => doc! { "subject": { "$exists": true } },
    }
}

/// A text in which no character means anything but itself, in the syntax that PCRE and Java share.
fn quoted(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\0' => quoted.push_str(r"\x00"),
            '\n' => quoted.push_str(r"\n"),
            '\r' => quoted.push_str(r"\r"),
            _ if character.is_ascii_punctuation() => quoted.extend(['\\', character]),
            _ => quoted.push(character),
        }
    }
    quoted
}
