//! Consumer groups of a cluster. Each is known to one broker, so all brokers are asked.
//!
//! The client takes what the others say for everything when a broker refuses its connection, and says nothing at all when
//! one is silent. So its connections are looked at: only what came while all of them stood is all that there is.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer as _, ConsumerContext};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use rdkafka::groups::{GroupInfo, GroupList};
use rdkafka::metadata::MetadataBroker;
use rdkafka::statistics::Broker;
use rdkafka::{ClientContext, Statistics};

use crate::client::brokers::Brokers;
use crate::client::error::{SetupError, code, is_moving, is_refusal};

/// Shortest and longest time limit for answers of brokers.
const ANSWER: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(4)];
/// For how long they are asked again: within that, a cluster usually notices that a broker is away, and has others decide
/// for its groups.
const PATIENCE: Duration = Duration::from_secs(11);
/// Topic whose metadata is requested to learn the brokers.
const OFFSETS: &str = "__consumer_offsets";
/// Interval at which the client reports the state of its connections.
const EACH: Duration = Duration::from_millis(50);

/// Answers of brokers about groups.
pub(crate) struct Groups {
    /// Received list; empty if the client has none.
    list: Option<GroupList>,
    /// The brokers that did not answer, for messages. Nobody knows the groups for which these decide.
    pub(crate) silent: BTreeSet<String>,
}

impl Groups {
    /// All of them, as far as the brokers answer; blocks for up to 15 s where one does not.
    pub(crate) fn all(brokers: &Brokers) -> Result<Self, SetupError> {
        ask(brokers, None)
    }

    /// The one of this name, if there is one.
    pub(crate) fn named(brokers: &Brokers, name: &str) -> Result<Self, SetupError> {
        ask(brokers, Some(name))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &GroupInfo> {
        self.list.iter().flat_map(|list| list.groups())
    }

    /// Returns the unknown part, if the answer is incomplete.
    pub(crate) fn unknown(&self) -> Option<String> {
        let silent: Vec<_> = self.silent.iter().map(String::as_str).collect();
        let silent = silent.join(" and ");
        match &self.list {
            _ if silent.is_empty() => None,
            Some(_) => Some(format!("{silent} did not say which groups it has")),
            None => Some(format!("{silent} did not answer, and so the client names no group")),
        }
    }
}

/// Hears how the connections are.
#[derive(Default)]
struct Connections(Mutex<Option<HashMap<String, Broker>>>);

impl Connections {
    fn lock(&self) -> MutexGuard<'_, Option<HashMap<String, Broker>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ClientContext for Connections {
    fn stats(&self, statistics: Statistics) {
        *self.lock() = Some(statistics.brokers);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        tracing::debug!(%error, reason, "the client complains");
    }
}

impl ConsumerContext for Connections {}

fn ask(brokers: &Brokers, name: Option<&str>) -> Result<Groups, SetupError> {
    let what = match name {
        Some(name) => format!("ask for group `{name}`"),
        None => "ask for all groups".to_owned(),
    };
    let answered = |error| SetupError::answered(&what, error);
    let (begun, mut within, mut list) = (Instant::now(), ANSWER[0], None);
    loop {
        let asked = Instant::now();
        let (listed, silent) = ask_once(brokers, name, within)?.map_err(answered)?;
        let is_over = begun.elapsed() >= PATIENCE;
        let passes = |error: &KafkaError| {
            let is_timeout = code(error) == Some(RDKafkaErrorCode::OperationTimedOut);
            !is_over && (is_timeout || is_moving(error))
        };
        let is_list = listed.is_ok();
        match listed {
            Ok(listed) => list = Some(listed),
            Err(error) if code(&error).is_some_and(is_refusal) => return Err(answered(error)),
            Err(error) if silent.is_empty() && !passes(&error) => return Err(answered(error)),
            // What came before is a part of it as well.
            Err(_) => {}
        }
        if is_over || (is_list && silent.is_empty()) {
            return Ok(Groups { list, silent });
        }
        // A refused connection answers at once, and a cluster needs time to hand over what a broker has left.
        sleep(within.saturating_sub(asked.elapsed()));
        within = (within * 2).min(ANSWER[1]);
    }
}

/// Result of a list, and the brokers that did not respond.
type Listed = (KafkaResult<GroupList>, BTreeSet<String>);

/// Asks by a client of its own, since a connection that ended before is seen as well.
fn ask_once(
    brokers: &Brokers,
    name: Option<&str>,
    within: Duration,
) -> Result<KafkaResult<Listed>, SetupError> {
    let each = EACH.as_millis().to_string();
    let config = brokers.client(&[], &[("statistics.interval.ms", &each)])?;
    let client: BaseConsumer<Connections> = match config.create_with_context(Connections::default())
    {
        Ok(client) => client,
        Err(error) => return Ok(Err(error)),
    };
    // The client asks those of which it has heard by now.
    let known = match client.fetch_metadata(Some(OFFSETS), within) {
        Ok(metadata) => metadata,
        Err(error) => return Ok(Ok((Err(error), BTreeSet::new()))),
    };
    let listed = client.fetch_group_list(name, within);
    // What it has said until now was before the end.
    while client.poll(Duration::ZERO).is_some() {}
    *client.context().lock() = None;
    let until = Instant::now() + ANSWER[1];
    let seen = loop {
        drop(client.poll(EACH));
        match client.context().lock().take() {
            Some(seen) => break seen,
            // Without statistics no broker counts as heard, so that a part is never taken for the whole.
            None if Instant::now() >= until => break HashMap::new(),
            None => {}
        }
    };
    let is_listed = listed.is_ok();
    let has_answered = |id: i32| {
        let mut all = seen.values().filter(|of| of.nodeid == id && of.source != "logical");
        all.any(|broker| {
            let has_stood = broker.state == "UP" && broker.disconnects.unwrap_or(0) == 0;
            let is_asked = broker.req.get("ListGroups").is_some_and(|count| *count > 0);
            has_stood && is_asked && (is_listed || broker.waitresp_cnt == 0)
        })
    };
    let silent = known.brokers().iter().filter(|broker| !has_answered(broker.id()));
    let name = |of: &MetadataBroker| format!("broker {} at {}:{}", of.id(), of.host(), of.port());
    Ok(Ok((listed, silent.map(name).collect())))
}
