//! The filter flags, the same on every command.

use std::str::FromStr;
use std::time::Duration;

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use dlq_core::policy::duration;
use dlq_core::search::{Search, SearchRequest};
use dlq_core::store::{BoxLetters, Letters as _};
use dlq_core::{
    Cause, Clock as _, ErrorClass, Filter, Fingerprint, LetterId, LetterSummary, OperationId,
    Order, PageRequest, Reason, Status,
};
use dlq_core::{SubjectPattern, SystemClock, Timestamp};

use crate::commands::Context;
use crate::error::CliError;
use crate::output::Progress;

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Filter")]
pub(crate) struct FilterArgs {
    /// Letter id, or the first digits of it
    #[arg(long, value_name = "ID")]
    id: Vec<String>,
    /// The producer's id of the message
    #[arg(long, value_name = "ID")]
    event_id: Vec<String>,
    /// Subject or topic; `*` stands for one token, a final `>` for the rest
    #[arg(long, visible_alias = "topic")]
    subject: Vec<SubjectPattern>,
    /// Type of the event
    #[arg(long)]
    event: Vec<String>,
    /// Consumer that failed
    #[arg(long)]
    consumer: Vec<String>,
    /// Service that wrote the letter
    #[arg(long)]
    service: Vec<String>,
    /// pending, retrying, replaying, sent, held, resolved, quarantined
    #[arg(long)]
    status: Vec<Status>,
    /// permanent, exhausted, max_crashes, max_replays, max_deliveries, expired, rejected, manual
    #[arg(long)]
    reason: Vec<Reason>,
    /// error, panic, timeout, decode, malformed, oversize
    #[arg(long)]
    cause: Vec<Cause>,
    /// transient or permanent
    #[arg(long, visible_alias = "error-class")]
    class: Vec<ErrorClass>,
    /// Text that the error contains
    #[arg(long, value_name = "TEXT", value_parser = NonEmptyStringValueParser::new())]
    error: Option<String>,
    /// Group of errors, as `dlq groups` shows it
    #[arg(long)]
    fingerprint: Vec<Fingerprint>,
    /// Stored at or after: a time (2026-11-21T03:00:00Z) or an age (1h)
    #[arg(long, value_name = "TIME|AGE")]
    since: Option<When>,
    /// Stored before: a time or an age
    #[arg(long, value_name = "TIME|AGE")]
    until: Option<When>,
    /// Died at or after, for the first time or anew: a time or an age
    #[arg(long, value_name = "TIME|AGE")]
    died_since: Option<When>,
    /// At least this many attempts
    #[arg(long, value_name = "N")]
    min_attempts: Option<u32>,
    /// At most this many attempts
    #[arg(long, value_name = "N")]
    max_attempts: Option<u32>,
    /// Sent back at least this often
    #[arg(long, value_name = "N")]
    min_retries: Option<u32>,
    /// Sent back at most this often
    #[arg(long, value_name = "N")]
    max_retries: Option<u32>,
    /// Held by this operation; at a store only
    #[arg(long, value_name = "ID")]
    pub(crate) operation: Option<OperationId>,
    /// Declared attribute
    #[arg(long, value_name = "NAME=VALUE")]
    attr: Vec<Attribute>,
    #[command(flatten)]
    search: SearchArgs,
    #[cfg(feature = "kafka")]
    #[command(flatten)]
    at_kafka: AtKafkaArgs,
}

/// Options about the message itself, for which each letter that the others leave is read.
#[derive(Clone, Debug, Default, Args)]
struct SearchArgs {
    /// Key of the message; may be given several times
    #[arg(long, value_name = "TEXT")]
    key: Vec<String>,
    /// Header of the message
    #[arg(long, value_name = "NAME=VALUE")]
    header: Vec<Attribute>,
    /// Field of a JSON payload, e.g. customer.id=4711; a list has what one of its elements has
    #[arg(long, value_name = "PATH=VALUE")]
    payload: Vec<Attribute>,
    /// Text that the payload contains
    #[arg(long, value_name = "TEXT", value_parser = NonEmptyStringValueParser::new())]
    payload_text: Option<String>,
}

impl SearchArgs {
    fn search(self) -> Search {
        let mut search = Search::new();
        search.keys = self.key;
        search.headers = pairs(self.header);
        search.fields = pairs(self.payload);
        search.payload = self.payload_text;
        search
    }
}

fn pairs(attributes: Vec<Attribute>) -> Vec<(String, String)> {
    attributes.into_iter().map(|Attribute(name, value)| (name, value)).collect()
}

/// Number of letters that a search may find for a verb that needs all of them.
// A filter names each of them, and goes through every later question to the store.
const MOST_FOUND: usize = 10_000;
/// Number of letters that a search reads between two looks at the progress.
pub(crate) const READ_AT_ONCE: u64 = 1_000;

/// Options of a topic of Kafka only.
#[cfg(feature = "kafka")]
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
pub(crate) struct AtKafkaArgs {
    /// At Kafka: the partition in the topic of dead letters; may be given several times
    #[arg(long, value_name = "N")]
    pub(crate) partition: Vec<u32>,
    /// At Kafka: the offsets in the topic of dead letters, e.g. 100..200, 100.. or ..200
    #[arg(long, value_name = "FROM..TO")]
    pub(crate) offsets: Option<Offsets>,
    /// Keys and headers of the search, which records have at hand.
    #[arg(skip)]
    pub(crate) key: Vec<String>,
    #[arg(skip)]
    pub(crate) header: Vec<Attribute>,
}

/// Offsets from the first to before the last.
#[cfg(feature = "kafka")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Offsets {
    pub(crate) from: u64,
    pub(crate) to: u64,
}

#[cfg(feature = "kafka")]
impl FromStr for Offsets {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const HOW: &str =
            "write FROM..TO, where TO is not meant itself, e.g. 100..200, 100.. or ..200";
        let (from, to) = text.split_once("..").ok_or(HOW)?;
        let number = |text: &str, default| match text {
            "" => Ok(default),
            text => text.parse().map_err(|_| HOW),
        };
        let offsets = Self { from: number(from, 0)?, to: number(to, u64::MAX)? };
        if offsets.from < offsets.to { Ok(offsets) } else { Err("the range is empty") }
    }
}

/// A point in time, given as such or as an age.
#[derive(Clone, Copy, Debug)]
pub(crate) struct When(pub(crate) Timestamp);

impl FromStr for When {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        // A time is tried first; no age looks like one.
        if let Ok(at) = text.parse() {
            return Ok(Self(at));
        }
        duration::parse(text).map(|age| Self(SystemClock.now().before(age))).map_err(|_| {
            "write a time such as 2026-11-21T03:00:00Z, or an age such as 30m or 2h".to_owned()
        })
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Attribute(pub(crate) String, pub(crate) String);

impl FromStr for Attribute {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (name, value) = text.split_once('=').ok_or("write NAME=VALUE")?;
        Ok(Self(name.to_owned(), value.to_owned()))
    }
}

impl FilterArgs {
    /// Returns the earliest time that is meant, for which a broker can seek.
    #[cfg(any(feature = "kafka", feature = "nats", feature = "redis"))]
    pub(crate) fn since(&self) -> Option<Timestamp> {
        self.since.map(|when| when.0)
    }

    /// Returns true if letters are named by their ids, which are looked up.
    #[cfg(any(feature = "kafka", feature = "nats", feature = "redis"))]
    pub(crate) fn names_letters(&self) -> bool {
        !self.id.is_empty() || !self.search.clone().search().is_empty()
    }

    /// Takes out what a topic of Kafka answers by itself.
    #[cfg(feature = "kafka")]
    pub(crate) fn take_at_kafka(&mut self) -> AtKafkaArgs {
        let taken = std::mem::take(&mut self.at_kafka);
        // Kafka reads every record anyway and sees key and header at once; a search would read each letter a second
        // time.
        let key = std::mem::take(&mut self.search.key);
        AtKafkaArgs { key, header: std::mem::take(&mut self.search.header), ..taken }
    }

    /// Returns the filter that is meant. Looks up ids that were given by their first digits, and the letters that a search
    /// finds.
    pub(crate) async fn resolve(self, letters: &BoxLetters) -> Result<Filter, CliError> {
        let (filter, search) = self.resolve_apart(letters).await?;
        if search.is_empty() { Ok(filter) } else { found(letters, filter, &search).await }
    }

    /// Returns the filter that is meant, and the search apart from it. Looks up ids that were given by their first digits.
    pub(crate) async fn resolve_apart(
        self,
        letters: &BoxLetters,
    ) -> Result<(Filter, Search), CliError> {
        #[cfg(feature = "kafka")]
        if self.at_kafka != AtKafkaArgs::default() {
            return Err(CliError::refused(
                "--partition and --offsets are of a topic of Kafka; leave them out, or say --from kafka://HOST:PORT/TOPIC",
            ));
        }
        let mut filter = Filter::new();
        for id in &self.id {
            filter.ids.push(letter_id(letters, id).await?);
        }
        filter.message_ids = self.event_id;
        filter.subjects = self.subject;
        filter.events = self.event;
        filter.consumers = self.consumer;
        filter.services = self.service;
        filter.statuses = self.status;
        filter.reasons = self.reason;
        filter.causes = self.cause;
        filter.classes = self.class;
        filter.fingerprints = self.fingerprint;
        filter.error = self.error;
        filter.since = self.since.map(|when| when.0);
        filter.until = self.until.map(|when| when.0);
        filter.died_since = self.died_since.map(|when| when.0);
        filter.min_attempts = self.min_attempts;
        filter.max_attempts = self.max_attempts;
        filter.min_retries = self.min_retries;
        filter.max_retries = self.max_retries;
        filter.operation = self.operation;
        filter.attributes = pairs(self.attr).into_iter().collect();
        Ok((filter, self.search.search()))
    }
}

/// Returns the letters that a search finds, as a filter. Refuses too many of them.
async fn found(letters: &BoxLetters, filter: Filter, search: &Search) -> Result<Filter, CliError> {
    let bar = Progress::of(letters.count(filter.clone()).await?, "letters searched");
    let part = SearchRequest::new().limit(u32::MAX).read_at_most(READ_AT_ONCE);
    // Letters that come during a long search stand at its end, and are found as well.
    let mut part = part.order(Order::OldestFirst);
    let mut ids = Vec::new();
    loop {
        let page = search.page(letters, filter.clone(), part).await?;
        bar.advance(page.read);
        ids.extend(page.letters.iter().map(|letter| letter.id));
        // It is refused and not cut: a verb that changes letters must not do so for some of those that match.
        if ids.len() > MOST_FOUND {
            bar.end();
            return Err(CliError::refused(format!(
                "cannot select letters by their messages: more than {MOST_FOUND} match; narrow them, e.g. with --since"
            )));
        }
        let Some(next) = page.next else { break };
        part = part.after(next);
    }
    bar.end();
    // The ids are frozen here, so that the plan, the question and the change are about the same letters.
    Ok(filter.only(ids))
}

/// Refuses ids that were given whole and are no letter's: whoever names one means it.
pub(crate) async fn must_exist(
    letters: &BoxLetters,
    shown: &impl std::fmt::Display,
    filter: &Filter,
) -> Result<(), CliError> {
    let mut named = Filter::new();
    named.ids.clone_from(&filter.ids);
    // One question for all, since a search may have found thousands.
    if filter.ids.is_empty() || letters.count(named).await? == filter.ids.len() as u64 {
        return Ok(());
    }
    for id in &filter.ids {
        if letters.count(Filter::new().with_id(*id)).await? == 0 {
            return Err(CliError::failed(format!(
                "no letter has the id {id} in {shown}; `dlq list` shows which there are"
            )));
        }
    }
    Ok(())
}

/// The same of what is stored by now, by the store's own time.
pub(crate) async fn until_now(context: &Context, mut filter: Filter) -> Result<Filter, CliError> {
    let newest = PageRequest::new().limit(1).order(Order::NewestFirst);
    // The clock of this machine may differ from the store's, by which letters are dated.
    let newest = context.letters.list(filter.clone(), newest).await?.letters;
    // Some stores keep microseconds.
    let after = |newest: &LetterSummary| newest.state.created_at.after(Duration::from_micros(1));
    // Where there is none, none is meant.
    let after = newest.first().map_or(Timestamp::EPOCH, after);
    filter.until = Some(filter.until.map_or(after, |until| until.min(after)));
    Ok(filter)
}

/// The letter whose id begins with these digits.
pub(crate) async fn letter_id(letters: &BoxLetters, digits: &str) -> Result<LetterId, CliError> {
    // A whole id is not looked up here. Each verb decides what it means if no letter has it.
    if let Ok(id) = digits.parse() {
        return Ok(id);
    }
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(CliError::refused(format!(
            "`{digits}` is not a letter id; expected hexadecimal digits, as `dlq list` shows them"
        )));
    }
    // Two are enough to know that the digits name more than one letter.
    let found = letters.with_prefix(digits.to_ascii_lowercase(), 2).await?;
    match found.as_slice() {
        [id] => Ok(*id),
        [] => Err(CliError::failed(format!(
            "no letter has an id that begins with `{digits}`; `dlq list` shows which there are"
        ))),
        _ => Err(CliError::refused(format!(
            "more than one letter has an id that begins with `{digits}`; give more digits"
        ))),
    }
}
