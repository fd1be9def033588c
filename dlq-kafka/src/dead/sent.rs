//! Knowledge about letters that were sent back.

use std::sync::Arc;
use std::time::Duration;

use dlq_core::store::reading::{self, Sent};
use dlq_core::{DeadLetter, Death, StoreError, StoreErrorKind};
use tokio::time::{Instant, sleep};

use super::KafkaLetters;
use super::ledger::{self, Marks, Read, Unclear};
use super::lookup::{Bounds, Lookup};
use super::reading::{READING, unread};
use crate::client::brokers::Brokers;
use crate::client::error::SetupError;

/// Time limit for transactions of replays to end: brokers abort one after 60 seconds, and look every 10.
const OPEN: Duration = Duration::from_secs(90);
/// Pause between two looks.
const PAUSE: Duration = Duration::from_millis(50);

/// Content of the ledger when it was read last.
#[derive(Clone, Debug, Default)]
pub(crate) struct SentBack {
    /// True if the ledger could be read.
    is_known: bool,
    seen: Option<Bounds>,
    marks: Marks,
    unclear: Unclear,
    /// Reason why this user cannot read it, if so.
    hidden: Option<String>,
    /// Reason why letters may not be found in it, if so: it has them under another alias of the cluster.
    by_another: Option<String>,
}

impl SentBack {
    /// Returns the new content of the ledger, if anything was written to it since.
    ///
    /// What may not be read is no error: of a topic that is not there brokers say so too, where the user may not see it.
    pub(super) async fn news(
        &self,
        lookup: &Lookup,
        topic: &Arc<str>,
    ) -> Result<Option<Self>, SetupError> {
        // The ends show whether the ledger has grown, so it is not read for each batch.
        let (seen, hidden) = match ledger::bounds(lookup, topic).await {
            Ok(seen) => (seen, None),
            Err(SetupError::Forbidden(why)) => (None, Some(unreadable(topic, &why))),
            Err(error) => return Err(error),
        };
        // Of one that is there and may not be read that is found out below, each time.
        if seen == self.seen && hidden == self.hidden {
            return Ok(None);
        }
        let mut next = Self { seen, hidden, ..Self::default() };
        if seen.is_some() {
            match ledger::read(&lookup.brokers, topic).await {
                Ok(Read { marks, unclear, cluster, .. }) => {
                    (next.marks, next.unclear) = (marks, unclear);
                    next.by_another = by_another(topic, cluster.as_deref(), &lookup.brokers);
                }
                Err(SetupError::Forbidden(why)) => next.hidden = Some(unreadable(topic, &why)),
                Err(error) => return Err(error),
            }
        }
        Ok(Some(next))
    }

    pub(super) fn marks(&self) -> &Marks {
        &self.marks
    }

    /// Returns the reason why nothing may be sent, if so.
    pub(super) fn refuses(&self) -> Option<&str> {
        self.by_another.as_deref()
    }

    /// Returns the last replay of this death, if there was one.
    pub(super) fn sent(&self, death: &Death) -> Option<Sent> {
        self.marks.get(death).map(|mark| Sent { at: mark.at, times: mark.times })
    }

    /// Returns the reason why it is unknown whether this death was sent back, if it is.
    pub(super) fn unclear(&self, death: &Death) -> Option<&str> {
        let lost = || self.by_another.as_ref().filter(|_| !self.marks.contains_key(death));
        let why = self.hidden.as_ref().or_else(|| self.unclear.get(death)).or_else(lost);
        why.map(String::as_str)
    }

    /// Has a letter of a reading say that it was sent back, or that this is not known.
    pub(super) fn say(&self, letter: &mut DeadLetter) {
        if let Some(sent) = self.sent(&letter.death()) {
            sent.mark(&mut letter.state);
        }
        self.says_unclear(letter);
    }

    /// Has a letter of which it is not known say so.
    pub(super) fn says_unclear(&self, letter: &mut DeadLetter) {
        if let Some(why) = self.unclear(&letter.death()) {
            reading::say_unclear(letter, why);
        }
    }
}

impl KafkaLetters {
    /// Has letters on their way to a store say that they were sent back, or may have been, as the ledger says, which is
    /// looked at again. It is an error if it may not be read the first time, or is of another alias of the cluster then.
    pub(super) async fn mark_for_store(
        &self,
        letters: &mut [DeadLetter],
        sent: &mut SentBack,
    ) -> Result<(), StoreError> {
        if letters.is_empty() {
            return Ok(());
        }
        // The group names the store by now. A replay that has not seen that yet is still open, and its end is waited for (G6).
        if !sent.is_known {
            self.await_open_replays().await.map_err(unread)?;
        }
        let news = sent.news(&self.lookup, &self.ledger).await.map_err(unread)?;
        // Later on it keeps nobody waiting.
        if !sent.is_known
            && let Some(why) =
                news.as_ref().and_then(|news| news.hidden.as_ref().or(news.by_another.as_ref()))
        {
            let forbidden = StoreError::new(StoreErrorKind::InvalidConfig, READING);
            return Err(forbidden.with_detail(why.as_str()));
        }
        // What was sent back stays sent, should the ledger not be found for a while.
        let is_better =
            |news: &SentBack| news.seen.is_some() || news.hidden.is_some() || sent.seen.is_none();
        if let Some(news) = news.filter(is_better) {
            *sent = news;
        }
        sent.is_known = true;
        for letter in letters {
            if let Some(sent) = sent.sent(&letter.death()) {
                sent.mark(&mut letter.state);
            }
            if let Some(why) = sent.unclear(&letter.death()) {
                reading::quarantine_unclear(letter, why);
            }
        }
        Ok(())
    }

    /// Returns when transactions have ended that were open in the ledger: a replay that had written there before the store
    /// was known by the group's offsets may commit. One that writes later finds the store and gives way.
    async fn await_open_replays(&self) -> Result<(), SetupError> {
        let end = async |lookup: &Lookup| match ledger::bounds(lookup, &self.ledger).await {
            Ok(bounds) => Ok(bounds.map_or(0, |bounds| bounds.end)),
            // It is said where it is read.
            Err(SetupError::Forbidden(_)) => Ok(0),
            Err(error) => Err(error),
        };
        // The end for readers of what is committed stays behind this one while a transaction is open.
        let written = end(&self.lookup.uncommitted()).await?;
        let until = Instant::now() + OPEN;
        while end(&self.lookup).await? < written {
            if Instant::now() >= until {
                let text = format!(
                    "a transaction has been open in topic `{}`, which says what was sent back, for {OPEN:?}, and may send \
                     letters; `kafka-transactions.sh find-hanging` names it",
                    self.ledger
                );
                return Err(SetupError::Unavailable(text, None));
            }
            sleep(PAUSE).await;
        }
        Ok(())
    }
}

/// Returns the reason why nothing may be sent because a ledger belongs to another alias of the cluster, if so. Letters
/// of others have another identity by each alias: a letter that was sent under one would be sent again under the other.
pub(super) fn by_another(topic: &str, alias: Option<&str>, brokers: &Brokers) -> Option<String> {
    let own = brokers.cluster();
    let other = alias.filter(|alias| *alias != own)?;
    Some(format!(
        "topic `{topic}` says what was sent back where `{other}` is the alias of the cluster, and not `{own}`: letters that \
         others wrote cannot be found in it; say `{other}` (`Brokers::with_cluster`, `--kafka-cluster`), or write a record \
         without a value under the key `begun` to go on as `{own}`"
    ))
}

fn unreadable(topic: &str, why: &str) -> String {
    format!("topic `{topic}`, which says what was sent back, may not be read: {why}")
}
