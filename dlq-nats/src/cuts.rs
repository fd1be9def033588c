//! [`Cuts`]: connections that are lost while messages are on their way, again and again.
//!
//! A server keeps whatever headers a producer writes. Where the client cannot read one it gives its connection up, and
//! does so each time that the message is handed out to it; at a carriage return in a value its task breaks down, and the
//! client is no more. Nobody says which message it was. So after the second loss, and where a process begins with messages
//! that were handed out before, it is looked for among those that are out.

use std::time::Duration;

use async_nats::jetstream::Context;
use dlq_core::{StoreError, TransportError, TransportErrorKind};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::durable::Durable;
use crate::leader::{self, Which};

const LOOKING: &str = "look for a message that breaks the connection";
/// Within which time two losses are not bad luck: of many processes each loses its connection seldom.
const AGAIN: Duration = Duration::from_secs(60 * 60);
/// How many messages of each filter are looked at, beginning with the oldest that is out: it is this one in the end.
const MOST: usize = 32;

/// Looks for a message that breaks the connection, in the background.
#[derive(Debug, Default)]
pub(crate) struct Cuts {
    last: Option<Instant>,
    looking: JoinSet<Option<Unreadable>>,
}

/// Where a message stands that the client cannot read.
#[derive(Debug)]
struct Unreadable {
    sequence: u64,
    subject: String,
}

impl Cuts {
    /// The connection was lost while messages were on their way.
    pub(crate) fn note(&mut self, context: &Context, durable: &Durable) {
        let last = self.last.replace(Instant::now());
        if last.is_some_and(|last| last.elapsed() < AGAIN) {
            self.look(context, durable, false);
        }
    }

    /// Nobody knows how the one before has ended.
    pub(crate) fn begin(&mut self, context: &Context, durable: &Durable) {
        self.look(context, durable, true);
    }

    fn look(&mut self, context: &Context, durable: &Durable, if_redelivered: bool) {
        if !self.looking.is_empty() {
            return;
        }
        let (context, durable) = (context.clone(), durable.clone());
        self.looking.spawn(async move {
            match look(&context, &durable, if_redelivered).await {
                Ok(found) => found,
                Err(error) => {
                    tracing::debug!(%error, consumer = durable.name, "it could not be seen");
                    None
                }
            }
        });
    }

    /// Fails when one was found.
    pub(crate) fn told(&mut self, durable: &Durable) -> Result<(), TransportError> {
        let Some(Ok(Some(found))) = self.looking.try_join_next() else { return Ok(()) };
        let (stream, consumer) = (durable.of.name(), &durable.name);
        let Unreadable { sequence, subject } = found;
        let text = format!(
            "message {sequence} of stream `{stream}`, on `{subject}`, has a header that the client cannot read, and breaks \
             the connection each time that it is handed out to consumer `{consumer}`: it never runs and has no letter; mend \
             its producer, keep what it says (`nats stream get {stream} {sequence}`), then remove it (`nats stream rmm \
             {stream} {sequence}`)"
        );
        Err(TransportError::new(TransportErrorKind::Corrupt, "fetch").with_detail(text))
    }
}

async fn look(
    context: &Context,
    durable: &Durable,
    if_redelivered: bool,
) -> Result<Option<Unreadable>, StoreError> {
    let info = durable.find(context).await.map_err(|error| error.for_store(LOOKING))?;
    let Some(info) = info.filter(|info| info.num_ack_pending > 0) else { return Ok(None) };
    if if_redelivered && info.num_redelivered == 0 {
        return Ok(None);
    }
    let all = [">".to_owned()];
    let filters = if durable.filters.is_empty() { &all[..] } else { &durable.filters };
    for filter in filters {
        let mut next = info.ack_floor.stream_sequence + 1;
        for _ in 0..MOST {
            let first = Which::From(filter, next);
            let first = leader::get(context, LOOKING, durable.of.name(), first).await?;
            let out = first.filter(|kept| kept.sequence <= info.delivered.stream_sequence);
            let Some(kept) = out else { break };
            if !kept.is_readable() {
                let (sequence, subject) = (kept.sequence, kept.subject);
                return Ok(Some(Unreadable { sequence, subject }));
            }
            next = kept.sequence + 1;
        }
    }
    Ok(None)
}
