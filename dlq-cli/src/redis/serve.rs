//! The number of dead letters under a key, for `dlq serve`.

use std::collections::BTreeMap;

use dlq_core::StoreErrorKind;

use super::Broker;
use super::url::RedisUrl;
use crate::cli::{BrokerArgs, ServeAtBrokerArgs};
use crate::error::CliError;
use crate::serve::{Measure, QueueDepth, Readers};

/// Dead letters under a key, to which there is a connection unless the latest look failed.
pub(crate) struct Measured {
    scheme: String,
    rest: String,
    shown: String,
    args: BrokerArgs,
    open: Option<Broker>,
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
        RedisUrl::parse(scheme, rest)?;
        if !asked.consumer.is_empty() {
            return Err(CliError::refused(format!(
                "--consumer is of NATS and Kafka, and {shown} is Redis; leave it out"
            )));
        }
        let [scheme, rest, shown] = [scheme, rest, shown].map(str::to_owned);
        Ok(Self { scheme, rest, shown, args: args.clone(), open: None })
    }

    async fn broker(&mut self) -> Result<Broker, CliError> {
        if let Some(open) = &self.open {
            return Ok(open.clone());
        }
        let shown = self.shown.clone();
        let broker = Broker::connect(&self.scheme, &self.rest, shown, &self.args).await?;
        Ok(self.open.insert(broker).clone())
    }
}

impl Measure for Measured {
    async fn measure(&mut self) -> Result<QueueDepth, CliError> {
        let broker = self.broker().await?;
        let (key, found) = match &broker.foreign {
            Some(letters) => (
                letters.key(),
                async { Ok((letters.entries().await?, letters.oldest().await?)) }.await,
            ),
            None => {
                let letters = &broker.letters;
                (
                    letters.stream(),
                    async { Ok((letters.entries().await?, letters.oldest().await?)) }.await,
                )
            }
        };
        let (letters, oldest) = match found {
            Ok(found) => found,
            // A set without members is no key.
            Err(error) if broker.foreign.is_some() && is_missing(&error) => (0, None),
            Err(error) => return Err(broker.failed(error)),
        };
        let by_part = BTreeMap::from([(key.to_owned(), letters)]);
        Ok(QueueDepth { by_part, oldest, kept: None, readers: Readers::Redis })
    }

    fn forget(&mut self) {
        self.open = None;
    }
}

fn is_missing(error: &dlq_core::StoreError) -> bool {
    error.kind() == StoreErrorKind::NotFound
}
