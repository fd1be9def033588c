//! [`Floor`]: up to where a consumer has settled everything.

use async_nats::jetstream::Context;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::durable::Durable;
use crate::error::SetupError;

/// Looks once in a lease how far a consumer is, so that one that somebody deletes begins again where it stood then, and not
/// where it stood weeks ago.
#[derive(Debug)]
pub(crate) struct Floor {
    looked: Instant,
    looking: JoinSet<Result<Option<u64>, SetupError>>,
}

impl Default for Floor {
    /// It was looked just now.
    fn default() -> Self {
        Self { looked: Instant::now(), looking: JoinSet::new() }
    }
}

impl Floor {
    /// Notes what is known, and looks again when it is time.
    pub(crate) fn note(&mut self, durable: &mut Durable, context: &Context) {
        // What is not answered is asked again later, and that one is gone is noticed by asking it for messages.
        if let Some(Ok(Ok(Some(floor)))) = self.looking.try_join_next() {
            durable.stood(floor);
        }
        if self.looking.is_empty() && self.looked.elapsed() >= durable.lease {
            self.looked = Instant::now();
            let (durable, context) = (durable.clone(), context.clone());
            self.looking.spawn(async move { durable.floor(&context).await });
        }
    }
}
