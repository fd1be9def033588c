//! Members of `PREFIX:QUEUE:failed`, as BullMQ 6.7.0 writes them; each names a hash `PREFIX:QUEUE:ID`.
//!
//! | field | what |
//! |---|---|
//! | `name`, `data`, `opts` | name, payload in JSON, options in JSON |
//! | `timestamp`, `finishedOn` | when it was added, and when it failed for the last time, in milliseconds |
//! | `atm`, `ats` | attempts made and attempts started |
//! | `failedReason` | message of the last error; `null` where something was thrown that is no error |
//! | `stacktrace` | array of JSON with a stack for each attempt, oldest first; some may have been left out at its front |

use bytes::Bytes;
use dlq_core::log::Content;
use dlq_core::{Cause, ErrorClass, Reason};
use redis::Cmd;
use serde::Deserialize;

use super::Dialect;
use super::story::{Story, millis};
use super::trace::{Thrown, javascript};

const FIELDS: [&str; 13] = [
    "name",
    "data",
    "opts",
    "timestamp",
    "finishedOn",
    "processedOn",
    "atm",
    "ats",
    "failedReason",
    "stacktrace",
    "priority",
    "delay",
    "parentKey",
];
/// A type of error that is never retried.
const UNRECOVERABLE: &str = "UnrecoverableError";

/// Options of a job, as far as they say why it was given up.
#[derive(Default, Deserialize)]
struct Options {
    #[serde(default)]
    attempts: Option<u32>,
}

/// Asks for a job.
pub(super) fn look(base: &str, id: &[u8]) -> Cmd {
    let mut get = redis::cmd("HMGET");
    get.arg([base.as_bytes(), b":", id].concat()).arg(&FIELDS);
    get
}

/// Reads a job.
pub(super) fn read(base: &str, queue: &str, id: &[u8], values: &[Option<Bytes>]) -> Content {
    if values.iter().all(Option::is_none) {
        let text = format!("its job `{base}:{}` has gone", String::from_utf8_lossy(id));
        return Content::Damaged(text);
    }
    let field = |name: &str| {
        let at = FIELDS.iter().position(|field| *field == name)?;
        values.get(at)?.as_ref()
    };
    let text = |name: &str| field(name).map(|text| String::from_utf8_lossy(text).into_owned());
    let number = |name: &str| text(name)?.parse::<u32>().ok();
    let mut story = Story::new(Dialect::Bullmq, queue, base);
    story.identity = id.to_vec();
    story.id = Some(String::from_utf8_lossy(id).into_owned());
    story.event = text("name");
    story.payload = field("data").cloned();
    if story.payload.is_none() {
        story.lacks("payload");
    }
    story.published_at = field("timestamp").and_then(|at| millis(at));
    story.died_at = field("finishedOn").and_then(|at| millis(at));
    story.attempts = number("atm");
    story.deliveries = number("ats").unwrap_or(0);
    for name in ["opts", "priority", "delay", "parentKey", "failedReason"] {
        if let Some(value) = field(name) {
            story.keep(&kebab(name), value);
        }
    }
    story.errors = errors(field("stacktrace"), text("failedReason"));
    // A string that was thrown is told neither from a missing reason nor by a stack.
    story.cause = (!story.errors.is_empty()).then_some(Cause::Error);
    let options = field("opts").and_then(|opts| serde_json::from_slice::<Options>(opts).ok());
    // BullMQ grants one attempt unless the job says otherwise.
    let granted = options.unwrap_or_default().attempts.unwrap_or(1).max(1);
    let made = story.attempts;
    if story.errors.last().is_some_and(|error| error.class == UNRECOVERABLE) {
        (story.class, story.reason) = (Some(ErrorClass::Permanent), Some(Reason::Permanent));
    } else if made.is_some_and(|made| made >= granted) {
        story.reason = Some(Reason::Exhausted);
        // It was worth another attempt at least once.
        story.class = (granted > 1).then_some(ErrorClass::Transient);
    }
    Content::Letter(Box::new(story.letter()))
}

fn errors(stacks: Option<&Bytes>, reason: Option<String>) -> Vec<Thrown> {
    let stacks = stacks.and_then(|stacks| serde_json::from_slice::<Vec<String>>(stacks).ok());
    let mut errors: Vec<Thrown> =
        stacks.unwrap_or_default().iter().map(|stack| javascript(stack)).collect();
    let Some(reason) = reason.filter(|reason| reason != "null") else { return errors };
    match errors.last_mut() {
        // The reason is the message, whatever the stack makes of its lines.
        Some(last) => last.message = reason,
        None => errors.push(Thrown { message: reason, ..Thrown::default() }),
    }
    errors
}

fn kebab(name: &str) -> String {
    let letters = name.chars().flat_map(|letter| {
        let dash = letter.is_ascii_uppercase().then_some('-');
        dash.into_iter().chain([letter.to_ascii_lowercase()])
    });
    letters.collect()
}
