//! [`Origin`]: where a message stood at its broker.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A place in a stream, topic or partition; ordered within one of them.
///
/// Kafka and JetStream count (`Offset`), Redis Streams join a time and a counter (`Pair`). The text form is `42` or
/// `1700000000000-3`. Another kind of position may be added in a minor release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Position {
    /// An offset or sequence number.
    Offset(u64),
    /// A two-part entry id.
    Pair(u64, u64),
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Offset(offset) => write!(f, "{offset}"),
            Self::Pair(left, right) => write!(f, "{left}-{right}"),
        }
    }
}

/// A text that is not a position.
#[derive(Debug, thiserror::Error)]
#[error(
    "`{text}` is not a position; write an offset such as `42` or an entry id such as `1700000000000-3`"
)]
pub struct InvalidPosition {
    text: String,
}

impl FromStr for Position {
    type Err = InvalidPosition;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parsed = match text.split_once('-') {
            Some((left, right)) => left
                .parse()
                .ok()
                .zip(right.parse().ok())
                .map(|(left, right)| Self::Pair(left, right)),
            None => text.parse().ok().map(Self::Offset),
        };
        parsed.ok_or_else(|| InvalidPosition { text: text.chars().take(80).collect() })
    }
}

impl Serialize for Position {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Position {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// Position of a message: cluster, transport, stream or topic, partition, position. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "Fields", into = "Fields")]
#[must_use]
pub struct Origin {
    stands: Arc<Stands>,
    position: Position,
}

/// Part of an origin that the messages of one partition share.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Stands {
    cluster: Arc<str>,
    transport: Arc<str>,
    stream: Arc<str>,
    partition: Option<u32>,
}

/// As it is written.
#[derive(Serialize, Deserialize)]
#[serde(rename = "Origin")]
struct Fields {
    cluster: Arc<str>,
    transport: Arc<str>,
    stream: Arc<str>,
    partition: Option<u32>,
    position: Position,
}

impl From<Fields> for Origin {
    fn from(fields: Fields) -> Self {
        let Fields { cluster, transport, stream, partition, position } = fields;
        Self { stands: Arc::new(Stands { cluster, transport, stream, partition }), position }
    }
}

impl From<Origin> for Fields {
    fn from(origin: Origin) -> Self {
        let Stands { cluster, transport, stream, partition } = Arc::unwrap_or_clone(origin.stands);
        Self { cluster, transport, stream, partition, position: origin.position }
    }
}

impl Origin {
    /// An origin on the cluster called `default`, without a partition.
    pub fn new(
        transport: impl Into<Arc<str>>,
        stream: impl Into<Arc<str>>,
        position: Position,
    ) -> Self {
        let stands = Stands {
            cluster: Arc::from("default"),
            transport: transport.into(),
            stream: stream.into(),
            partition: None,
        };
        Self { stands: Arc::new(stands), position }
    }

    /// Sets the alias of the cluster. Defaults to `default`.
    pub fn with_cluster(mut self, cluster: impl Into<Arc<str>>) -> Self {
        Arc::make_mut(&mut self.stands).cluster = cluster.into();
        self
    }

    /// Sets the partition. Defaults to none.
    pub fn with_partition(mut self, partition: u32) -> Self {
        Arc::make_mut(&mut self.stands).partition = Some(partition);
        self
    }

    /// Another position in the same place.
    pub fn with_position(mut self, position: Position) -> Self {
        self.position = position;
        self
    }

    /// The alias of the cluster.
    #[must_use]
    pub fn cluster(&self) -> &str {
        &self.stands.cluster
    }

    /// The kind of broker, e.g. `nats`, `kafka`, `redis`, `memory`.
    #[must_use]
    pub fn transport(&self) -> &str {
        &self.stands.transport
    }

    /// The stream, topic or stream key.
    #[must_use]
    pub fn stream(&self) -> &str {
        &self.stands.stream
    }

    /// The partition, where the broker has them.
    #[must_use]
    pub fn partition(&self) -> Option<u32> {
        self.stands.partition
    }

    /// The place within stream and partition.
    #[must_use]
    pub fn position(&self) -> Position {
        self.position
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}/{}", self.transport(), self.cluster(), self.stream())?;
        if let Some(partition) = self.partition() {
            write!(f, "[{partition}]")?;
        }
        write!(f, "@{}", self.position)
    }
}
