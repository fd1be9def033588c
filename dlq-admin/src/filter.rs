//! Filters as parameters, by the names of the command's options.

use std::str::FromStr;
use std::time::Duration;

use dlq_core::policy::duration;
use dlq_core::store::Letters as _;
use dlq_core::{
    Clock as _, DeadLetters, Filter, LetterId, Order, PageRequest, SystemClock, Timestamp,
};

use crate::params::{Parameter, Params};
use crate::refusal::Refusal;

/// Parameters of a filter.
pub(crate) const FILTER: &[Parameter] = &[
    Parameter::many("id", "letter id, or the first digits of it"),
    Parameter::many("event-id", "the producer's id of the message"),
    Parameter::many(
        "subject",
        "subject or topic; `*` stands for one token, a final `>` for the rest",
    ),
    Parameter::many("event", "type of the event"),
    Parameter::many("consumer", "consumer that failed"),
    Parameter::many("service", "service that wrote the letter"),
    Parameter::many("status", "pending, retrying, replaying, sent, held, resolved, quarantined"),
    Parameter::many(
        "reason",
        "permanent, exhausted, max_crashes, max_replays, terminal_error, max_deliveries, expired, rejected, manual",
    ),
    Parameter::many("cause", "error, panic, timeout, decode, malformed, oversize"),
    Parameter::many("class", "transient or permanent"),
    Parameter::one("error", "text that the error contains"),
    Parameter::many("fingerprint", "group of errors"),
    Parameter::one("since", "stored at or after: a time (2026-11-21T03:00:00Z) or an age (1h)"),
    Parameter::one("until", "stored before: a time or an age"),
    Parameter::one("died-since", "died at or after, for the first time or anew: a time or an age"),
    Parameter::one("min-attempts", "at least this many attempts"),
    Parameter::one("max-attempts", "at most this many attempts"),
    Parameter::one("min-retries", "sent back at least this often"),
    Parameter::one("max-retries", "sent back at most this often"),
    Parameter::one("operation", "held by this operation"),
    Parameter::many("attr", "declared attribute, as NAME=VALUE"),
];

/// A point in time, given as such or as an age.
#[derive(Clone, Copy, Debug)]
pub(crate) struct When(pub(crate) Timestamp);

impl FromStr for When {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Ok(at) = text.parse() {
            return Ok(Self(at));
        }
        duration::parse(text)
            .map(|age| Self(SystemClock.now().before(age)))
            .map_err(|_| "write a time such as 2026-11-21T03:00:00Z, or an age such as 30m or 2h")
    }
}

/// Reads a filter; looks up ids that were given by their first digits.
pub(crate) async fn read(params: &Params, letters: &DeadLetters) -> Result<Filter, Refusal> {
    let texts = |name| params.all(name).map(str::to_owned).collect();
    let mut filter = Filter::new();
    for digits in params.all("id") {
        filter.ids.push(letter_id(letters, digits).await?);
    }
    filter.message_ids = texts("event-id");
    filter.subjects = params.get_all("subject")?;
    filter.events = texts("event");
    filter.consumers = texts("consumer");
    filter.services = texts("service");
    filter.statuses = params.get_all("status")?;
    filter.reasons = params.get_all("reason")?;
    filter.causes = params.get_all("cause")?;
    filter.classes = params.get_all("class")?;
    filter.fingerprints = params.get_all("fingerprint")?;
    filter.error = params.text("error").map(str::to_owned);
    if filter.error.as_deref() == Some("") {
        return Err(Refusal::invalid("`error` is empty; leave it out, or say what it contains"));
    }
    filter.since = params.get::<When>("since")?.map(|when| when.0);
    filter.until = params.get::<When>("until")?.map(|when| when.0);
    filter.died_since = params.get::<When>("died-since")?.map(|when| when.0);
    filter.min_attempts = params.get("min-attempts")?;
    filter.max_attempts = params.get("max-attempts")?;
    filter.min_retries = params.get("min-retries")?;
    filter.max_retries = params.get("max-retries")?;
    filter.operation = params.get("operation")?;
    for attribute in params.all("attr") {
        let Some((name, value)) = attribute.split_once('=') else {
            return Err(Refusal::invalid("`attr` has no value; write NAME=VALUE"));
        };
        if filter.attributes.insert(name.to_owned(), value.to_owned()).is_some() {
            return Err(Refusal::invalid(format!(
                "the attribute `{name}` is given more than once"
            )));
        }
    }
    Ok(filter)
}

/// Returns a filter as parameters, from which the same filter is read.
pub(crate) fn params(filter: &Filter) -> Vec<(&'static str, String)> {
    fn all<T: ToString>(
        out: &mut Vec<(&'static str, String)>,
        name: &'static str,
        values: impl IntoIterator<Item = T>,
    ) {
        out.extend(values.into_iter().map(|value| (name, value.to_string())));
    }
    let mut out = Vec::new();
    all(&mut out, "id", &filter.ids);
    all(&mut out, "event-id", &filter.message_ids);
    all(&mut out, "subject", filter.subjects.iter().map(|subject| subject.as_str()));
    all(&mut out, "event", &filter.events);
    all(&mut out, "consumer", &filter.consumers);
    all(&mut out, "service", &filter.services);
    all(&mut out, "status", &filter.statuses);
    all(&mut out, "reason", &filter.reasons);
    all(&mut out, "cause", &filter.causes);
    all(&mut out, "class", &filter.classes);
    all(&mut out, "error", &filter.error);
    all(&mut out, "fingerprint", &filter.fingerprints);
    all(&mut out, "since", filter.since);
    all(&mut out, "until", filter.until);
    all(&mut out, "died-since", filter.died_since);
    all(&mut out, "min-attempts", filter.min_attempts);
    all(&mut out, "max-attempts", filter.max_attempts);
    all(&mut out, "min-retries", filter.min_retries);
    all(&mut out, "max-retries", filter.max_retries);
    all(&mut out, "operation", filter.operation);
    let attributes = filter.attributes.iter().map(|(name, value)| format!("{name}={value}"));
    all(&mut out, "attr", attributes);
    out
}

/// The letter whose id begins with these digits.
pub(crate) async fn letter_id(letters: &DeadLetters, digits: &str) -> Result<LetterId, Refusal> {
    if let Ok(id) = digits.parse() {
        return Ok(id);
    }
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        let digits: String = digits.chars().take(80).collect();
        return Err(Refusal::invalid(format!(
            "`{digits}` is not a letter id; expected hexadecimal digits"
        )));
    }
    let found = letters.store().with_prefix(digits.to_ascii_lowercase(), 2).await?;
    match found.as_slice() {
        [id] => Ok(*id),
        [] => Err(Refusal::not_found(format!("no letter has an id that begins with `{digits}`"))),
        _ => Err(Refusal::conflict(format!(
            "more than one letter has an id that begins with `{digits}`; give more digits"
        ))),
    }
}

/// Returns the filter of what is stored by now, by the store's own time: what comes while somebody looks and thinks is not
/// what they agree to.
pub(crate) async fn until_now(
    letters: &DeadLetters,
    mut filter: Filter,
) -> Result<Filter, Refusal> {
    let newest = PageRequest::new().limit(1).order(Order::NewestFirst);
    let newest = letters.list(filter.clone(), newest).await?.letters;
    // Some stores keep microseconds. Where there is no letter, none is meant.
    let after = newest
        .first()
        .map_or(Timestamp::EPOCH, |newest| newest.state.created_at.after(Duration::from_micros(1)));
    filter.until = Some(filter.until.map_or(after, |until| until.min(after)));
    Ok(filter)
}

/// Refuses ids that were given whole and are no letter's: whoever names one means it.
pub(crate) async fn must_exist(letters: &DeadLetters, filter: &Filter) -> Result<(), Refusal> {
    for id in &filter.ids {
        if letters.count(Filter::new().with_id(*id)).await? == 0 {
            return Err(Refusal::not_found(format!("no letter has the id {id}")));
        }
    }
    Ok(())
}
