//! Size of a stream of dead letters, for `dlq serve`.

use std::collections::BTreeMap;

use dlq_nats::NatsLetters;

use super::Broker;
use super::url::NatsUrl;
use crate::cli::{BrokerArgs, ConsumerName, ServeAtBrokerArgs};
use crate::error::CliError;
use crate::serve::{Measure, QueueDepth, Readers};

/// A stream of dead letters, to which there is a connection unless the latest look failed.
pub(crate) struct Measured {
    scheme: String,
    rest: String,
    shown: String,
    args: BrokerArgs,
    consumers: Vec<ConsumerName>,
    open: Option<(Broker, NatsLetters)>,
}

impl Measured {
    /// Nothing is asked yet.
    pub(crate) fn new(
        scheme: &str,
        rest: &str,
        shown: &str,
        args: &BrokerArgs,
        asked: &ServeAtBrokerArgs,
    ) -> Result<Self, CliError> {
        // A URL that is wrong is refused at the start, and not by every look.
        NatsUrl::parse(scheme, rest)?;
        Ok(Self {
            scheme: scheme.to_owned(),
            rest: rest.to_owned(),
            shown: shown.to_owned(),
            args: args.clone(),
            consumers: asked.consumer.clone(),
            open: None,
        })
    }

    async fn letters(&mut self) -> Result<(Broker, NatsLetters), CliError> {
        if let Some(open) = &self.open {
            return Ok(open.clone());
        }
        let shown = self.shown.clone();
        let broker = Broker::connect(&self.scheme, &self.rest, shown, &self.args).await?;
        let stream = broker.permitted(broker.letters()).await?;
        let letters = NatsLetters::new(&broker.context, stream);
        Ok(self.open.insert((broker, letters)).clone())
    }
}

impl Measure for Measured {
    async fn measure(&mut self) -> Result<QueueDepth, CliError> {
        let (broker, letters) = self.letters().await?;
        let asking = async {
            let found = letters.queue_depth().await?;
            let mut progress = Vec::new();
            for (consumer, at) in found.consumers {
                progress.push((broker.stream.clone(), consumer, at.pending, at.ack_pending));
            }
            for ConsumerName { stream, consumer } in &self.consumers {
                let at = letters.progress(stream, consumer).await?;
                progress.push((stream.clone(), consumer.clone(), at.pending, at.ack_pending));
            }
            // Where there are too many subjects to tell apart, all messages are the best that is known.
            let by_part = match found.by_subject {
                none if none.is_empty() && found.messages > 0 => {
                    BTreeMap::from([("other".to_owned(), found.messages)])
                }
                by_subject => by_subject,
            };
            let ends = BTreeMap::from([(broker.stream.clone(), found.last_sequence)]);
            let readers = Readers::Nats { ends, progress };
            Ok(QueueDepth { by_part, oldest: found.oldest, kept: found.max_age, readers })
        };
        broker.permitted(asking).await
    }

    fn forget(&mut self) {
        self.open = None;
    }
}
