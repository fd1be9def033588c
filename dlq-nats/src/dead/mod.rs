//! The stream of dead letters: the sink that writes it, the log that is read, and replay, which sends letters back.

pub(crate) mod dispatch;
mod entries;
mod follow;
mod handout;
mod ledger;
mod log;
mod picture;
mod queue_depth;
mod reading;
pub(crate) mod replay;
pub(crate) mod scan;
mod seen;
mod send;
mod sent;
pub(crate) mod sink;
mod stored;
mod watch;

use async_nats::jetstream::Context;
use dlq_core::BindingKey;

pub use log::NatsEntries;
pub use queue_depth::{Progress, QueueDepth};
pub use replay::{
    NatsReplay, ReplayOutcome, ReplayPlan, ReplayReport, Replayed, Skipped, Subscriber,
};
pub use send::NatsTarget;
pub(crate) use stored::Passed;
pub use stored::StoredLetter;

use crate::client::jetstream::JetStream;
use crate::client::streams::DlqStream;

/// Name of the durable consumer, unless another is set.
const CONSUMER: &str = "dlq-ingest";
/// Number of letters that are fetched ahead.
const PREFETCH: usize = 512;

/// The letters of a stream, as a [`Log`](dlq_core::log::Log): read into an engine, or followed into a store.
///
/// ```no_run
/// use dlq_core::BoxError;
/// use dlq_core::Filter;
/// use dlq_core::log::Range;
/// use dlq_core::store::Letters;
/// use dlq_letters::log::Reading;
/// use dlq_nats::{DlqStream, NatsLetters};
///
/// async fn count(client: &async_nats::Client) -> Result<u64, BoxError> {
///     let letters = NatsLetters::new(client, DlqStream::new());
///     Ok(Reading::of(letters, Range::all()).await?.count(Filter::new()).await?)
/// }
/// ```
///
/// # Reading
///
/// All that the leader of the stream has is read: where a server that keeps a copy is behind it is asked again, and one that
/// stays behind is an error. What is in the stream and was not written by a [`NatsSink`](crate::NatsSink) is
/// [foreign](dlq_core::log::Content::Foreign), and a letter that has lost a part that stood aside is
/// [damaged](dlq_core::log::Content::Damaged); a warning counts them. A reading leaves no trace: it uses a consumer that
/// acknowledges nothing and that the server removes when nobody reads. A letter that was [sent back](NatsReplay) is `sent`.
///
/// A range of [headers only](dlq_core::log::Range::headers_only) has the server leave payloads out, so that a list of large
/// letters costs what their headers do. Parts that stand aside of a letter are read all the same. A binding covers the
/// payload, so it is believed as the headers claim it: a message that somebody wrote with the headers of a letter and other
/// bytes is read as a letter, where a reading with payloads passes over it. Nothing is sent back, shown, exported or stored
/// from such a reading.
///
/// # Following
///
/// A durable consumer of the stream, of which the name can be [set](Self::consumer), has what was confirmed: it does not
/// come again, to whichever process. The consumer names the store that the letters go into; it was created with that mark
/// in one step. Letters are acknowledged when they are confirmed; those of a process that died come again when their lease
/// has ended.
///
/// A letter that was sent back before it comes says so, and how often: it is `sent` in the store, and not sent again unless
/// somebody asks for just that. A [replay](NatsReplay) that has claimed a part of the stream is waited for until it has
/// marked what it has sent, or until its lease has ended: then it is looked what has arrived. Where that cannot be found out,
/// since a stream does not keep what was consumed or may not be read, the letters of that part are quarantined in the store,
/// and their attribute `replays.unclear` says why. A replay that claims after the mark is there sends nothing.
///
/// | the process dies | the other sees |
/// |---|---|
/// | a replay, before it claims | no claim |
/// | a replay, after it has claimed | its claim, until the lease has ended; then what has arrived |
/// | a follower, before its mark | no mark: the replay goes on |
/// | a follower, after its mark | the mark: the replay gives its claim back |
///
/// Letters stay in the stream for as long as that keeps them.
#[derive(Clone, Debug)]
pub struct NatsLetters {
    context: Context,
    /// See [`JetStream::api`].
    api: Option<&'static str>,
    stream: DlqStream,
    ledger: String,
    /// True if the ledger is not the stream's own.
    has_other_ledger: bool,
    key: Option<BindingKey>,
    key_header: Option<String>,
    consumer: String,
    prefetch: usize,
    ends: bool,
}

impl NatsLetters {
    /// The letters of this stream, which is looked for when it is read.
    #[must_use]
    pub fn new(jetstream: &impl JetStream, stream: DlqStream) -> Self {
        let (context, api) = (jetstream.context(), jetstream.api());
        let ledger = ledger_of(&stream);
        Self {
            context,
            api,
            stream,
            ledger,
            has_other_ledger: false,
            key: None,
            key_header: None,
            consumer: CONSUMER.to_owned(),
            prefetch: PREFETCH,
            ends: false,
        }
    }

    /// Sets the name of the key-value bucket that says which letters were [sent back](NatsReplay). Defaults to the
    /// stream's with `_REPLAYS`. Rights to another bucket are not asked for before a log is followed.
    #[must_use]
    pub fn ledger(mut self, bucket: impl Into<String>) -> Self {
        self.ledger = bucket.into();
        self.has_other_ledger = true;
        self
    }

    /// Sets the secret by which letters are bound that are sent back to a stream; the same as the
    /// [consumer's](crate::NatsTransport::binding_key). Defaults to none.
    #[must_use]
    pub fn binding_key(mut self, key: BindingKey) -> Self {
        self.key = Some(key);
        self
    }

    /// Sets the header that carries the key of a message that is sent to its origin; the same as the
    /// [consumer's](crate::NatsTransport::key_header). Defaults to none.
    #[must_use]
    pub fn key_header(mut self, name: impl Into<String>) -> Self {
        self.key_header = Some(name.into());
        self
    }
}

impl NatsLetters {
    /// Sets the durable consumer by which the log is followed. Defaults to `dlq-ingest`.
    #[must_use]
    pub fn consumer(mut self, name: impl Into<String>) -> Self {
        self.consumer = name.into();
        self
    }

    /// Sets how many letters are fetched ahead when the log is followed. Defaults to 512. What is fetched by a process that
    /// dies is not seen again before its lease has ended.
    #[must_use]
    pub fn prefetch(mut self, letters: usize) -> Self {
        self.prefetch = letters;
        self
    }

    /// Ends a log that is followed when there are no more letters, also none that another process has in flight. Defaults to
    /// waiting for more.
    #[must_use]
    pub fn until_end(mut self) -> Self {
        self.ends = true;
        self
    }
}

/// The ledger of a stream, where no other is named.
fn ledger_of(stream: &DlqStream) -> String {
    format!("{}_REPLAYS", stream.name)
}

const _: () = {
    const fn log<L: dlq_core::log::Log + Clone>() {}
    log::<NatsLetters>();
};
