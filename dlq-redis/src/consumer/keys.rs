//! [`Keys`]: names of keys that belong to one stream, all in its slot.

use std::sync::Arc;

use dlq_core::outbox::Once;
use dlq_core::{Binding, DeadLetter};

use crate::client::RedisError;

/// Names of keys that belong to one stream. They share its hash tag, so that one script reaches all of them.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    pub(crate) stream: Arc<str>,
    tag: String,
}

impl Keys {
    pub(crate) fn of(stream: &str) -> Result<Self, RedisError> {
        if stream.is_empty() {
            return Err(RedisError::config("the key of the stream is empty; name one"));
        }
        let tag = match hash_tag(stream) {
            Some(tag) => tag,
            // Keys that belong to the stream put the whole of its name into a tag, which such a brace would end early.
            None if stream.contains(['{', '}']) => {
                return Err(RedisError::config(format!(
                    "the key `{stream}` of the stream has a brace outside of a hash tag; write it as `{{tag}}rest` or without \
                     braces"
                )));
            }
            None => stream,
        };
        Ok(Self { stream: stream.into(), tag: tag.to_owned() })
    }

    /// The name by which handlers know the stream: its key without the braces of the tag.
    pub(crate) fn subject(&self) -> Arc<str> {
        self.stream.replacen('{', "", 1).replacen('}', "", 1).into()
    }

    fn named(&self, rest: &str) -> String {
        // A stream without a tag is one in its whole.
        if *self.stream == self.tag {
            return format!("{{{}}}:{rest}", self.tag);
        }
        format!("{}:{rest}", self.stream)
    }

    /// The stream of dead letters.
    pub(crate) fn dead(&self) -> String {
        self.named("dlq")
    }

    /// Returns true if a key of this name is in the same slot.
    pub(crate) fn is_near(&self, key: &str) -> bool {
        // A key without a tag counts with all of its name, as it does for the server.
        hash_tag(key).unwrap_or(key) == self.tag
    }

    /// The mark of a letter that was written.
    pub(crate) fn written(&self, death: &str) -> String {
        self.named(&format!("written:{death}"))
    }

    /// The mark of the letter of a death and these bytes.
    pub(crate) fn death(&self, letter: &DeadLetter) -> String {
        let binding = Binding::of(&letter.id, &letter.message);
        self.written(&format!("{}.{}.{binding}", letter.id, letter.generation))
    }

    /// The mark of a letter that was sent back.
    pub(crate) fn sent(&self, once: &Once) -> String {
        self.named(&format!("sent:{once}"))
    }

    /// Stands for every mark of a letter that was sent back.
    pub(crate) fn any_sent(&self) -> String {
        self.named("sent:")
    }

    /// Names of those who follow this stream of dead letters into a store.
    pub(crate) fn followers(&self) -> String {
        self.named("ingests")
    }

    /// The mark of one who follows this stream of dead letters.
    pub(crate) fn follower(&self, name: &str) -> String {
        self.named(&format!("ingest:{name}"))
    }

    /// The deaths in this stream of dead letters that were sent back.
    pub(crate) fn ledger(&self) -> String {
        self.named("replays")
    }

    /// The replays of this stream of dead letters that run, each by the time until which it is waited for.
    pub(crate) fn replaying(&self) -> String {
        self.named("replaying")
    }

    /// Entries of this group that are deferred for longer than a lease.
    pub(crate) fn later(&self, group: &str) -> String {
        self.named(&format!("later:{group}"))
    }

    /// Records of this consumer by the time when they are due.
    pub(crate) fn due(&self, consumer: &str) -> String {
        self.named(&format!("retry:{consumer}:due"))
    }

    /// The beginning of the name of every record of this consumer.
    pub(crate) fn records(&self, consumer: &str) -> String {
        self.named(&format!("retry:{consumer}:r:"))
    }

    /// Crash marks of one message.
    pub(crate) fn marks(&self, letter: &str) -> String {
        self.named(&format!("marks:{letter}"))
    }
}

/// The part of a key that decides its slot, if that is not the whole.
fn hash_tag(key: &str) -> Option<&str> {
    let (_, rest) = key.split_once('{')?;
    let (tag, _) = rest.split_once('}')?;
    (!tag.is_empty()).then_some(tag)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_of_a_stream_is_in_its_slot() {
        for stream in ["payments", "{payments}:in", "a{b}c"] {
            let keys = Keys::of(stream).unwrap();
            for key in
                [keys.dead(), keys.later("g"), keys.due("{c}"), keys.records("c"), keys.marks("1")]
            {
                assert!(keys.is_near(&key), "{key}");
            }
        }
        assert_eq!(Keys::of("payments").unwrap().dead(), "{payments}:dlq");
        assert_eq!(&*Keys::of("{payments}:in").unwrap().subject(), "payments:in");
        for stream in ["", "a}b", "{}", "a{b"] {
            assert!(Keys::of(stream).is_err(), "{stream}");
        }
    }
}
