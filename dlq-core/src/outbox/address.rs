use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// The destination of a letter that an [`Outbox`](super::Outbox) sends.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Address {
    /// The kind of broker.
    pub transport: Arc<str>,
    /// The alias of the cluster.
    pub cluster: Arc<str>,
    /// The stream that must keep the letter, where subject and stream differ. `None` for whichever keeps the subject.
    pub stream: Option<Arc<str>>,
    /// The subject, topic or stream to which it is published.
    pub subject: Arc<str>,
    /// The partition. `None` to let the key decide.
    pub partition: Option<u32>,
    /// The consumer whose retry queue it goes to. `None` for everybody who reads the subject.
    pub consumer: Option<Arc<str>>,
}

impl Address {
    /// An address for everybody who reads `subject`, whichever stream and partition keeps it.
    #[must_use]
    pub fn new(
        transport: impl Into<Arc<str>>,
        cluster: impl Into<Arc<str>>,
        subject: impl Into<Arc<str>>,
    ) -> Self {
        Self {
            transport: transport.into(),
            cluster: cluster.into(),
            stream: None,
            subject: subject.into(),
            partition: None,
            consumer: None,
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}/", self.transport, self.cluster)?;
        if let Some(stream) = &self.stream {
            write!(f, "{stream}/")?;
        }
        f.write_str(&self.subject)?;
        if let Some(partition) = self.partition {
            write!(f, "[{partition}]")?;
        }
        match &self.consumer {
            Some(consumer) => write!(f, " (retries of `{consumer}`)"),
            None => Ok(()),
        }
    }
}
