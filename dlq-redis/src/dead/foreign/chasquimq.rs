//! Entries of `{chasqui:QUEUE}:dlq`, as chasquimq 1.3.0 writes them.
//!
//! | field | what |
//! |---|---|
//! | `d` | envelope of the job, or the bytes that could not be decoded; empty where the entry had none |
//! | `n` | name of the job |
//! | `source_id` | id of the entry in the stream from which it was moved |
//! | `reason` | why; two spellings for each, of the code and of its documentation |
//! | `detail` | for `malformed` alone |
//!
//! An envelope is an array of MessagePack: id, payload, time of creation in milliseconds, attempt counted from 0, and
//! perhaps a retry policy of this job.

use std::ops::Range;

use bytes::Bytes;
use dlq_core::log::Content;
use dlq_core::{Cause, ErrorClass, Reason, Timestamp};

use super::Dialect;
use super::msgpack::Reader;
use super::story::{Story, hex};
use super::trace::Thrown;
use crate::consumer::wire::Pair;
use crate::dead::scan::{Raw, millis_of};

/// A job as it stands in the field `d`.
#[derive(Debug, PartialEq, Eq)]
struct Envelope<'a> {
    id: &'a str,
    payload: &'a [u8],
    created: u64,
    attempt: u64,
    /// The bytes that the attempt takes.
    attempt_at: Range<usize>,
    retry: Option<&'a [u8]>,
}

impl<'a> Envelope<'a> {
    fn read(bytes: &'a [u8]) -> Option<Self> {
        let mut reader = Reader::new(bytes);
        let count = reader.array()?;
        if !(4..=5).contains(&count) {
            return None;
        }
        let id = reader.text()?;
        let payload = reader.binary()?;
        let (created, _) = reader.unsigned()?;
        let (attempt, attempt_at) = reader.unsigned()?;
        let retry = if count == 5 { Some(reader.any()?) } else { None };
        // Bytes that only begin like an envelope are none: what follows would be lost in a replay.
        reader.is_at_end().then_some(Self { id, payload, created, attempt, attempt_at, retry })
    }
}

/// Returns the envelope with attempts that start over; everything else is the same, also a retry policy. `None` for what is
/// no envelope.
pub(super) fn reset(bytes: &[u8]) -> Option<Vec<u8>> {
    let envelope = Envelope::read(bytes)?;
    let Range { start, end } = envelope.attempt_at;
    Some([&bytes[..start], &[0], &bytes[end..]].concat())
}

pub(super) fn field<'a>(pairs: &'a [Pair], name: &str) -> Option<&'a Bytes> {
    pairs.iter().find(|(one, _)| one == name.as_bytes()).map(|(_, value)| value)
}

/// Reads an entry. One that does not say why and from where it came was written by somebody else.
pub(super) fn read(queue: &str, raw: &Raw) -> Content {
    let pairs = &raw.pairs;
    let (Some(source), Some(reason)) = (field(pairs, "source_id"), field(pairs, "reason")) else {
        return Content::Foreign;
    };
    let Some(bytes) = field(pairs, "d") else {
        return Content::Damaged("its field `d` has gone".to_owned());
    };
    let mut story = Story::new(Dialect::Chasquimq, queue, format!("chasqui:{queue}"));
    story.died_at = Some(Timestamp::from_millis(millis_of(raw.place)));
    story.event = field(pairs, "n").map(|name| String::from_utf8_lossy(name).into_owned());
    story.keep("source-id", source);
    story.keep("reason", reason);
    match Envelope::read(bytes) {
        Some(envelope) => {
            story.identity = envelope.id.as_bytes().to_vec();
            story.id = Some(envelope.id.to_owned());
            story.payload = Some(bytes.slice_ref(envelope.payload));
            story.published_at = super::story::millis(envelope.created.to_string().as_bytes());
            let runs = envelope.attempt.saturating_add(1);
            story.attempts = Some(u32::try_from(runs).unwrap_or(u32::MAX));
            if let Some(retry) = envelope.retry {
                story.keep("retry", hex(retry));
            }
        }
        None => {
            // Bytes that are no envelope are kept as they are. The entry that they came from tells them from others.
            story.identity = [b"source:", &source[..]].concat();
            story.payload = Some(bytes.clone());
        }
    }
    let detail = field(pairs, "detail").map(|detail| String::from_utf8_lossy(detail).into_owned());
    judge(&mut story, &String::from_utf8_lossy(reason), detail);
    Content::Letter(Box::new(story.letter()))
}

/// Takes over the reason, in whichever spelling.
fn judge(story: &mut Story, reason: &str, detail: Option<String>) {
    // Neither handler nor panic leave a text: that stands in the stream of events, which is trimmed.
    let (class, why, cause) = match reason {
        "retries_exhausted" => (ErrorClass::Transient, Reason::Exhausted, None),
        "unrecoverable" => (ErrorClass::Permanent, Reason::Permanent, None),
        "panic" => (ErrorClass::Permanent, Reason::Permanent, Some(Cause::Panic)),
        "decode_failed" | "decode_fail" => {
            (ErrorClass::Permanent, Reason::Permanent, Some(Cause::Decode))
        }
        "malformed" => (ErrorClass::Permanent, Reason::Permanent, Some(Cause::Malformed)),
        "oversize_payload" | "oversize" => {
            (ErrorClass::Permanent, Reason::Permanent, Some(Cause::Oversize))
        }
        _ => return,
    };
    (story.class, story.reason, story.cause) = (Some(class), Some(why), cause);
    if let Some(cause) = cause {
        let message = detail.unwrap_or_else(|| reason.to_owned());
        story.errors.push(Thrown { message, ..Thrown::default() });
        if cause != Cause::Panic {
            // The handler did not run.
            story.attempts = Some(0);
        }
    }
    if cause == Some(Cause::Malformed) && story.payload.as_ref().is_some_and(Bytes::is_empty) {
        story.payload = None;
        story.lacks("payload");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Written by chasquimq 1.3.0.
    const TRIED: &[u8] = b"\x94\xba01M8A0WFF1G4K7DN8QZBECHME9\xc4\x0b\x81\xa5order\xa3o-1\xcf\x00\x00\x01\xa2\x14\x0e=\xe1\x01";
    const OWN_POLICY: &[u8] = b"\x95\xba01M8A0XKRE5DK0SR9JVYZEWHW3\xc4\x0b\x81\xa5order\xa3o-1\xcf\x00\x00\x01\xa2\x14\x0e\xcf\x0e\x01\x92\x02\xc0";

    #[test]
    fn an_envelope_is_read_and_its_attempts_start_over() {
        let read = Envelope::read(TRIED).unwrap();
        assert_eq!((read.id, read.attempt), ("01M8A0WFF1G4K7DN8QZBECHME9", 1));
        assert_eq!((read.payload, read.retry), (&b"\x81\xa5order\xa3o-1"[..], None));
        assert_eq!(read.created, 1_795_632_807_393);
        // As the library's own replay writes it.
        let mut fresh = TRIED.to_vec();
        *fresh.last_mut().unwrap() = 0;
        assert_eq!(reset(TRIED).unwrap(), fresh);
        let fresh = reset(OWN_POLICY).unwrap();
        assert!(fresh.ends_with(b"\x0e\xcf\x0e\x00\x92\x02\xc0"), "{fresh:?}");
        let large = [&TRIED[..TRIED.len() - 1], &[0xcd, 0x01, 0x00]].concat();
        assert_eq!(Envelope::read(&large).unwrap().attempt, 256);
        assert_eq!(reset(&large), reset(TRIED));
    }

    #[test]
    fn anything_else_is_no_envelope() {
        for cut in 0..TRIED.len() {
            assert_eq!(Envelope::read(&TRIED[..cut]), None, "cut at {cut}");
        }
        for bytes in
            [&[TRIED, b"x"].concat()[..], b"\xc1\xff junk", b"\x95\xa1a", b"\x93\x01\x02\x03"]
        {
            assert_eq!(Envelope::read(bytes), None, "{bytes:?}");
        }
    }
}
