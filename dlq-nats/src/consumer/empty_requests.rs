//! [`EmptyRequests`]: requests for messages that come to nothing although stream and consumer are well.

use async_nats::Client;
use dlq_core::TransportError;

use crate::client::error::SetupError;
use crate::client::permissions::unanswered;
use crate::consumer::durable::Durable;

/// Number of failures in a row that are bad luck, as when a leader changes.
const LUCK: u32 = 2;

/// Requests in a row of which no message came, nor a word that one may.
#[derive(Debug, Default)]
pub(crate) struct EmptyRequests {
    times: u32,
    /// Server's answer to the last one, if any.
    refused: Option<String>,
}

impl EmptyRequests {
    pub(crate) fn count(&mut self, refused: Option<String>) {
        self.times = self.times.saturating_add(1);
        self.refused = refused;
    }

    /// Fails when nothing more can be expected, and says why that may be.
    pub(crate) fn told(&self, client: &Client, durable: &Durable) -> Result<(), TransportError> {
        if self.times <= LUCK {
            return Ok(());
        }
        let (stream, consumer) = (durable.of.name(), &durable.name);
        let why = match &self.refused {
            Some(refused) => format!("the server refuses to hand messages out: {refused}"),
            // Requests beyond `max_waiting` are dropped without a word, as are those of a user without the right to ask.
            None => {
                let subject = format!("$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}");
                let why = unanswered(client, &subject);
                format!("{why}, or other processes have used up its `max_waiting`")
            }
        };
        let text = format!("consumer `{consumer}` of stream `{stream}`: {why}");
        Err(SetupError::Unavailable(text, None).for_transport("fetch"))
    }
}
