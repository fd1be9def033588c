//! [`Floor`]: up to where a consumer has settled everything.

use async_nats::jetstream::Context;

use crate::durable::Durable;
use crate::error::SetupError;
use crate::looks::Looks;

/// Looks once in a lease how far a consumer is, so that one that somebody deletes begins again where it stood then, and not
/// where it stood weeks ago.
#[derive(Debug, Default)]
pub(crate) struct Floor(Looks<Result<Option<u64>, SetupError>>);

impl Floor {
    /// Notes what is known, and looks again when it is time.
    pub(crate) fn note(&mut self, durable: &mut Durable, context: &Context) {
        // What is not answered is asked again later, and that one is gone is noticed by asking it for messages.
        if let Some(Ok(Some(floor))) = self.0.seen() {
            durable.stood(floor);
        }
        self.0.again(durable.lease, || {
            let (durable, context) = (durable.clone(), context.clone());
            async move { durable.floor(&context).await }
        });
    }
}
