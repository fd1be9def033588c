//! The one compiler of filters: listing, counting, groups, marks, deletion, claims and plans all use it.

use dlq_core::{Filter, SubjectPattern, searchable};

use super::codec::escape;
use super::query::{Bind, Query};

impl Query {
    /// Adds the condition that the row under the alias `t` matches; a condition that is always true when `filter` is
    /// empty. The same text for filters of the same shape.
    pub(super) fn filter(mut self, filter: &Filter) -> Self {
        self.add("true");
        any(&mut self, "letter_id", filter.ids.len(), || filter.ids.clone());
        any(&mut self, "event_id", filter.message_ids.len(), || &filter.message_ids[..]);
        subjects(&mut self, &filter.subjects);
        texts(&mut self, "t.event_type", &filter.events);
        texts(&mut self, "t.consumer", &filter.consumers);
        any(&mut self, "service", filter.services.len(), || &filter.services[..]);
        words(&mut self, "status", filter.statuses.iter().map(|word| word.as_str()));
        words(&mut self, "reason", filter.reasons.iter().map(|word| word.as_str()));
        words(&mut self, "cause", filter.causes.iter().map(|word| word.as_str()));
        words(&mut self, "class", filter.classes.iter().map(|word| word.as_str()));
        let fingerprints: Vec<_> = filter.fingerprints.iter().map(ToString::to_string).collect();
        any(&mut self, "fingerprint", fingerprints.len(), || &fingerprints[..]);
        if let Some(text) = &filter.error {
            // An index of trigrams serves `LIKE`, where somebody has made one, and would not serve `strpos`.
            self = self.push(" AND coalesce(t.error_search, t.error) LIKE ");
            self = self.bind(containing(&searchable(text)).as_str());
        }
        if let Some(since) = filter.since {
            self = self.push(" AND t.created_at >= ").bind(since);
        }
        if let Some(until) = filter.until {
            self = self.push(" AND t.created_at < ").bind(until);
        }
        if let Some(since) = filter.died_since {
            self = self.push(" AND t.died_at >= ").bind(since.as_nanos());
        }
        let bounds = [
            (" AND t.attempts >= ", filter.min_attempts),
            (" AND t.attempts <= ", filter.max_attempts),
            (" AND t.retry_count >= ", filter.min_retries),
            (" AND t.retry_count <= ", filter.max_retries),
        ];
        for (condition, bound) in bounds {
            if let Some(bound) = bound {
                self = self.push(condition).bind(bound);
            }
        }
        if let Some(operation) = filter.operation {
            self = self.push(" AND t.operation = ").bind(operation);
        }
        for (name, value) in &filter.attributes {
            let pair = format!("{}:{}", quoted(name), quoted(value));
            // As with the error, for an index that somebody has made. The JSON stands in its column as it is, so that what is
            // looked for is not escaped as texts are.
            self = self.push(" AND t.attributes LIKE convert_from(");
            self = self.bind(containing(&pair).into_bytes()).push(", 'UTF8')");
            // Most letters are passed over by their text. The text alone does not tell a name that begins from a value
            // that ends: both may stand between a comma and a quote. JSON functions refuse NUL, so it stands as `\z` in
            // what they read, and a backslash as `\s`; what is not JSON is not read.
            self = self.push(" AND CASE WHEN strpos(t.attributes, convert_from(");
            self = self.bind(pair.into_bytes());
            self = self.push(
                r", 'UTF8')) > 0 THEN replace(replace(t.attributes, E'\\\\', E'\\\\s'), E'\\u0000', E'\\\\z')::jsonb ->> convert_from(",
            );
            self = self.bind(plain(name).into_bytes()).push(", 'UTF8') = convert_from(");
            self = self.bind(plain(value).into_bytes()).push(", 'UTF8') ELSE false END");
        }
        self
    }
}

/// Returns the pattern of `LIKE` for texts that contain this one, every character literal.
fn containing(text: &str) -> String {
    let mut pattern = String::from("%");
    for character in text.chars() {
        if matches!(character, '%' | '_' | '\\') {
            pattern.push('\\');
        }
        pattern.push(character);
    }
    pattern + "%"
}

/// Returns true if the filter only asks for facts that the table of counts has.
pub(super) fn is_counted(filter: &Filter) -> bool {
    let mut rest = filter.clone();
    rest.subjects.clear();
    rest.consumers.clear();
    rest.statuses.clear();
    rest.reasons.clear();
    rest.causes.clear();
    rest.classes.clear();
    rest.fingerprints.clear();
    // Not `is_empty`: what tells nothing apart stands in the condition all the same.
    rest == Filter::default()
}

/// A text without NUL, different for different texts.
fn plain(text: &str) -> String {
    text.replace('\\', "\\s").replace('\0', "\\z")
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// However many values, they take one place.
fn any<T: Bind>(query: &mut Query, column: &str, count: usize, values: impl FnOnce() -> T) {
    if count > 0 {
        query.add(&format!(" AND t.{column} = ANY("));
        query.add_bind(values());
        query.add(")");
    }
}

/// Number of characters of a name in the indexes, whose rows have at most 2,704 bytes.
const INDEXED: usize = 400;

/// Returns the indexed part of a name.
pub(super) fn start(column: &str) -> String {
    format!("left({column}, {INDEXED})")
}

/// Returns true if the indexes may have less than the whole name.
pub(super) fn is_cut(name: &str) -> bool {
    escape(name.into()).len() >= INDEXED
}

/// Returns the condition that two names are the same, in a form that an index of the first answers.
pub(super) fn same(one: &str, other: &str) -> String {
    format!("{} = {} AND {one} = {other}", start(one), start(other))
}

/// Adds the condition that a name is among these. Shorter names are in the index as they are.
fn texts<T: AsRef<str>>(query: &mut Query, column: &str, names: &[T]) {
    if names.is_empty() {
        return;
    }
    let names: Vec<&str> = names.iter().map(AsRef::as_ref).collect();
    query.add(&format!(" AND {} = ANY(", start(column)));
    if names.iter().any(|name| is_cut(name)) {
        query.add(&format!("ARRAY(SELECT {} FROM unnest(", start("n")));
        query.add_bind(names.clone());
        query.add(&format!("::text[]) AS n)) AND {column} = ANY("));
    }
    query.add_bind(names);
    query.add(")");
}

/// Words of a closed vocabulary stand in the text itself, so that partial indexes can be used.
fn words<'a>(query: &mut Query, column: &str, values: impl ExactSizeIterator<Item = &'a str>) {
    if values.len() > 0 {
        let list = values.map(|word| format!("'{word}'")).collect::<Vec<_>>().join(", ");
        query.add(&format!(" AND t.{column} IN ({list})"));
    }
}

fn subjects(query: &mut Query, patterns: &[SubjectPattern]) {
    if patterns.is_empty() {
        return;
    }
    query.add(" AND (false");
    let literal = patterns.iter().filter(|pattern| pattern.is_literal());
    let literal: Vec<_> = literal.map(SubjectPattern::as_str).collect();
    if !literal.is_empty() {
        query.add(" OR (true");
        texts(query, "t.subject", &literal);
        query.add(")");
    }
    for pattern in patterns.iter().filter(|pattern| !pattern.is_literal()) {
        let prefix = pattern.literal_prefix();
        // The index has only the beginning of a subject. A longer prefix is compared with the whole of it.
        let compared = if is_cut(prefix) { "t.subject".to_owned() } else { start("t.subject") };
        query.add(&format!(" OR ({compared} >= "));
        query.add_bind(prefix);
        // A literal prefix is empty or ends with a dot, after which comes the slash.
        if let Some(stem) = prefix.strip_suffix('.') {
            query.add(&format!(" AND {compared} < "));
            query.add_bind(format!("{stem}/").as_str());
        }
        query.add(" AND t.subject ~ ");
        query.add_bind(expression(pattern).as_str());
        query.add(")");
    }
    query.add(")");
}

/// The pattern as a regular expression, in which all but the wildcards is literal.
fn expression(pattern: &SubjectPattern) -> String {
    let tokens = pattern.as_str().split('.').map(|token| match token {
        "*" => "[^.]*".to_owned(),
        ">" => ".*".to_owned(),
        token => token.chars().fold(String::new(), |mut text, letter| {
            // Only characters of ASCII mean something in an expression.
            if letter.is_ascii() && !letter.is_ascii_alphanumeric() {
                text.push('\\');
            }
            text.push(letter);
            text
        }),
    });
    format!("^{}$", tokens.collect::<Vec<_>>().join("\\."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_but_wildcards_is_literal() {
        let cases =
            [("a.*.c", r"^a\.[^.]*\.c$"), ("a+b.>", r"^a\+b\..*$"), ("%_.*", r"^\%\_\.[^.]*$")];
        for (pattern, expected) in cases {
            assert_eq!(expression(&pattern.parse().unwrap()), expected);
        }
    }

    #[test]
    fn filters_of_one_shape_are_one_statement() {
        let text = |one: &str| {
            let filter = Filter::new().with_consumer(one.to_owned()).error(one);
            Query::new("").filter(&filter).sql().to_owned()
        };
        assert_eq!(text("a"), text("b"));
    }
}
