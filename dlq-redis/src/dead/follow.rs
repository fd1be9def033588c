//! A stream of dead letters that is followed into a store.

use std::sync::Arc;
use std::time::Duration;

use dlq_core::log::{Entries, Entry, IngestMark};
use dlq_core::{StoreError, StoreErrorKind};
use redis::Value;
use tokio::time::sleep;

use super::letters::{READING, RedisLetters, say_sent};
use super::passed::Passed;
use super::scan::{EntryId, Pages, id};
use super::scripts::{CONFIRM, MARK, TAKE};
use crate::client::{RedisClient, RedisError, as_array, as_int, as_text};
use crate::consumer::wire::position;
use crate::consumer::{Keys, millis, unique_name};

const OPENING: &str = "follow dead letters";
const CONFIRMING: &str = "confirm dead letters";
/// Pause before it is looked again.
const LOOK: Duration = Duration::from_millis(200);

/// Entries that come to one process at a time.
#[derive(Debug)]
pub(super) struct Follow {
    letters: RedisLetters,
    mark: String,
    store: String,
    /// The name of this process in the lease: no other has or had it.
    me: Arc<str>,
    lease: Duration,
    pages: Pages,
    /// The place up to which entries were confirmed when the last ones were taken.
    confirmed: Option<EntryId>,
    /// Taken, and not yet yielded.
    taken: Vec<Entry>,
    /// The last place that was yielded, and the number of entries, until they are confirmed.
    unconfirmed: Option<(EntryId, usize)>,
    has_waited: bool,
}

impl Follow {
    pub(super) async fn open(
        letters: RedisLetters,
        store: String,
        lease: Duration,
    ) -> Result<Self, StoreError> {
        let stands = letters.stands().await?;
        let (keys, name) = (&letters.keys, &*letters.follower);
        let mark = keys.follower(name);
        // The mark comes before the first entry: from then on a replay finds the store, and sends nothing past it (G6).
        let call = MARK.keys(&[&mark, &keys.followers()]).arg(name).arg(&store);
        let answer = letters.client.script(&call).await;
        let answer = answer.map_err(|error| error.for_store(OPENING))?;
        let [other, confirmed] = as_array(&answer) else { return Err(odd()) };
        if let Some(other) = as_text(other).filter(|other| *other != store) {
            let text = format!(
                "the letters of `{}` go into {other}, asked was {store}; use that store, or delete the key `{mark}`: what the \
                 stream holds is then read again from its start",
                letters.stream()
            );
            return Err(StoreError::new(StoreErrorKind::Conflict, OPENING).with_detail(text));
        }
        let confirmed = as_text(confirmed).and_then(|place| position(&place));
        // Nothing would come until the ids have grown past that place, and nobody would hear why (G9).
        if confirmed.is_some_and(|place| place > stands.last) {
            let text = format!(
                "stream `{}` was created anew, with ids below those that were confirmed; delete the key `{mark}`: what the \
                 stream holds is then read from its start",
                letters.stream()
            );
            return Err(StoreError::new(StoreErrorKind::Conflict, OPENING).with_detail(text));
        }
        Ok(Self {
            mark,
            store,
            me: unique_name(),
            lease,
            pages: Pages::new(),
            confirmed,
            taken: Vec::new(),
            unconfirmed: None,
            has_waited: false,
            letters,
        })
    }

    /// Looks up to which place entries were confirmed, by whichever process.
    async fn look(&self) -> Result<Option<EntryId>, StoreError> {
        let mut get = redis::cmd("HMGET");
        get.arg(&self.mark).arg("store").arg("place");
        let answer = self.letters.client.command(&get).await;
        let answer = answer.map_err(|error| error.for_running_store(READING))?;
        let [store, place] = as_array(&answer) else { return Err(odd()) };
        if as_text(store).as_deref() != Some(&self.store) {
            return Err(self.lost(READING));
        }
        Ok(as_text(place).and_then(|place| position(&place)))
    }

    /// Takes entries up to a place for the time of a lease. `None` where another has them, or has confirmed some.
    async fn take(&mut self, last: EntryId) -> Result<Option<EntryId>, StoreError> {
        let call = TAKE
            .keys(&[&self.mark, &self.letters.keys.replaying()])
            .arg(&*self.me)
            .arg(millis(self.lease))
            .arg(&self.store)
            .arg(written(self.confirmed))
            .arg(id(last));
        let answer = self.letters.client.script(&call).await;
        let answer = answer.map_err(|error| error.for_running_store(READING))?;
        let [what, more] = as_array(&answer) else { return Err(odd()) };
        match as_int(what) {
            1 => Ok(Some(as_text(more).and_then(|place| position(&place)).unwrap_or_default())),
            0 => Ok(None),
            who @ (-1 | -3) => {
                let left = Duration::from_millis(u64::try_from(as_int(more)).unwrap_or(0));
                if !std::mem::replace(&mut self.has_waited, true) {
                    let who = if who == -3 { "a replay sends" } else { "another process has" };
                    tracing::warn!(
                        ?left,
                        "{who} these letters; where it died, it is waited until its lease ends"
                    );
                }
                // The rest of the lease is not slept through: whoever has the letters may confirm them any moment.
                sleep(left.clamp(Duration::from_millis(1), LOOK)).await;
                Ok(None)
            }
            _ => Err(self.lost(READING)),
        }
    }

    /// The mark has gone, or names another store.
    fn lost(&self, operation: &'static str) -> StoreError {
        let text = format!(
            "the key `{}`, which says that the letters of `{}` go into {}, was deleted or changed; start again",
            self.mark,
            self.letters.stream(),
            self.store
        );
        StoreError::new(StoreErrorKind::Conflict, operation).with_detail(text)
    }
}

fn odd() -> StoreError {
    StoreError::new(StoreErrorKind::Unexpected, OPENING)
}

/// Writes a place, or that there is none.
fn written(place: Option<EntryId>) -> String {
    place.map_or_else(String::new, id)
}

impl Entries for Follow {
    async fn next(&mut self, limit: usize) -> Result<Vec<Entry>, StoreError> {
        while self.taken.is_empty() {
            self.confirmed = self.look().await?;
            let (client, stream) = (&self.letters.client, self.letters.stream());
            // The page is read before it is taken, since a lease names its last place. Where others have confirmed
            // entries in between, the script refuses, and the page is read anew.
            let page = self.pages.after(client, stream, self.confirmed, None, limit.max(1)).await;
            let page = page.map_err(|error| error.for_running_store(READING))?;
            let Some(last) = page.back().map(|raw| raw.place) else {
                if self.letters.ends {
                    return Ok(Vec::new());
                }
                sleep(LOOK).await;
                continue;
            };
            let Some(yielded) = self.take(last).await? else { continue };
            self.has_waited = false;
            let count = page.len();
            let entry = |raw: super::scan::Raw| {
                // Up to this place entries were yielded before, and perhaps by a process that has died since.
                let again = raw.place <= yielded;
                self.letters.entry(raw, again)
            };
            self.taken = page.into_iter().map(entry).collect();
            self.unconfirmed = Some((last, count));
        }
        // The mark is there: what a replay has sent before that stands in the ledger, and none sends more.
        say_sent(&self.letters, &mut self.taken).await?;
        let mut passed = Passed::default();
        passed.note(&self.taken);
        Ok(std::mem::take(&mut self.taken))
    }

    async fn confirm(&mut self) -> Result<(), StoreError> {
        let Some((last, count)) = self.unconfirmed else { return Ok(()) };
        let call = CONFIRM
            .keys(&[&self.mark])
            .arg(&*self.me)
            .arg(&self.store)
            .arg(written(self.confirmed))
            .arg(id(last))
            .arg(count);
        let answer = self.letters.client.script(&call).await;
        // This goes for a call that fails, too: the next look tells what was confirmed, and the rest comes again.
        self.unconfirmed = None;
        match as_int(&answer.map_err(|error| error.for_running_store(CONFIRMING))?) {
            1 => Ok(()),
            0 => {
                let text = "the lease has ended, and another process has these letters now";
                Err(StoreError::new(StoreErrorKind::Unavailable, CONFIRMING).with_detail(text))
            }
            _ => Err(self.lost(CONFIRMING)),
        }
    }
}

/// Reads the stores into which the letters of a stream go.
pub(super) async fn marks(
    client: &RedisClient,
    keys: &Keys,
) -> Result<Vec<IngestMark>, RedisError> {
    let mut members = redis::cmd("SMEMBERS");
    members.arg(keys.followers());
    let names = client.command(&members).await?;
    let mut names: Vec<String> = as_array(&names).iter().filter_map(as_text).collect();
    names.sort_unstable();
    let looks: Vec<_> = names
        .iter()
        .map(|name| {
            let mut get = redis::cmd("HMGET");
            get.arg(keys.follower(name)).arg("store").arg("count");
            get
        })
        .collect();
    let mut marks = Vec::new();
    for (name, answer) in names.into_iter().zip(client.commands(&looks).await?) {
        let answer: Value = answer?;
        let [store, count] = as_array(&answer) else { continue };
        // One whose key was deleted is none.
        if let Some(store) = as_text(store) {
            let confirmed = u64::try_from(as_int(count)).unwrap_or(0);
            marks.push(IngestMark::new(name, store, confirmed));
        }
    }
    Ok(marks)
}
