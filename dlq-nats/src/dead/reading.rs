use std::borrow::Cow;

use async_nats::jetstream::consumer::DeliverPolicy;
use async_nats::jetstream::stream::Info;
use dlq_core::{DeadLetter, StoreError, StoreErrorKind};
use futures_util::{Stream, StreamExt, TryStreamExt, stream};

use super::picture::Row;
use super::scan::{Scan, Scanned};
use super::stored::{NONE, Passed, payload};
use super::{NatsLetters, StoredLetter};
use crate::client::message_meta::MessageMeta;
use crate::client::streams::find;

pub(super) const READING: &str = "read dead letters";

impl NatsLetters {
    /// These letters, which come in the order of the stream, with their payloads and sequences: first those whose
    /// payloads are kept, and then those that are read. What has gone of the latter is left out.
    pub(super) fn whole<'a>(
        &self,
        rows: &[&'a Row],
    ) -> impl Stream<Item = Result<(u64, Cow<'a, DeadLetter>), StoreError>> + Send + use<'a> {
        let (kept, rows): (Vec<&Row>, Vec<&Row>) =
            rows.iter().partition(|row| row.whole().is_some());
        let kept = kept
            .into_iter()
            .filter_map(|row| row.whole().map(|letter| Ok((row.place, Cow::Borrowed(letter)))));
        let first = rows.first().map_or(0, |row| row.place);
        let last = rows.last().map_or(0, |row| row.place);
        let start_sequence = first.max(1);
        let from = DeliverPolicy::ByStartSequence { start_sequence };
        let scan = self.messages_from(from, Some(last), false, false);
        let rows = rows.into_iter().peekable();
        let begin = (self.context.clone(), scan, rows, Passed::default());
        let read = stream::try_unfold(begin, |(context, mut scan, mut rows, mut passed)| async {
            while rows.peek().is_some() {
                let Some((message, place)) = scan.try_next().await? else { break };
                // The scan is past them, so that these letters have gone from the stream.
                while rows.next_if(|row| row.place < place.sequence).is_some() {}
                let Some(row) = rows.next_if(|row| row.place == place.sequence) else {
                    continue;
                };
                let (headers, inline) = (message.headers.as_ref(), message.payload.clone());
                let headers = headers.unwrap_or(&NONE);
                let payload = payload(&context, &place.stream, headers, inline).await;
                let payload = passed.unless_damaged(payload, place.sequence)?;
                if let Some(letter) = payload.and_then(|payload| row.with_payload(payload)) {
                    let next = (context, scan, rows, passed);
                    return Ok(Some(((row.place, Cow::Owned(letter)), next)));
                }
            }
            Ok(None)
        });
        stream::iter(kept).chain(read)
    }

    pub(super) fn messages_from(
        &self,
        from: DeliverPolicy,
        to: Option<u64>,
        follow: bool,
        headers_only: bool,
    ) -> Scanned {
        let scan = Scan {
            operation: READING,
            stream: self.stream.name.clone(),
            subject: format!("{}.>", self.stream.prefix),
            from,
            headers_only,
            to,
            follow,
        };
        scan.run(self.context.clone())
    }

    /// The letter in a message that a consumer of the stream was handed. `None`, and a warning, when it is none.
    ///
    /// # Errors
    ///
    /// `Unavailable` when a part of the letter that stands aside cannot be read.
    pub async fn letter_in(
        &self,
        message: &async_nats::jetstream::Message,
    ) -> Result<Option<StoredLetter>, StoreError> {
        match message.reply.as_ref().and_then(|reply| MessageMeta::read(reply)) {
            Some(place) => {
                let read = StoredLetter::read(&self.context, message, &place).await?;
                if read.is_none() {
                    Passed::default().foreign(place.sequence);
                }
                Ok(read)
            }
            None => Ok(None),
        }
    }

    pub(super) async fn info(&self) -> Result<Info, StoreError> {
        let name = &self.stream.name;
        let info = find(&self.context, name).await.map_err(|error| error.for_store(READING))?;
        info.ok_or_else(|| {
            let text = format!("there is no stream `{name}`");
            StoreError::new(StoreErrorKind::NotFound, READING).with_detail(text)
        })
    }
}
