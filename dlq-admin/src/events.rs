//! Live updates: server-sent events, with one poll of a store for all who listen to the same topic.
//!
//! Nothing runs in the background: whoever listens asks the topic for news, and the first to ask after its pause polls the
//! store while the others wait for the same answer. So fifty browsers cost what one costs, and a topic to which nobody
//! listens costs nothing.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex as StdMutex, PoisonError, Weak};
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::Response;
use dlq_core::store::{Operation, Stats};
use dlq_core::{DeadLetters, Filter, OperationId, Timestamp};
use futures_util::stream;
use serde_json::{Value, json};
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep};

use crate::call::respond;
use crate::log::Sending;
use crate::refusal::Refusal;

/// The shortest pause between two polls of a topic.
const PAUSE: Duration = Duration::from_secs(1);
/// Share of its time that a store spends on a topic at most, as its inverse: a slow answer makes the pause longer.
// A store that needs ten seconds for its counts must not be asked for them all the time by the console.
const SHARE: u32 = 4;
/// Time without news after which a comment is sent, so that a client that has gone is noticed.
// It is shorter than the minute after which many proxies close a connection that is silent.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Length of a connection. The browser connects again, and is let in anew.
const LIFE: Duration = Duration::from_secs(600);
/// Number of listeners at a time.
const MOST: usize = 64;

/// Subject of news.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Topic {
    Overview {
        store: String,
    },
    Operation {
        store: String,
        id: OperationId,
    },
    /// Replay of a log.
    Replay {
        store: String,
        began: Timestamp,
    },
}

/// Place where the news of a topic are asked for.
#[derive(Clone, Debug)]
pub(crate) enum Origin {
    Letters(DeadLetters),
    Replay(Arc<Sending>),
}

/// State of a topic as of its latest poll.
#[derive(Debug)]
pub(crate) struct News {
    pub(crate) document: Value,
    /// True if nothing more will happen.
    pub(crate) is_last: bool,
}

#[derive(Debug, Default)]
struct Polled(Mutex<Option<(Instant, Duration, Arc<News>)>>);

impl Polled {
    /// Returns the latest news, polling for them if their pause is over.
    async fn fresh<F>(&self, poll: impl FnOnce() -> F) -> Result<Arc<News>, Refusal>
    where
        F: Future<Output = Result<News, Refusal>>,
    {
        // The lock is held while the store is polled: that is how the others wait for the same answer. A poller that is
        // dropped releases it, and the next one polls.
        let mut latest = self.0.lock().await;
        if let Some((at, took, news)) = &*latest
            && (news.is_last || at.elapsed() < PAUSE.max(*took * SHARE))
        {
            return Ok(Arc::clone(news));
        }
        let began = Instant::now();
        // An error is not kept: the next listener asks anew, which is one at a time by the lock.
        let news = Arc::new(poll().await?);
        *latest = Some((Instant::now(), began.elapsed(), Arc::clone(&news)));
        Ok(news)
    }
}

/// Topics to which somebody listens.
#[derive(Debug)]
pub(crate) struct Events {
    // Weak, so that a topic ends with its last listener without anybody counting them.
    topics: StdMutex<HashMap<Topic, Weak<Polled>>>,
    room: Arc<Semaphore>,
}

impl Default for Events {
    fn default() -> Self {
        Self { topics: StdMutex::default(), room: Arc::new(Semaphore::new(MOST)) }
    }
}

impl Events {
    /// Returns a stream of the news of a topic, which ends with the topic.
    pub(crate) async fn listen(&self, topic: Topic, origin: Origin) -> Result<Response, Refusal> {
        // A listener that waited for room would hold a connection and be told nothing.
        let room = Arc::clone(&self.room).try_acquire_owned().map_err(|_| {
            let text =
                format!("{MOST} listeners are connected already; load the page again instead");
            Refusal::new(StatusCode::SERVICE_UNAVAILABLE, text)
        })?;
        let polled = self.polled(&topic);
        let until = Instant::now() + LIFE;
        let listener = Listener { topic, origin, polled, shown: None, until, _room: room };
        // The first news are waited for, so that a topic that is not there is an answer and no empty stream.
        let first = listener.news().await?;
        let body = stream::unfold(Some((listener, Some(first))), |state| async {
            let (mut listener, first) = state?;
            let (text, goes_on) = listener.next(first).await;
            Some((Ok::<_, std::convert::Infallible>(text), goes_on.then_some((listener, None))))
        });
        let mut response = respond(StatusCode::OK, "text/event-stream", Body::from_stream(body));
        // A proxy that gathers answers would hold news back.
        let unbuffered = HeaderName::from_static("x-accel-buffering");
        response.headers_mut().insert(unbuffered, HeaderValue::from_static("no"));
        Ok(response)
    }

    fn polled(&self, topic: &Topic) -> Arc<Polled> {
        let mut topics = self.topics.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(polled) = topics.get(topic).and_then(Weak::upgrade) {
            return polled;
        }
        // Topics that nobody listens to are removed when another is added, which keeps the map as small as the listeners
        // are many.
        topics.retain(|_, polled| polled.strong_count() > 0);
        let polled = Arc::new(Polled::default());
        topics.insert(topic.clone(), Arc::downgrade(&polled));
        polled
    }
}

/// Client that listens.
#[derive(Debug)]
struct Listener {
    topic: Topic,
    origin: Origin,
    polled: Arc<Polled>,
    shown: Option<Arc<News>>,
    until: Instant,
    _room: OwnedSemaphorePermit,
}

impl Listener {
    async fn news(&self) -> Result<Arc<News>, Refusal> {
        self.polled.fresh(|| poll(&self.topic, &self.origin)).await
    }

    /// Returns the next piece of the stream, and whether another one follows.
    async fn next(&mut self, first: Option<Arc<News>>) -> (String, bool) {
        if let Some(news) = first {
            return self.show(news);
        }
        let began = Instant::now();
        loop {
            // Cancel safety: the stream is dropped with its connection, and nothing is lost, as each poll is of the
            // present state.
            sleep(PAUSE).await;
            if Instant::now() >= self.until {
                return (": until the next connection\n\n".to_owned(), false);
            }
            match self.news().await {
                Ok(news) => {
                    let shown = self.shown.as_ref();
                    // The last news are sent also when the document is the same, since they tell the page that it may
                    // stop listening.
                    if shown.is_none_or(|shown| shown.document != news.document || news.is_last) {
                        return self.show(news);
                    }
                }
                // The store may be back at the next poll; the page says that it is not up to date.
                Err(refusal) => {
                    let text = json!({ "message": refusal.message }).to_string();
                    return (format!("event: trouble\ndata: {text}\n\n"), true);
                }
            }
            // Only a write shows that the other side has gone, so something is written.
            if began.elapsed() >= KEEP_ALIVE {
                return (": nothing new\n\n".to_owned(), true);
            }
        }
    }

    fn show(&mut self, news: Arc<News>) -> (String, bool) {
        let name = if news.is_last { "end" } else { "news" };
        // JSON on one line has no line break that would end the data.
        let text = format!("event: {name}\ndata: {}\n\n", news.document);
        let is_last = news.is_last;
        self.shown = Some(news);
        (text, !is_last)
    }
}

async fn poll(topic: &Topic, origin: &Origin) -> Result<News, Refusal> {
    let letters = match origin {
        Origin::Letters(letters) => letters,
        Origin::Replay(sending) => {
            // The state is read first, so that the last news have all that happened.
            let is_last = sending.state().is_over();
            return Ok(News { document: json!({ "replay": sending.document() }), is_last });
        }
    };
    match topic {
        Topic::Overview { .. } | Topic::Replay { .. } => {
            let stats = letters.stats(Filter::new()).await?;
            let operations = letters.operations(20).await?;
            Ok(News { document: overview(&stats, &operations), is_last: false })
        }
        Topic::Operation { id, .. } => {
            let operation = letters.operation(*id).await?;
            let done = operation.progress.done();
            let is_last = operation.state.is_final();
            Ok(News { document: json!({ "operation": operation, "done": done }), is_last })
        }
    }
}

/// Returns the document of the overview: counts without those by subject, and the operations that have not ended.
pub(crate) fn overview(stats: &Stats, operations: &[Operation]) -> Value {
    let running = operations.iter().filter(|operation| !operation.state.is_final());
    json!({
        "total": stats.total,
        // The document is the same for every role: counts and operations hold nothing that `read` may not see.
        "by_status": stats.by_status,
        "by_consumer": stats.by_consumer,
        "oldest_unresolved": stats.oldest_unresolved,
        "newest": stats.newest,
        "operations": running.collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn fifty_listeners_cost_one_poll_a_second() {
        let (polled, polls) = (Polled::default(), AtomicU32::new(0));
        let ask = async || {
            let poll = async || {
                polls.fetch_add(1, Ordering::Relaxed);
                sleep(Duration::from_millis(10)).await;
                Ok(News { document: Value::Null, is_last: false })
            };
            polled.fresh(poll).await.unwrap();
        };
        for second in 1..=5 {
            futures_util::future::join_all((0..50).map(|_| ask())).await;
            assert_eq!(polls.load(Ordering::Relaxed), second);
            sleep(PAUSE).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_store_is_asked_less_often() {
        let (polled, polls) = (Polled::default(), AtomicU32::new(0));
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(100) {
            let poll = async || {
                polls.fetch_add(1, Ordering::Relaxed);
                sleep(Duration::from_secs(2)).await;
                Ok(News { document: Value::Null, is_last: false })
            };
            polled.fresh(poll).await.unwrap();
            sleep(PAUSE).await;
        }
        let polls = polls.load(Ordering::Relaxed);
        assert!((9..=12).contains(&polls), "{polls} polls of 2 s in 100 s");
    }

    #[tokio::test]
    async fn a_topic_is_forgotten_with_its_last_listener() {
        let events = Events::default();
        let topic = |store: &str| Topic::Overview { store: store.to_owned() };
        let (one, same) = (events.polled(&topic("a")), events.polled(&topic("a")));
        assert!(Arc::ptr_eq(&one, &same));
        drop((one, same));
        let _other = events.polled(&topic("b"));
        assert_eq!(events.topics.lock().unwrap().len(), 1);
    }
}
