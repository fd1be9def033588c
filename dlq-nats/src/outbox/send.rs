use std::borrow::Cow;
use std::collections::BTreeMap;

use async_nats::connection::State;
use async_nats::jetstream::context::traits::TimeoutProvider as _;
use dlq_core::outbox::{Outgoing, Sent};
use dlq_core::{StoreError, StoreErrorKind};
use futures_util::{StreamExt as _, stream};
use tokio::time::{Instant, timeout_at};

use super::{NatsOutbox, NoKeeper};
use crate::client::inboxes::Heard;
use crate::client::permissions::unanswered;
use crate::client::streams::find;
use crate::dead::dispatch::{Dispatch, Parcel, REPLAYING, Unsent, consumer_of};
use crate::dead::replay::{self, Hears};

/// Letters that are handed to the server at once, at most.
const LETTERS: usize = 64;
/// Bytes of payload that are handed to the server at once, unless one letter has more.
const BYTES: usize = 512 * 1024;
/// Batches of that size that are on their way. The client gives each letter 5 s to be confirmed, also from far away, so
/// there must not be too many.
const AT_ONCE: usize = 4;

/// A letter and its place in the batch.
type Numbered<'a> = (usize, &'a Outgoing);

/// A stream that takes letters.
struct OpenStream {
    dispatch: Dispatch,
    /// The consumers that keep a message alive, where retention is by interest.
    wanted: Option<Vec<Hears>>,
}

/// Reason why a stream takes no letters.
enum Shut {
    Absent(String),
    /// The server has not said.
    Unknown(String),
}

impl NatsOutbox {
    pub(super) async fn send_all(
        &self,
        batch: &[Outgoing],
        until: Instant,
    ) -> Result<Vec<Sent>, StoreError> {
        if !self.is_connected() {
            // What is handed to a client without a connection is sent when it has one, which may be after `until`.
            return Err(unavailable(unanswered(&self.context.client(), "")));
        }
        let mut sent: Vec<Option<Sent>> = batch.iter().map(|_| None).collect();
        let keepers = self.keepers(batch.iter().map(|one| &one.to).collect()).await;
        let mut streams: BTreeMap<&str, Vec<Numbered<'_>>> = BTreeMap::new();
        for (number, one) in batch.iter().enumerate() {
            match &keepers[&one.to] {
                Ok(stream) => streams.entry(stream).or_default().push((number, one)),
                Err(NoKeeper::None(why)) => sent[number] = Some(refused(why)),
                Err(NoKeeper::Unknown(why)) => sent[number] = Some(later(why)),
            }
        }
        let each = streams.iter().map(|(name, letters)| self.send_to(name, letters, until));
        let each: Vec<_> = each.collect();
        let mut each = stream::iter(each).buffer_unordered(AT_ONCE);
        while let Some(answers) = each.next().await {
            for (number, answer) in answers {
                sent[number] = Some(answer);
            }
        }
        // Every letter has an answer by now. One without would be looked for before it is sent again.
        let missing = || Sent::Unknown(unavailable("the letter was passed over".to_owned()));
        Ok(sent.into_iter().map(|sent| sent.unwrap_or_else(missing)).collect())
    }

    fn is_connected(&self) -> bool {
        self.context.client().connection_state() == State::Connected
    }

    async fn send_to(
        &self,
        name: &str,
        letters: &[Numbered<'_>],
        until: Instant,
    ) -> Vec<(usize, Sent)> {
        let all = |answer: &dyn Fn() -> Sent| -> Vec<(usize, Sent)> {
            letters.iter().map(|(number, _)| (*number, answer())).collect()
        };
        let OpenStream { dispatch, wanted } = match self.open_stream(name).await {
            Ok(open) => open,
            Err(Shut::Absent(why)) => return all(&|| refused(&why)),
            Err(Shut::Unknown(why)) => return all(&|| later(&why)),
        };
        let mut answers = Vec::with_capacity(letters.len());
        let mut chunks: Vec<Vec<Numbered<'_>>> = Vec::new();
        let (mut alone, mut bytes) = (Vec::new(), 0);
        for &(number, one) in letters {
            let subject = &*one.to.subject;
            let hears = |all: &Vec<Hears>| all.iter().any(|one| one.hears(subject));
            // A retry record may be in parts, so that it is not one of many messages that go together.
            if one.to.consumer.is_some() {
                alone.push(self.give_back(&dispatch, (number, one), name, until));
            } else if !wanted.as_ref().is_none_or(hears) {
                answers.push((number, refused(&replay::unwanted(name, subject))));
            } else {
                let size = one.letter.message.payload().map_or(0, |payload| payload.len());
                bytes += size;
                match chunks.last_mut().filter(|last| last.len() < LETTERS && bytes <= BYTES) {
                    Some(last) => last.push((number, one)),
                    // A letter that has more than `BYTES` by itself is a chunk of its own.
                    None => {
                        chunks.push(vec![(number, one)]);
                        bytes = size;
                    }
                }
            }
        }
        let chunks = chunks.iter().map(|chunk| self.send_chunk(&dispatch, chunk, name, until));
        let chunks: Vec<_> = chunks.collect();
        let mut sent = stream::iter(chunks).buffer_unordered(AT_ONCE);
        while let Some(chunk) = sent.next().await {
            answers.extend(chunk);
        }
        drop(sent);
        answers.extend(stream::iter(alone).buffer_unordered(LETTERS).collect::<Vec<_>>().await);
        answers
    }

    async fn open_stream(&self, name: &str) -> Result<OpenStream, Shut> {
        let info = match find(&self.context, name).await {
            Ok(Some(info)) => info,
            Ok(None) => {
                return Err(Shut::Absent(format!(
                    "there is no stream `{name}`; create it, name a subject, or say in which JetStream domain it is"
                )));
            }
            Err(error) => return Err(Shut::Unknown(error.to_string())),
        };
        let mut wanted = None;
        if replay::is_choosy(&info) {
            let mut hears = match replay::consumers(&self.context, name).await {
                Ok(consumers) => consumers,
                Err(error) => return Err(Shut::Unknown(error.to_string())),
            };
            // A user who may not list streams is not told which of them copy this one. Fewer letters are sent then,
            // and none that would be forgotten.
            let all = replay::streams(&self.context).await.unwrap_or_default();
            hears.extend(replay::copies(&all, name));
            wanted = Some(hears);
        }
        Ok(OpenStream { dispatch: self.dispatch(name).await, wanted })
    }

    /// Hands letters to the server at once, and by itself each that it does not keep, to learn why.
    async fn send_chunk(
        &self,
        dispatch: &Dispatch,
        chunk: &[Numbered<'_>],
        stream: &str,
        until: Instant,
    ) -> Vec<(usize, Sent)> {
        let mut answers = Vec::with_capacity(chunk.len());
        let (mut parcels, mut publications) = (Vec::new(), Vec::new());
        for (number, one) in chunk {
            let parcel = parcel(one, stream);
            match dispatch.publication(&parcel, false) {
                Ok(publication) => {
                    parcels.push((*number, parcel));
                    publications.push(publication);
                }
                Err(unsent) => answers.push((*number, answer(unsent, stream))),
            }
        }
        let may = || Instant::now() < until && self.is_connected();
        let heard = dispatch.inboxes.publish(publications, may);
        // What was sent just before `until` is answered soon after.
        let heard = timeout_at(until + dispatch.context.timeout(), heard).await;
        // What was heard until then is dropped with the future. The letters are looked for before they are sent
        // again.
        let heard = heard.unwrap_or_else(|_| vec![Heard::Nothing; parcels.len()]);
        let mut alone = Vec::new();
        for ((number, parcel), heard) in parcels.into_iter().zip(heard) {
            match heard {
                Heard::Kept { .. } => answers.push((number, Sent::Confirmed)),
                Heard::Unsent => answers.push((number, later(OVER))),
                Heard::Nothing | Heard::Elsewhere => {
                    answers.push((number, Sent::Unknown(dispatch.unheard(&parcel.subject))));
                }
                // A letter that is sent by itself is refused again, and the server says why.
                Heard::Refused => alone.push(self.send_alone(dispatch, number, parcel, until)),
            }
        }
        answers.extend(stream::iter(alone).buffer_unordered(LETTERS).collect::<Vec<_>>().await);
        answers
    }

    async fn send_alone(
        &self,
        dispatch: &Dispatch,
        number: usize,
        parcel: Parcel<'_>,
        until: Instant,
    ) -> (usize, Sent) {
        if Instant::now() >= until || !self.is_connected() {
            return (number, later(OVER));
        }
        let sent = dispatch.send(&parcel).await;
        (number, sent.map_or_else(|unsent| answer(unsent, parcel.stream), |()| Sent::Confirmed))
    }

    async fn give_back(
        &self,
        dispatch: &Dispatch,
        (number, one): Numbered<'_>,
        stream: &str,
        until: Instant,
    ) -> (usize, Sent) {
        if Instant::now() >= until || !self.is_connected() {
            return (number, later(OVER));
        }
        let Some(retries) = self.retries.as_ref().filter(|retries| retries.name == stream) else {
            return (number, refused("the retry stream of its address is not that of this outbox"));
        };
        let consumer = one.to.consumer.as_deref().unwrap_or_else(|| consumer_of(&one.letter));
        // Boxed: it is large, and few letters go this way.
        let parcel = parcel(one, stream);
        let sent = Box::pin(dispatch.give_back(&parcel, retries, consumer)).await;
        (number, sent.map_or_else(|unsent| answer(unsent, stream), |()| Sent::Confirmed))
    }
}

const OVER: &str = "the time for sending was over, or the connection lost, before its turn came";

fn parcel<'a>(one: &'a Outgoing, stream: &'a str) -> Parcel<'a> {
    Parcel {
        letter: &one.letter,
        stream,
        subject: Cow::Borrowed(&one.to.subject),
        once: one.once,
        replay: Cow::Borrowed(&one.replay),
    }
}

fn answer(unsent: Unsent, stream: &str) -> Sent {
    match unsent {
        Unsent::Letter(error) => Sent::Refused(error),
        Unsent::Full(error) => {
            let text = format!("stream `{stream}` is full; make room in it, or raise its limits");
            Sent::Later(unavailable(text).with_source(error))
        }
        Unsent::Later(error) => Sent::Later(error),
        // The server may have stored it all the same.
        Unsent::Server(error) => Sent::Unknown(error),
    }
}

fn refused(why: &str) -> Sent {
    Sent::Refused(StoreError::new(StoreErrorKind::Refused, REPLAYING).with_detail(why))
}

fn later(why: &str) -> Sent {
    Sent::Later(unavailable(why.to_owned()))
}

fn unavailable(why: String) -> StoreError {
    StoreError::new(StoreErrorKind::Unavailable, REPLAYING).with_detail(why)
}
