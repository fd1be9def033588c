//! Notifications about letters that became due through another process.
//!
//! Whoever makes letters due, or lets an operation go on, says so (`NOTIFY`) once that is committed. Not in the same
//! transaction: all those of a server that say something are committed one after the other, each with a write to the
//! disk of its own (16 writers at once: 520 instead of 3,300 commits a second). So the saying is a transaction that writes
//! nothing and waits for no disk. A process that dies between the two has told nobody: others find the letters when they
//! ask next. One connection for all clones of a store listens (`LISTEN`) once somebody waits. What is heard is counted and
//! kept, so that nothing is missed between asking for letters and waiting for them.
//!
//! While the connection is broken nothing is heard: it is made anew, and everybody is woken once. Where listening does
//! not work at all, behind a pooler that shares connections between transactions say, who waits finds letters when it
//! asks next, as it would without this.

use std::collections::{BTreeSet, HashMap};
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgListener, PgPoolOptions};
use sqlx::{Executor as _, PgConnection};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::PostgresStore;
use super::call::attempt;
use super::codec::{escape, unescape};
use super::query::Query;
use crate::error::Result;

/// Pauses between two attempts to listen: the first and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(30));

/// Time limit for connecting to the database.
const CONNECTING: Duration = Duration::from_secs(10);

/// Maximum time of silence before the connection is tested, and time limit of the test.
const QUIET: Duration = Duration::from_secs(60);

/// Time limit for a notification to arrive, in a check of that, and the channel of the check.
const HEARING: Duration = Duration::from_secs(5);
const CHECK: &str = "dlq.check";

/// The longest name of a consumer that is said; a longer one is everybody.
const LONGEST: usize = 1_000;

/// Received notifications, and the task that listens. The task ends with this.
#[derive(Debug, Default)]
pub(super) struct Wakes {
    heard: watch::Sender<Heard>,
    task: Mutex<JoinSet<()>>,
}

/// Counts what is heard. Only consumers that somebody here waits for are kept.
#[derive(Debug, Default)]
struct Heard {
    count: u64,
    last: HashMap<String, u64>,
    last_of_all: u64,
}

impl Heard {
    /// Something happened to this consumer's letters, or, when it is empty, to anybody's.
    fn hear(&mut self, consumer: &str) {
        self.count += 1;
        if consumer.is_empty() {
            self.last_of_all = self.count;
        } else if let Some(last) = self.last.get_mut(consumer) {
            *last = self.count;
        }
    }

    /// Returns true if something happened to letters of these consumers after `since`.
    fn is_news(&self, consumers: &[String], since: u64) -> bool {
        let last = |consumer: &String| self.last.get(consumer).copied().unwrap_or(0);
        let any = if consumers.is_empty() {
            self.count
        } else {
            consumers.iter().map(last).max().unwrap_or(0)
        };
        any.max(self.last_of_all) > since
    }
}

impl Wakes {
    /// Waits until something happens to letters of these consumers (of any, when none is named); says how far it heard.
    async fn wait(&self, store: &PostgresStore, consumers: &[String], since: u64) -> u64 {
        self.heard.send_if_modified(|heard| {
            for consumer in consumers.iter().filter(|name| !name.is_empty()) {
                // A consumer that is new here counts as heard: what was said before it was known would be missed
                // otherwise.
                if !heard.last.contains_key(consumer) {
                    heard.count += 1;
                    heard.last.insert(consumer.clone(), heard.count);
                }
            }
            // Nobody is woken by this: the one whom it concerns looks next.
            false
        });
        // A pooler gives the connection to others between two transactions, and what is said there goes to them.
        if !store.inner.begin.is_pooled {
            self.listen(store);
        }
        let mut heard = self.heard.subscribe();
        match heard.wait_for(|heard| heard.is_news(consumers, since)).await {
            Ok(heard) => heard.count,
            Err(_) => since,
        }
    }

    /// Sees that somebody listens.
    fn listen(&self, store: &PostgresStore) {
        let mut task = self.task.lock().unwrap_or_else(PoisonError::into_inner);
        // One whose runtime ended has ended with it.
        while task.try_join_next().is_some() {}
        if task.is_empty() {
            let limit = store.answer_timeout.0.map_or(QUIET, |limit| limit.min(QUIET));
            let options = store.pool().connect_options();
            let (heard, channel) = (self.heard.clone(), store.names().channel.clone());
            task.spawn(listen_for_ever(options, channel, limit, heard));
        }
    }
}

async fn listen_for_ever(
    options: Arc<PgConnectOptions>,
    channel: String,
    limit: Duration,
    heard: watch::Sender<Heard>,
) {
    let (mut pause, mut is_down) = (PAUSES.0, false);
    loop {
        let mut has_begun = false;
        let begun = || {
            has_begun = true;
            if is_down {
                tracing::info!(channel, "letters that other processes make due are heard of again");
            }
            // What happened while nobody listened is not known.
            heard.send_modify(|heard| heard.hear(""));
        };
        let Err(error) = listen(&options, &channel, limit, &heard, begun).await;
        if has_begun {
            (pause, is_down) = (PAUSES.0, false);
        }
        if !is_down {
            is_down = true;
            tracing::warn!(
                channel, %error,
                "letters that other processes make due are not heard of, and found when the store is asked next"
            );
        }
        sleep(pause).await;
        pause = (pause * 2).min(PAUSES.1);
    }
}

fn lost() -> sqlx::Error {
    sqlx::Error::Io(std::io::ErrorKind::ConnectionAborted.into())
}

/// A connection that listens. From a pool of its own each time: the last one may be on its way back for ever.
async fn listener(
    options: &PgConnectOptions,
    channel: &str,
    limit: Duration,
) -> std::result::Result<PgListener, sqlx::Error> {
    let pool = PgPoolOptions::new().max_connections(1).acquire_timeout(CONNECTING);
    // The pool leaves its one connection alone, however quiet and old: whoever listens tests it.
    let pool = pool.idle_timeout(None).max_lifetime(None).connect_lazy_with(options.clone());
    let mut listener = PgListener::connect_with(&pool).await?;
    // What is said while the connection is down is lost, so that the loss has to be seen and everybody woken.
    listener.eager_reconnect(false);
    timeout(limit, listener.listen(channel)).await.map_err(|_| lost())??;
    Ok(listener)
}

/// Listens until the connection breaks.
async fn listen(
    options: &PgConnectOptions,
    channel: &str,
    limit: Duration,
    heard: &watch::Sender<Heard>,
    begun: impl FnOnce(),
) -> std::result::Result<Infallible, sqlx::Error> {
    let mut listener = listener(options, channel, limit).await?;
    begun();
    loop {
        match timeout(limit, listener.try_recv()).await {
            Ok(word) => {
                let word = word?.ok_or_else(lost)?;
                heard.send_modify(|heard| heard.hear(&unescape(word.payload().to_owned())));
            }
            // A connection that was cut on the way looks like a quiet one.
            Err(_) => {
                let answer = timeout(limit, listener.execute("SELECT 1")).await;
                answer.map_err(|_| lost())??;
            }
        }
    }
}

impl PostgresStore {
    /// Returns true if a notification on one connection arrives on another, and quickly.
    pub(super) async fn is_heard(&self) -> Result<bool> {
        let limit = self.answer_timeout.0.map_or(HEARING, |limit| limit.min(HEARING));
        let mut listener = listener(&self.pool().connect_options(), CHECK, limit).await?;
        // Others may look at the same time.
        let word = format!("{:?}", std::time::Instant::now());
        let say = async |conn: &mut PgConnection| {
            Query::new("SELECT pg_notify(")
                .bind(CHECK)
                .push(", ")
                .bind(&*word)
                .push(")")
                .run(conn)
                .await
        };
        attempt!(self, conn => say(conn))?;
        let hear = async {
            while let Ok(Some(heard)) = listener.try_recv().await {
                if heard.payload() == word {
                    return true;
                }
            }
            false
        };
        Ok(timeout(limit, hear).await.unwrap_or(false))
    }

    /// Tells the processes that listen; an empty name is everybody. Whoever is not told finds the letters when it asks
    /// next.
    pub(super) async fn say(&self, consumers: BTreeSet<String>) {
        if consumers.is_empty() {
            return;
        }
        let words = consumers.iter().map(|consumer| {
            if escape(consumer.into()).len() > LONGEST { "" } else { consumer.as_str() }
        });
        let words: Vec<_> = words.collect();
        let said: Result<_> = attempt!(self, conn => async {
            let say = Query::new("SELECT set_config('synchronous_commit', 'off', true), pg_notify(");
            let say = say.bind(self.names().channel.as_str()).push(", w) FROM unnest(");
            say.bind(words.clone()).push("::text[]) AS w").run(conn).await
        });
        if let Err(error) = said {
            tracing::debug!(?error, "other processes were not told of letters that became due");
        }
    }

    pub(super) async fn heard(&self, consumers: &[String], since: u64) -> u64 {
        self.inner.wakes.wait(self, consumers, since).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn what_is_heard_between_two_waits_is_kept() {
        let mut heard = Heard::default();
        heard.last.insert("a".to_owned(), 0);
        let since = heard.count;
        heard.hear("a");
        heard.hear("b");
        assert!(heard.is_news(&names(&["a"]), since) && heard.is_news(&[], since));
        assert!(!heard.is_news(&names(&["a"]), heard.count));
        let since = heard.count;
        heard.hear("b");
        assert!(!heard.is_news(&names(&["a"]), since), "that was about another");
        assert_eq!(heard.last.len(), 1, "nobody here waits for it");
        heard.hear("");
        assert!(heard.is_news(&names(&["a", "c"]), since), "that was about everybody");
    }
}
