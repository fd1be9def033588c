//! [`Overdue`]: retry records that stay with the server beyond their time.

use std::time::Duration;

use async_nats::HeaderMap;
use async_nats::jetstream::Context;
use async_nats::jetstream::stream::Config;
use dlq_core::{SharedClock, StoreError, Timestamp, TransportError, TransportErrorKind};

use crate::client::domain::StreamDomain;
use crate::client::leader::{self, Kept, Which};
use crate::client::publish::rewrite;
use crate::consumer::lease_check::LeaseCheck;

const OPERATION: &str = "write an overdue retry record anew";

/// Time after its due time for which a record may stay with a healthy server: a due record takes less to reach all
/// replicas, and clocks differ by less.
pub(crate) const LATE: Duration = Duration::from_secs(60);

/// Number of records that are examined in a turn although they are not late, and their bytes: each comes with its
/// payload.
const STEPS: usize = 256;
const BYTES: usize = 1024 * 1024;

/// When the server was told to hand it out.
pub(crate) fn due(headers: &HeaderMap) -> Option<Timestamp> {
    headers.get("Nats-Schedule")?.as_str().strip_prefix("@at ")?.parse().ok()
}

/// Looks once in a lease at some of the records of a consumer that wait, in turn, and sees that those are handed out which
/// are due for more than a minute.
///
/// A server that has no room when a schedule fires does not try it again until it starts anew or another one leads its
/// stream (seen of nats-server 2.15.2, so in the source since 2.12). Such a record is written again as it is, under its own
/// subject, which the server does in one step: it takes the place of the other, and has a schedule that fires at once. That
/// is refused when the record has been handed out meanwhile; and the server removes by subject what it hands out. So
/// that one comes once, whoever writes it anew, however often, and also when it was not late by the server's clock.
#[derive(Debug)]
pub(crate) struct Overdue {
    waiting: Waiting,
    /// Sequence at which the next turn begins.
    from: u64,
    looks: LeaseCheck<Result<u64, StoreError>>,
}

/// The records of a consumer that wait.
#[derive(Clone, Debug)]
struct Waiting {
    stream: Config,
    filter: String,
    clock: SharedClock,
}

impl Overdue {
    /// Records of this stream whose subjects match.
    pub(crate) fn new(stream: Config, filter: String, clock: SharedClock) -> Self {
        let waiting = Waiting { stream, filter, clock };
        Self { waiting, from: 1, looks: LeaseCheck::default() }
    }

    /// Looks on when it is time, and fails when one was late and could not be written.
    pub(crate) fn note(
        &mut self,
        context: &Context,
        lease: Duration,
    ) -> Result<(), TransportError> {
        let seen = self.looks.seen();
        // After an error the next turn looks at the same part again.
        if let Some(Ok(next)) = seen {
            self.from = next;
        }
        self.looks.again(lease, || {
            let (waiting, context, from) = (self.waiting.clone(), context.clone(), self.from);
            async move { waiting.turn(&context, from).await }
        });
        let Some(Err(error)) = seen else { return Ok(()) };
        let told = TransportError::new(TransportErrorKind::Unavailable, OPERATION);
        Err(told.with_detail(error.to_string()).with_source(error))
    }
}

impl Waiting {
    /// Looks at them from there on, and says where to go on.
    async fn turn(&self, context: &Context, mut from: u64) -> Result<u64, StoreError> {
        let name = &self.stream.name;
        let home = StreamDomain::new(context.clone(), name);
        let (mut steps, mut bytes) = (0, 0);
        // What is written in this turn is looked at in another one.
        let mut end = u64::MAX;
        // Only records that are in time count as steps: what is late is written anew however many there are.
        while steps < STEPS && bytes < BYTES {
            let which = Which::From(&self.filter, from);
            let found = match leader::get(context, OPERATION, name, which).await {
                Ok(Some(found)) if found.sequence < end => found,
                // The turn is at the end, or at what it has written itself: the next one begins with the first record.
                Ok(_) => return Ok(1),
                // What is not answered is asked again later.
                Err(_) => return Ok(from),
            };
            from = found.sequence + 1;
            match due(&found.map()) {
                // One that was written only now, by whomever, has yet to show whether it fires.
                Some(due) if self.clock.now().since(due.max(found.time)) >= LATE => {
                    if let Some(sequence) = self.anew(&home, &found, due).await? {
                        end = end.min(sequence);
                    }
                }
                _ => (steps, bytes) = (steps + 1, bytes + found.payload.len()),
            }
        }
        // `from` is handed on, so that a long stream is looked at over several leases.
        Ok(from)
    }

    async fn anew(
        &self,
        home: &StreamDomain,
        found: &Kept,
        due: Timestamp,
    ) -> Result<Option<u64>, StoreError> {
        // No sequence means that the record was handed out meanwhile, which is as well.
        let sequence = rewrite(home, &self.stream, OPERATION, found).await?;
        if sequence.is_some() {
            tracing::warn!(
                subject = %found.subject,
                stream = self.stream.name,
                %due,
                "the server has not handed out a retry record in time, as when it had no room; it was written anew"
            );
        }
        Ok(sequence)
    }
}
