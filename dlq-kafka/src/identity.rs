//! Which of several topics of one name is read: one that was deleted and created again is another, and its offsets mean
//! other records (G1: no record is passed over).
//!
//! Brokers give each topic an id (since Kafka 2.8). The client works with it and gives it to nobody, except in its log of
//! metadata, from where it is taken: at the first word of a topic, and when it changes. The client hears of a change
//! before it fetches from the new topic, since fetches carry the id (since Kafka 3.1); and what it logs comes by the queue
//! of its records, before them. The id is noted with each commit, beside the position that it makes meaningful.
//!
//! | the topic is made anew | what the brokers have | what happens |
//! |---|---|---|
//! | while a process reads it | no commit, or one with the old id | the client tells of the new id: the partition begins at the first record, as a new assignment; what is in hand of the old topic is handled, and commits nothing |
//! | and the process dies before it is told | the same | the next one finds no commit, and begins at the first record; or a commit with the old id, and does the same |
//! | and it dies after that, before the beginning is committed | the same | the same |
//! | and a broker that is behind still has the old one | the commit, with the new id | while the client reads the old one nothing is handed out; back at the new one it begins at the first record again, since where it stands says nothing |
//! | after that commit, which comes before the first record is handed out | the commit, with the new id | it goes on there |
//! | while nobody is there | no commit: brokers forget those of a topic that is deleted | the group begins where its [`Start`](crate::Start) says; a commit of the old topic that came late has the old id; so it is when the process dies before the beginning is committed, and with [`Start::Latest`](crate::Start::Latest) what came before the next one asks is not read |
//!
//! One thing only another client gets out of: when the topic was not seen while it was missing, and the epoch of its leader
//! had grown, the client takes that of the new topic for old and fetches nothing. The group begins at the first record, as
//! above, and that nothing comes is told after half a minute, until the process is restarted; the next one reads.
//!
//! A commit without an id, by another client or an earlier version, is taken for one of the topic that is there; so are
//! all where brokers give no ids. Commits that are copied to another cluster are taken for those of another topic, unless
//! they are copied without their metadata.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use rdkafka::ClientConfig;
use rdkafka::config::RDKafkaLogLevel;

use crate::rebalance::log;
use crate::shared::lock;

/// What the client has to be asked to log.
const METADATA: &str = "metadata";

/// The ids of the topics that a client knows.
#[derive(Debug)]
pub(crate) struct TopicIds {
    /// Of what the client logs, what is passed on.
    level: RDKafkaLogLevel,
    topics: Mutex<HashMap<String, Topic>>,
    changes: AtomicU64,
}

#[derive(Debug)]
struct Topic {
    id: String,
    /// Those before. A broker that is behind may still tell of them, and then the client reads the topic that is gone.
    past: HashSet<String>,
    /// Whether it does.
    is_behind: bool,
    /// How often it began to, or was back.
    turns: u64,
}

impl TopicIds {
    /// Has a client of this configuration log what tells of ids.
    pub(crate) fn listening(config: &mut ClientConfig) -> Self {
        let asked = config.get("debug").map(|asked| format!("{asked},{METADATA}"));
        // What the user asked for is passed on too.
        let level = asked.as_ref().map_or(config.log_level, |_| RDKafkaLogLevel::Debug);
        config.set("debug", asked.unwrap_or_else(|| METADATA.to_owned()));
        config.set_log_level(RDKafkaLogLevel::Debug);
        Self { level, topics: Mutex::default(), changes: AtomicU64::new(0) }
    }

    /// Takes what the client logs, and passes on what is for the user.
    pub(crate) fn heard(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        self.learn(message);
        if level as i32 <= self.level as i32 {
            log(level, facility, message);
        }
    }

    fn learn(&self, message: &str) {
        let Some((topic, id)) = change(message) else { return };
        let mut topics = lock(&self.topics);
        match topics.get_mut(topic) {
            Some(known) if known.past.contains(id) => {
                if !std::mem::replace(&mut known.is_behind, true) {
                    known.turns += 1;
                    tracing::warn!(
                        topic,
                        id,
                        "a broker that is behind gives the client a topic that was deleted; nothing of it is handed out"
                    );
                }
            }
            Some(known) if known.id == id => {
                if std::mem::replace(&mut known.is_behind, false) {
                    known.turns += 1;
                }
            }
            Some(known) => {
                let before = std::mem::replace(&mut known.id, id.to_owned());
                known.past.insert(before);
                known.is_behind = false;
            }
            None => {
                let new =
                    Topic { id: id.to_owned(), past: HashSet::new(), is_behind: false, turns: 0 };
                topics.insert(topic.to_owned(), new);
            }
        }
        self.changes.fetch_add(1, Ordering::Release);
    }

    /// Counts what was learned.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// The id of a topic; `None` while it is unknown.
    pub(crate) fn of(&self, topic: &str) -> Option<String> {
        lock(&self.topics).get(topic).map(|topic| topic.id.clone())
    }

    /// Whether the client reads a topic of this name that is gone, and how often it began to or was back. What it reads then says
    /// nothing of the one that is there, and where it goes on there afterwards it was sent by what it read.
    pub(crate) fn behind(&self, topic: &str) -> (bool, u64) {
        let topics = lock(&self.topics);
        topics.get(topic).map_or((false, 0), |topic| (topic.is_behind, topic.turns))
    }

    /// Whether the topic was made anew since the client began.
    pub(crate) fn is_another(&self, topic: &str) -> bool {
        lock(&self.topics).get(topic).is_some_and(|topic| !topic.past.is_empty())
    }
}

/// `Topic NAME changed id from ID to ID`, behind the name of a thread.
fn change(message: &str) -> Option<(&str, &str)> {
    let (start, ids) = message.split_once(" changed id from ")?;
    let (_, topic) = start.rsplit_once("Topic ")?;
    let (_, id) = ids.split_once(" to ")?;
    // As it stands in the metadata of a commit.
    let is_id = id.len() == 22
        && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+/-_".contains(&byte));
    is_id.then_some((topic, id))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "Sb0ORn8nQ/OROvHhAiHSTg";
    const TWO: &str = "9+wWPNkATI6Z3BIYcM-6_Q";

    fn line(from: &str, to: &str) -> String {
        format!("[thrd:main]: Topic orders.v1 changed id from {from} to {to}")
    }

    #[test]
    fn g1_an_id_is_learned_and_where_the_client_falls_back_to_a_past_one_it_is_told() {
        let ids = TopicIds::listening(&mut ClientConfig::new());
        ids.learn(&line("AAAAAAAAAAAAAAAAAAAAAA", ONE));
        assert_eq!((ids.of("orders.v1").as_deref(), ids.changes()), (Some(ONE), 1));
        assert!(!ids.is_another("orders.v1"));
        let steps = [(TWO, 2, (false, 0)), (ONE, 3, (true, 1)), (TWO, 4, (false, 2))];
        for (to, changes, behind) in steps {
            ids.learn(&line("AAAAAAAAAAAAAAAAAAAAAA", to));
            assert_eq!((ids.of("orders.v1").as_deref(), ids.changes()), (Some(TWO), changes));
            assert_eq!(ids.behind("orders.v1"), behind);
        }
        assert!(ids.is_another("orders.v1"));
        assert_eq!(ids.of("orders"), None);
    }

    #[test]
    fn other_lines_say_nothing() {
        for message in [
            "",
            "[thrd:main]: Topic orders changed id from ",
            "[thrd:main]: Topic orders changed id from A to B;clean",
            "[thrd:main]: Topic orders [0] Leader 1 Epoch 0",
        ] {
            assert_eq!(change(message), None, "{message:?}");
        }
    }

    #[test]
    fn what_the_user_wants_logged_is_logged_too() {
        let mut config = ClientConfig::new();
        config.set_log_level(RDKafkaLogLevel::Warning);
        assert!(matches!(TopicIds::listening(&mut config).level, RDKafkaLogLevel::Warning));
        assert_eq!(config.get("debug"), Some("metadata"));
        let mut config = ClientConfig::new();
        config.set("debug", "fetch");
        assert!(matches!(TopicIds::listening(&mut config).level, RDKafkaLogLevel::Debug));
        assert_eq!(config.get("debug"), Some("fetch,metadata"));
    }
}
