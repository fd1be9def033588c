//! Reads the stream of dead letters, and sends letters back.

mod extent;
mod handout;
mod ledger;
mod reading;
pub(crate) mod replay;
pub(crate) mod scan;
mod send;
mod sent;
mod snapshot;
mod stored;

use std::sync::Arc;

use async_nats::jetstream::Context;
use dlq_core::{BindingKey, Timestamp};
use tokio::sync::Mutex;

pub use extent::{Extent, Progress};
pub use reading::LetterScan;
pub use replay::{Hearer, NatsReplay, ReplayOutcome, ReplayPlan, ReplayReport, Replayed, Skipped};
pub use send::NatsTarget;
pub(crate) use stored::Passed;
pub use stored::StoredLetter;

pub(crate) use sent::SentBack;

use crate::jetstream::JetStream;
use crate::streams::DlqStream;
use snapshot::Snapshot;

/// The letters of a stream, as [`Letters`](dlq_core::store::Letters): listed, filtered, grouped and counted as a store
/// does it.
///
/// Several copies of a death are one letter, of several deaths of a message the latest counts, and the same death with
/// other bytes is a second letter, as in a store. All that the leader of the stream has is read: where a server that keeps
/// a copy is behind it is asked again, and one that stays behind is an error. What is in the stream and was not written by a
/// [`NatsSink`](crate::NatsSink), or has lost a part that stood aside, is passed over, with a warning.
///
/// # Cost
///
/// The stream is read from its beginning when it is first asked for, and from there on what was written since; all of it
/// again only when a message was removed of which there is another copy or an earlier death, or more than 10,000 of others
/// were removed from between. Clones share what was read. Letters are kept without payloads of more than 1 KiB, and need one to three KiB
/// each. For millions of letters there are stores.
#[derive(Clone, Debug)]
pub struct NatsLetters {
    context: Context,
    /// See [`JetStream::api`].
    api: Option<&'static str>,
    stream: DlqStream,
    ledger: String,
    key: Option<BindingKey>,
    key_header: Option<String>,
    since: Option<Timestamp>,
    kept: Arc<Mutex<Option<Arc<Snapshot>>>>,
}

impl NatsLetters {
    /// The letters of this stream, which is looked for when it is read.
    #[must_use]
    pub fn new(jetstream: &impl JetStream, stream: DlqStream) -> Self {
        let (context, api) = (jetstream.context(), jetstream.api());
        let ledger = ledger_of(&stream);
        let (key, key_header, since, kept) = (None, None, None, Arc::default());
        Self { context, api, stream, ledger, key, key_header, since, kept }
    }

    /// Sets the name of the key-value bucket that says which letters were [sent back](NatsReplay). Defaults to the
    /// stream's with `_REPLAYS`.
    #[must_use]
    pub fn with_ledger(mut self, bucket: impl Into<String>) -> Self {
        self.ledger = bucket.into();
        self
    }

    /// Sets the secret by which letters are bound that are sent back to a stream; the same as the
    /// [consumer's](crate::NatsConsumer::with_binding_key). Defaults to none.
    #[must_use]
    pub fn with_binding_key(mut self, key: BindingKey) -> Self {
        self.key = Some(key);
        self
    }

    /// Sets the header that carries the key of a message that is sent to its origin; the same as the
    /// [consumer's](crate::NatsConsumer::with_key_header). Defaults to none.
    #[must_use]
    pub fn with_key_header(mut self, name: impl Into<String>) -> Self {
        self.key_header = Some(name.into());
        self
    }
}

impl NatsLetters {
    /// Reads only what was written at this time or later, for which the server seeks: what is before it costs nothing. A
    /// letter that died before it and again since is then known by its later death alone. Defaults to everything.
    #[must_use]
    pub fn with_since(mut self, since: Timestamp) -> Self {
        self.since = Some(since);
        self.kept = Arc::default();
        self
    }
}

/// The ledger of a stream, where no other is named.
pub(crate) fn ledger_of(stream: &DlqStream) -> String {
    format!("{}_REPLAYS", stream.name)
}

const _: () = {
    const fn letters<L: dlq_core::store::Letters + Clone>() {}
    letters::<NatsLetters>();
};
