//! Members of `rq:failed:QUEUE`, as RQ 3.0.0 writes them; each names a hash `rq:job:ID` and a stream `rq:results:ID`.
//!
//! | field | what |
//! |---|---|
//! | `data` | a pickle in the format of zlib, which is neither unpacked nor loaded: its bytes are the payload |
//! | `description`, `origin`, `timeout` | how a person would call it, its queue, seconds that it may run |
//! | `created_at`, `ended_at` | when it was made, and when it failed |
//! | `exc_string` of the newest result | the traceback, in base64 and the format of zlib |
//!
//! Neither says how often the job has run, nor why it was not tried again.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use dlq_core::Cause;
use dlq_core::log::Content;
use miniz_oxide::inflate::decompress_to_vec_zlib_with_limit;
use redis::{Cmd, Value};

use super::Dialect;
use super::story::Story;
use super::trace::{Thrown, python};
use crate::dead::scan;

const FIELDS: [&str; 11] = [
    "data",
    "created_at",
    "ended_at",
    "description",
    "origin",
    "timeout",
    "status",
    "enqueued_at",
    "worker_name",
    "failure_ttl",
    "exc_info",
];
/// Base64 of a traceback that is read.
const MOST: usize = 256 * 1024;
/// Bytes of a traceback after decompression; a longer one is not read.
const LONGEST: usize = 256 * 1024;

/// Asks for a job and for the result of its last run.
pub(super) fn look(id: &[u8]) -> [Cmd; 2] {
    let mut get = redis::cmd("HMGET");
    get.arg([b"rq:job:", id].concat()).arg(&FIELDS);
    let mut result = redis::cmd("XREVRANGE");
    result.arg([b"rq:results:", id].concat()).arg("+").arg("-").arg("COUNT").arg(1);
    [get, result]
}

/// Reads a job.
pub(super) fn read(queue: &str, id: &[u8], values: &[Option<Bytes>], result: Value) -> Content {
    if values.iter().all(Option::is_none) {
        let text = format!("its job `rq:job:{}` has gone", String::from_utf8_lossy(id));
        return Content::Damaged(text);
    }
    let field = |name: &str| {
        let at = FIELDS.iter().position(|field| *field == name)?;
        values.get(at)?.as_ref()
    };
    let time = |name: &str| std::str::from_utf8(field(name)?).ok()?.parse().ok();
    let mut story = Story::new(Dialect::Rq, queue, format!("rq:queue:{queue}"));
    story.identity = id.to_vec();
    story.id = Some(String::from_utf8_lossy(id).into_owned());
    story.payload = field("data").cloned();
    if story.payload.is_none() {
        story.lacks("payload");
    }
    story.published_at = time("created_at");
    story.died_at = time("ended_at");
    for name in
        ["description", "origin", "timeout", "status", "enqueued_at", "worker_name", "failure_ttl"]
    {
        if let Some(value) = field(name) {
            story.keep(&name.replace('_', "-"), value);
        }
    }
    let result = scan::entries(result).pop();
    let trace = result.and_then(|raw| {
        let (_, text) = raw.pairs.into_iter().find(|(name, _)| name == b"exc_string")?;
        // Bounded before it is decoded: a traceback is of use to people, and anybody can write here.
        let bytes = (text.len() <= MOST).then(|| STANDARD.decode(text).ok()).flatten()?;
        inflate(&bytes)
    });
    // Where there are no results the hash may have the traceback.
    let trace = trace.or_else(|| inflate(field("exc_info")?));
    let trace = trace.map(|trace| String::from_utf8_lossy(&trace).into_owned());
    if let Some(error) = trace.as_deref().and_then(error) {
        story.cause = Some(Cause::Error);
        story.errors.push(error);
    }
    Content::Letter(Box::new(story.letter()))
}

/// Decompresses a traceback, unless it is damaged or too long.
fn inflate(bytes: &[u8]) -> Option<Vec<u8>> {
    decompress_to_vec_zlib_with_limit(bytes, LONGEST).ok()
}

fn error(trace: &str) -> Option<Thrown> {
    python(trace)
}
