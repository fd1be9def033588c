use async_nats::Client;
use async_nats::jetstream::{self, Context};

/// Access to JetStream: a client as it is, or a [`Context`] with a domain, an API prefix or time-outs of its own.
///
/// ```no_run
/// # use async_nats::{Client, jetstream};
/// # use dlq_nats::{DlqStream, NatsSink};
/// # async fn open(client: Client) -> Result<(), dlq_core::StoreError> {
/// let at_the_hub = jetstream::with_domain(client, "hub");
/// let sink = NatsSink::open(&at_the_hub, DlqStream::new()).await?;
/// # Ok(()) }
/// ```
pub trait JetStream: Send + Sync + sealed::Sealed {
    /// The context.
    #[doc(hidden)]
    fn context(&self) -> Context;

    /// Returns the prefix of its API subjects; `None` if a context does not reveal it.
    #[doc(hidden)]
    fn api(&self) -> Option<&'static str> {
        None
    }
}

impl JetStream for Client {
    fn api(&self) -> Option<&'static str> {
        Some("$JS.API")
    }

    fn context(&self) -> Context {
        jetstream::new(self.clone())
    }
}

impl JetStream for Context {
    fn context(&self) -> Context {
        self.clone()
    }
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for async_nats::Client {}
    impl Sealed for async_nats::jetstream::Context {}
}
