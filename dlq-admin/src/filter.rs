//! Filters as parameters, by the names of the command's options.

use std::str::FromStr;
use std::time::Duration;

use dlq_core::policy::duration;
use dlq_core::search::{Search, SearchRequest};
use dlq_core::store::Letters as _;
use dlq_core::{
    Clock as _, DeadLetters, Filter, LetterId, Order, PageRequest, SystemClock, Timestamp,
};

use crate::access::Role;
use crate::call::Call;
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
    Parameter::many("key", "key of the message; each letter is read, as for the next three"),
    Parameter::many("header", "header of the message, as NAME=VALUE"),
    Parameter::many("payload", "field of a JSON payload, as PATH=VALUE, e.g. customer.id=4711"),
    Parameter::one("payload-text", "text that the payload contains"),
];

/// Number of letters that a search may find where all of them are needed.
// The ids come back in a form with every further step, and through the URL of a page.
const MOST_FOUND: usize = 500;
/// Number of letters that a search may read there.
// One request must not keep a store busy for minutes; the command has a progress bar and no such limit.
const MOST_READ: u64 = 100_000;
/// Number of letters that a search reads for a page.
// Somebody waits for the page, which has a link to search on.
pub(crate) const READ_FOR_PAGE: u64 = 5_000;

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

/// Reads a filter. Looks up ids that were given by their first digits, and the letters that a search finds.
pub(crate) async fn read(call: &Call) -> Result<Filter, Refusal> {
    let (filter, search) = read_apart(call).await?;
    if search.is_empty() { Ok(filter) } else { found(call.letters()?, filter, &search).await }
}

/// Reads a filter, and the search apart from it. Looks up ids that were given by their first digits.
pub(crate) async fn read_apart(call: &Call) -> Result<(Filter, Search), Refusal> {
    let (params, letters) = (&call.params, call.letters()?);
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
    // Every error contains the empty text, so this would mean all letters while looking like a condition.
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
    if filter.operation.is_some() && call.is_log() {
        return Err(Refusal::refused(
            "`operation` needs a store, whose letters an operation holds until it has released them; those that were sent back \
             from a log have the status `sent`",
        ));
    }
    for attribute in params.all("attr") {
        let (name, value) = pair("attr", attribute)?;
        // A letter has one value of an attribute. The second would replace the first in silence.
        if filter.attributes.insert(name.clone(), value).is_some() {
            return Err(Refusal::invalid(format!(
                "the attribute `{name}` is given more than once"
            )));
        }
    }
    let search = search(params)?;
    // A search would say letter by letter what is hidden or masked.
    let needed = if call.console.mask.is_empty() { Role::Operate } else { Role::Admin };
    if !search.is_empty() && !call.may(needed) {
        return Err(Refusal::forbidden(format!(
            "the role `{}` does not see all of keys, headers and payloads, and does not search them; leave out key, header, \
             payload and payload-text",
            call.visitor.role
        )));
    }
    Ok((filter, search))
}

fn pair(name: &str, text: &str) -> Result<(String, String), Refusal> {
    let found = text.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
    found.ok_or_else(|| Refusal::invalid(format!("`{name}` has no value; write NAME=VALUE")))
}

fn search(params: &Params) -> Result<Search, Refusal> {
    let mut search = Search::new();
    search.keys = params.all("key").map(str::to_owned).collect();
    for text in params.all("header") {
        search.headers.push(pair("header", text)?);
    }
    for text in params.all("payload") {
        search.fields.push(pair("payload", text)?);
    }
    search.payload = params.text("payload-text").map(str::to_owned);
    if search.payload.as_deref() == Some("") {
        return Err(Refusal::invalid("`payload-text` is empty; leave it out, or say a text"));
    }
    Ok(search)
}

/// Returns the letters that a search finds, as a filter. Refuses a search that finds or reads too many.
async fn found(letters: &DeadLetters, filter: Filter, search: &Search) -> Result<Filter, Refusal> {
    let request = SearchRequest::new().limit(u32::try_from(MOST_FOUND).unwrap_or(u32::MAX));
    let page = letters.search(search, filter.clone(), request.read_at_most(MOST_READ)).await?;
    // Part of what a search finds must not be taken for all of it by a change.
    if page.next.is_some() {
        return Err(Refusal::refused(format!(
            "the search is too large: it found {} letters among {} and has not come to its end; narrow it, e.g. by `since` or \
             `consumer`, or use the command, whose search has no such limit on what it reads",
            page.letters.len(),
            page.read
        )));
    }
    // The ids are frozen here: what is planned, agreed to and changed are the same letters, however payloads change
    // meanwhile.
    Ok(filter.only(page.letters.iter().map(|letter| letter.id).collect()))
}

/// Returns a search as parameters, from which the same search is read.
pub(crate) fn search_params(search: &Search) -> Vec<(&'static str, String)> {
    let pairs = |name: &'static str, all: &[(String, String)]| -> Vec<_> {
        all.iter().map(|(left, right)| (name, format!("{left}={right}"))).collect()
    };
    let mut out: Vec<_> = search.keys.iter().map(|key| ("key", key.clone())).collect();
    out.extend(pairs("header", &search.headers));
    out.extend(pairs("payload", &search.fields));
    out.extend(search.payload.iter().map(|text| ("payload-text", text.clone())));
    out
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
    // Two are enough to know that the digits name more than one letter.
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
    // The end is exclusive, and a limit that was asked for must not be widened.
    filter.until = Some(filter.until.map_or(after, |until| until.min(after)));
    Ok(filter)
}

/// Refuses ids that were given whole and are no letter's: whoever names one means it.
pub(crate) async fn must_exist(letters: &DeadLetters, filter: &Filter) -> Result<(), Refusal> {
    let mut named = Filter::new();
    named.ids.clone_from(&filter.ids);
    // One question for all, since a search may have found hundreds.
    if filter.ids.is_empty() || letters.count(named).await? == filter.ids.len() as u64 {
        return Ok(());
    }
    for id in &filter.ids {
        if letters.count(Filter::new().with_id(*id)).await? == 0 {
            return Err(Refusal::not_found(format!("no letter has the id {id}")));
        }
    }
    Ok(())
}
