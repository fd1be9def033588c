//! [`ConsumerBuilder::open`]: everything that a transport describes and the builder was not given.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use dlq_core::{BoxCrashMarks, BoxRetryQueue, BoxSink, Transport};

use super::builder::{ConsumerBuilder, Given};
use super::run::Consumer;
use crate::InvalidConfig;
use crate::router;

/// The reason why a consumer was not opened.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
#[non_exhaustive]
pub enum OpenError {
    /// Settings contradict each other, or one is missing. Nothing was opened.
    InvalidConfig(#[from] InvalidConfig),
    /// A part of the transport was not opened.
    Transport(#[from] dlq_core::OpenError),
}

impl OpenError {
    /// True if opening again may succeed later, as when the broker did not respond.
    #[must_use]
    pub const fn is_transient(&self) -> bool {
        match self {
            Self::InvalidConfig(_) => false,
            Self::Transport(error) => error.is_transient(),
        }
    }
}

/// State of a builder whose source is still to be opened.
pub struct Described {
    transport: Box<dyn Opens>,
    has_retry_queue: bool,
    has_crash_marks: bool,
}

/// Parts that are to be opened besides the source.
#[derive(Clone, Copy)]
struct Wanted {
    retry_queue: bool,
    dead_letters: bool,
    crash_marks: bool,
}

struct Parts {
    given: Given,
    retry_queue: Option<BoxRetryQueue>,
    dead_letters: Option<BoxSink>,
    crash_marks: Option<BoxCrashMarks>,
}

type Opening<'a> = Pin<Box<dyn Future<Output = Result<Parts, dlq_core::OpenError>> + Send + 'a>>;

/// A transport and its client, erased.
trait Opens: Send + Sync {
    fn consumer_name(&self) -> Option<&str>;
    fn summary(&self) -> String;
    fn open<'a>(&'a self, name: &'a str, wanted: Wanted) -> Opening<'a>;
}

struct At<T, C> {
    transport: T,
    client: C,
}

impl<C, T> Opens for At<T, C>
where
    C: Send + Sync + 'static,
    T: Transport<C>,
{
    fn consumer_name(&self) -> Option<&str> {
        self.transport.consumer_name()
    }

    fn summary(&self) -> String {
        self.transport.summary()
    }

    fn open<'a>(&'a self, name: &'a str, wanted: Wanted) -> Opening<'a> {
        let Self { transport, client } = self;
        Box::pin(async move {
            // The source is last, so that nothing is fetched that cannot be settled.
            let mut dead_letters = None;
            if wanted.dead_letters {
                dead_letters = Some(transport.dead_letters(client, name).await?);
            }
            let mut retry_queue = None;
            if wanted.retry_queue {
                retry_queue = transport.retry_queue(client, name).await?;
            }
            let mut source = transport.source(client, name).await?;
            let mut crash_marks = None;
            if wanted.crash_marks {
                crash_marks = transport.crash_marks(client, &mut source).await?;
            }
            Ok(Parts { given: Given::new(source), retry_queue, dead_letters, crash_marks })
        })
    }
}

impl Described {
    pub(super) fn new<C, T>(transport: T, client: C) -> Self
    where
        C: Send + Sync + 'static,
        T: Transport<C>,
    {
        let transport = Box::new(At { transport, client });
        Self { transport, has_retry_queue: true, has_crash_marks: true }
    }
}

impl fmt::Debug for Described {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Described").field(&self.transport.summary()).finish()
    }
}

impl ConsumerBuilder<Described> {
    /// Goes without the retry queue of the transport. Delayed retries wait in the store then, if there is one.
    pub fn without_retry_queue(mut self) -> Self {
        self.from.has_retry_queue = false;
        self
    }

    /// Goes without the crash marks of the transport: a message that kills its process is then never found.
    pub fn without_crash_marks(mut self) -> Self {
        self.from.has_crash_marks = false;
        self
    }

    /// Opens the transport and builds the consumer.
    ///
    /// The name of the consumer at the broker is that of the transport, else that of the handler or the router.
    ///
    /// # Errors
    ///
    /// `InvalidConfig` as [`build`](ConsumerBuilder::build), before anything is opened where that can be known; `Transport`
    /// as [`Transport`] says.
    ///
    /// # Cancel safety
    ///
    /// As [`Transport`] says: opening again takes over what was created.
    pub async fn open(self) -> Result<Consumer, OpenError> {
        // What can be known without the source is refused before anything is created at the broker.
        self.check_settings()?;
        let own = self.own_name()?;
        let wanted = Wanted {
            retry_queue: self.from.has_retry_queue && self.lacks_retry_queue(),
            dead_letters: self.lacks_dead_letters(),
            crash_marks: self.from.has_crash_marks && self.lacks_crash_marks(),
        };
        let transport = &self.from.transport;
        let summary = transport.summary();
        // The description wins: its name may be that of a consumer which exists at the broker already.
        let name = transport.consumer_name().unwrap_or(&own);
        let parts = transport.open(name, wanted).await?;
        let mut builder = self.with_source(parts.given);
        builder.settings.transport = Some(summary);
        if let Some(queue) = parts.retry_queue {
            builder = builder.retry_queue(queue);
        }
        if let Some(sink) = parts.dead_letters {
            builder = builder.sink(sink);
            builder.settings.dead_letters = "stream of dead letters of the transport";
        }
        if let Some(marks) = parts.crash_marks {
            builder = builder.crash_marks(marks);
        }
        Ok(builder.build()?)
    }

    /// The name of the consumer where the transport has none.
    fn own_name(&self) -> Result<Arc<str>, InvalidConfig> {
        let names = self.naming()?.names();
        let own = names.first().cloned().unwrap_or_default();
        // A handler that is called so on purpose has this one name; only a router has more.
        let is_default = *own == *router::DEFAULT_NAME && names.len() > 1;
        if is_default && self.from.transport.consumer_name().is_none() {
            return Err(InvalidConfig::consumer(
                "the router has no name, so that any two routers on the stream would share its messages; name it with `Router::new().name(…)`",
            ));
        }
        Ok(own)
    }
}
