//! The one compiler of filters: listing, counting, groups, marks, deletion, claims and plans all use it.

use dlq_core::{Filter, SubjectPattern, searchable};

use super::query::Query;

/// The name of the SQL function that matches a subject against a pattern.
pub(super) const SUBJECT_FUNCTION: &str = "dlq_subject";

/// The name of the SQL function that looks for an attribute by name and value.
pub(super) const ATTRIBUTE_FUNCTION: &str = "dlq_attribute";

impl Query {
    /// Adds the condition that the row under the alias `t` matches; a condition that is always true when `filter` is
    /// empty. The same text for filters of the same shape.
    pub(super) fn filter(mut self, filter: &Filter) -> Self {
        self.add("1");
        any(&mut self, "letter_id", filter.ids.iter().copied());
        any(&mut self, "event_id", texts(&filter.message_ids));
        subjects(&mut self, &filter.subjects);
        any(&mut self, "event_type", texts(&filter.events));
        any(&mut self, "consumer", texts(&filter.consumers));
        any(&mut self, "service", texts(&filter.services));
        words(&mut self, "status", filter.statuses.iter().map(|word| word.as_str()));
        words(&mut self, "reason", filter.reasons.iter().map(|word| word.as_str()));
        words(&mut self, "cause", filter.causes.iter().map(|word| word.as_str()));
        words(&mut self, "class", filter.classes.iter().map(|word| word.as_str()));
        any(&mut self, "fingerprint", filter.fingerprints.iter().map(ToString::to_string));
        if let Some(text) = &filter.error {
            let text = searchable(text);
            self = self.push(" AND instr(coalesce(t.error_search, t.error), ").bind(text);
            self.add(") > 0");
        }
        if let Some(since) = filter.since {
            self = self.push(" AND t.created_at >= ").bind(since);
        }
        if let Some(until) = filter.until {
            self = self.push(" AND t.created_at < ").bind(until);
        }
        if let Some(since) = filter.died_since {
            self = self.push(" AND t.died_at >= ").bind(since);
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
            // Most letters are passed over by their text. The text alone does not tell a name that begins from a value
            // that ends: both may stand between a comma and a quote.
            self = self.push(" AND instr(t.attributes, ");
            self = self.bind(format!("{}:{}", quoted(name), quoted(value)));
            self = self.push(&format!(") > 0 AND {ATTRIBUTE_FUNCTION}(t.attributes, "));
            self = self.bind(name.as_str()).push(", ").bind(value.as_str()).push(")");
        }
        self
    }
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
    // Not `is_empty`: what tells nothing apart stands in the condition all the same.
    rest == Filter::default()
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

fn texts(texts: &[String]) -> impl ExactSizeIterator<Item = &str> {
    texts.iter().map(String::as_str)
}

fn any<T: Into<super::query::Bind>>(
    query: &mut Query,
    column: &str,
    values: impl ExactSizeIterator<Item = T>,
) {
    if values.len() > 0 {
        query.add(" AND t.");
        query.add(column);
        query.add_any(values);
    }
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
    // What follows are alternatives, each with its `OR` in front.
    query.add(" AND (0");
    let literal: Vec<_> = patterns
        .iter()
        .filter(|pattern| pattern.is_literal())
        .map(SubjectPattern::as_str)
        .collect();
    if !literal.is_empty() {
        query.add(" OR t.subject");
        query.add_any(literal.into_iter());
    }
    for pattern in patterns.iter().filter(|pattern| !pattern.is_literal()) {
        // The range passes over most rows before the function is called.
        query.add(" OR (t.subject >= ");
        query.add_bind(pattern.literal_prefix());
        // A literal prefix is empty or ends with a dot, after which comes the slash.
        if let Some(stem) = pattern.literal_prefix().strip_suffix('.') {
            query.add(" AND t.subject < ");
            query.add_bind(format!("{stem}/"));
        }
        query.add(&format!(" AND {SUBJECT_FUNCTION}("));
        query.add_bind(pattern.as_str());
        query.add(", t.subject))");
    }
    query.add(")");
}
