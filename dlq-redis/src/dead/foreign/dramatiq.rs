//! Members of `NAMESPACE:QUEUE.XQ`, as dramatiq 2.2.1 writes them; the hash `NAMESPACE:QUEUE.XQ.msgs` has each as JSON.
//!
//! | field | what |
//! |---|---|
//! | `queue_name`, `actor_name`, `message_id`, `message_timestamp` | queue, function, identity, when it was sent in milliseconds |
//! | `options.retries` | runs but the first; absent where it was not tried again |
//! | `options.traceback` | of the last run after which it was tried again, which ended at `options.requeue_timestamp`; that of the very last run is not kept |
//!
//! The payload is the whole of the JSON, byte for byte. The score is when it died.

use bytes::Bytes;
use dlq_core::log::Content;
use dlq_core::{Cause, ErrorClass, Reason};
use redis::Cmd;
use serde::Deserialize;

use super::Dialect;
use super::story::{Story, millis};
use super::trace::python;

#[derive(Deserialize)]
struct Message {
    actor_name: String,
    message_id: String,
    #[serde(default)]
    message_timestamp: Option<u64>,
    #[serde(default)]
    options: Options,
}

#[derive(Default, Deserialize)]
struct Options {
    #[serde(default)]
    retries: Option<u32>,
    #[serde(default)]
    traceback: Option<String>,
    #[serde(default)]
    requeue_timestamp: Option<u64>,
}

/// Asks for a message.
pub(super) fn look(key: &str, id: &[u8]) -> Cmd {
    let mut get = redis::cmd("HGET");
    get.arg(format!("{key}.msgs")).arg(id);
    get
}

/// Reads a message. One that is not as dramatiq writes it keeps its bytes, and nothing else is known of it.
pub(super) fn read(
    base: &str,
    queue: &str,
    id: &[u8],
    score: &[u8],
    bytes: Option<Bytes>,
) -> Content {
    let member = String::from_utf8_lossy(id);
    let Some(bytes) = bytes else {
        return Content::Damaged(format!(
            "its message `{member}` has gone from the hash of messages"
        ));
    };
    let mut story = Story::new(Dialect::Dramatiq, queue, base);
    story.keep("redis-message-id", id);
    story.died_at = millis(score);
    story.identity = id.to_vec();
    if let Ok(message) = serde_json::from_slice::<Message>(&bytes) {
        story.identity = message.message_id.clone().into_bytes();
        story.id = Some(message.message_id);
        story.event = Some(message.actor_name);
        let at = message.message_timestamp.map(|at| at.to_string());
        story.published_at = at.and_then(|at| millis(at.as_bytes()));
        if let Some(retries) = message.options.retries {
            story.attempts = Some(retries.saturating_add(1));
            // It was worth another attempt at least once.
            if retries > 0 {
                story.class = Some(ErrorClass::Transient);
                story.reason = Some(Reason::Exhausted);
            }
        }
        if let Some(error) = message.options.traceback.as_deref().and_then(python) {
            story.cause = Some(Cause::Error);
            let ended = message.options.requeue_timestamp.map(|at| at.to_string());
            let ended = ended.and_then(|at| millis(at.as_bytes()));
            // The traceback is that of the run before the last one, of which none is kept.
            story.failed_run = message.options.retries.map(|run| (run, ended));
            story.errors.push(error);
        }
    }
    story.payload = Some(bytes);
    Content::Letter(Box::new(story.letter()))
}
