//! Check whether there is a letter of a message that is gone.
//!
//! When a message was published is a part of the identity of its letter, and of one that is gone nobody can say it any
//! more: a letter without payload would be another one for servers and readers alike. So before one is written, the
//! stream of letters is read from the moment on at which the death was told of.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_nats::datetime;
use async_nats::jetstream::Context;
use async_nats::jetstream::consumer::DeliverPolicy;
use bytes::Bytes;
use dlq_core::protocol::Decoded;
use dlq_core::{Position, StoreError, StoreErrorKind, Timestamp};
use futures_util::TryStreamExt as _;
use tokio::sync::oneshot::{self, error::TryRecvError};

use super::OPERATION;
use super::advisory::Advisory;
use crate::client::publish::{receive, unwritable};
use crate::client::streams::DlqStream;
use crate::client::wire;
use crate::dead::scan::Scan;

/// Maximum difference between the clocks of two servers.
pub(super) const SKEW: Duration = Duration::from_secs(10);

/// Returns the permissions under this `api` to read the letters.
pub(super) fn needs(api: &str, letters: &DlqStream) -> [String; 3] {
    let name = &letters.name;
    [
        format!("{api}.CONSUMER.CREATE.{name}.>"),
        format!("{api}.CONSUMER.MSG.NEXT.{name}.*"),
        format!("{api}.STREAM.MSG.GET.{name}"),
    ]
}

/// Shared look-up of letters. Callers that ask during a look are answered together, by the next look.
#[derive(Debug, Default)]
pub(super) struct Written {
    asked: Mutex<Vec<Asked>>,
    turn: tokio::sync::Mutex<()>,
}

#[derive(Debug)]
struct Asked {
    about: Advisory,
    answer: oneshot::Sender<Result<bool, String>>,
}

impl Written {
    /// Returns true if `letters` has one of the death that was reported in these words.
    ///
    /// # Errors
    ///
    /// When the stream cannot be read.
    pub(super) async fn has(
        &self,
        context: &Context,
        letters: &DlqStream,
        about: &Advisory,
    ) -> Result<bool, StoreError> {
        let (answer, mut heard) = oneshot::channel();
        // The question is noted before the turn is waited for: whoever has it next reads the stream once for all of them.
        self.asked().push(Asked { about: about.clone(), answer });
        let _turn = self.turn.lock().await;
        // The answer of whoever had the turn before, if any.
        let answer = match heard.try_recv() {
            Err(TryRecvError::Empty) => {
                let asked = std::mem::take(&mut *self.asked());
                answer_all(context, letters, asked).await;
                heard.try_recv()
            }
            answer => answer,
        };
        answer.unwrap_or_else(|_| Err("who looked was stopped".to_owned())).map_err(|why| {
            let text = format!("whether there is a letter of it could not be seen: {why}");
            StoreError::new(StoreErrorKind::Unavailable, OPERATION).with_detail(text)
        })
    }

    fn asked(&self) -> MutexGuard<'_, Vec<Asked>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn answer_all(context: &Context, letters: &DlqStream, asked: Vec<Asked>) {
    let about: Vec<&Advisory> = asked.iter().map(|asked| &asked.about).collect();
    match look(context, letters, &about).await {
        Ok(found) => {
            for (asked, found) in asked.into_iter().zip(found) {
                let _ = asked.answer.send(Ok(found));
            }
        }
        Err(error) => {
            let why = error.to_string();
            for asked in asked {
                let _ = asked.answer.send(Err(why.clone()));
            }
        }
    }
}

/// Returns for each of them whether it has a letter.
async fn look(
    context: &Context,
    letters: &DlqStream,
    about: &[&Advisory],
) -> Result<Vec<bool>, StoreError> {
    let mut found = vec![false; about.len()];
    let Some(first) = about.iter().map(|about| about.timestamp).min() else { return Ok(found) };
    // Letters of a death were written after it; the clocks of servers differ.
    let first = i128::from(first.before(SKEW).as_nanos());
    let start_time = datetime::from_nanos(first).map_err(|error| unwritable(OPERATION, error))?;
    let scan = Scan {
        operation: OPERATION,
        stream: letters.name.clone(),
        subject: format!("{}.>", letters.prefix),
        from: DeliverPolicy::ByStartTime { start_time },
        headers_only: true,
        to: None,
        follow: false,
    };
    let mut scan = scan.run(context.clone());
    while found.contains(&false)
        && let Some((message, _)) = scan.try_next().await?
    {
        let headers = message.headers.clone().unwrap_or_default();
        let (_, decoded) = wire::split_ours(&wire::read(&headers));
        let may_be: Vec<usize> =
            (0..about.len()).filter(|&n| !found[n] && may_be_of(about[n], &decoded)).collect();
        if may_be.is_empty() {
            continue;
        }
        let whole = match receive(context, &letters.name, &headers, Bytes::new()).await {
            Err(error) if error.is_transient() => return Err(error),
            // Nobody can read it.
            Err(_) | Ok(None) => continue,
            Ok(Some(whole)) => whole,
        };
        let Some(facts) = whole.read.rest.facts else { continue };
        for n in may_be {
            found[n] = is_of(about[n], &decoded, facts.died_at);
        }
    }
    Ok(found)
}

/// Returns true if a letter with these headers may belong to that message: a letter that was sent back is not at the
/// position where it was born.
fn may_be_of(about: &Advisory, decoded: &Decoded) -> bool {
    (was_born_there(about, decoded) || decoded.generation > Some(0))
        && decoded.consumer == Some(about.calls_itself())
}

/// Returns true if a candidate is the letter. A death without a reporter was given the time at which it was found; a
/// message that was published later was in a stream that was created again.
fn is_of(about: &Advisory, decoded: &Decoded, died_at: Timestamp) -> bool {
    let told = about.timestamp;
    let had_been_published = decoded.original.timestamp.is_some_and(|at| at <= told.after(SKEW));
    let was_found_later = died_at > told && had_been_published;
    died_at == told || (was_found_later && was_born_there(about, decoded))
}

fn was_born_there(about: &Advisory, decoded: &Decoded) -> bool {
    let born = &decoded.original;
    born.topic.as_deref() == Some(about.stream.as_str())
        && born.offset == Some(Position::Offset(about.sequence))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_letter_is_of_the_death_that_was_told_of() {
        let told = Timestamp::from_millis(5_000);
        let about = Advisory::left("JOBS", "mail", 7, 1, told);
        let born = std::cell::Cell::new(Timestamp::from_millis(4_000));
        let is_of = |stream: &str, sequence, consumer: &str, generation, died_at| {
            let mut decoded = Decoded::default();
            decoded.original.timestamp = Some(born.get());
            decoded.original.topic = Some(stream.to_owned());
            decoded.original.offset = Some(Position::Offset(sequence));
            decoded.consumer = Some(consumer.to_owned());
            decoded.generation = Some(generation);
            may_be_of(&about, &decoded) && is_of(&about, &decoded, died_at)
        };
        let (before, after) =
            (told.before(Duration::from_secs(1)), told.after(Duration::from_secs(1)));
        assert!(is_of("JOBS", 7, "mail", 0, told));
        assert!(is_of("JOBS", 7, "mail", 0, after), "it was found before it was heard of");
        assert!(is_of("ORDERS", 2, "mail", 1, told), "it had been sent back");
        for (stream, sequence, consumer, generation, died_at) in [
            ("JOBS", 7, "mail", 0, before),
            ("JOBS", 7, "sms", 0, told),
            ("JOBS", 8, "mail", 0, told),
            ("USERS", 7, "mail", 0, told),
            ("ORDERS", 2, "mail", 1, after),
        ] {
            assert!(!is_of(stream, sequence, consumer, generation, died_at));
        }
        born.set(told.after(SKEW * 2));
        let much_later = told.after(SKEW * 3);
        assert!(!is_of("JOBS", 7, "mail", 0, much_later), "another of its sequence");
    }
}
