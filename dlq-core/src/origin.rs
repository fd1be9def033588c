//! [`Origin`]: where a message stood at its broker.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A place in a stream, topic or partition; ordered within one of them.
///
/// Kafka and JetStream count (`Offset`), Redis Streams join a time and a counter (`Pair`), and a queue without offsets has an
/// id for each message (`Opaque`). The text form is `42`, `1700000000000-3`, or `~` and the id in base64url without padding.
/// Another kind of position may be added in a minor release.
///
/// ```
/// use dlq_core::Position;
///
/// let position = Position::opaque("5fea7756-0ea4-451a")?;
/// assert_eq!(position.to_string(), "~NWZlYTc3NTYtMGVhNC00NTFh");
/// assert_eq!("~NWZlYTc3NTYtMGVhNC00NTFh".parse::<Position>()?, position);
/// # Ok::<(), dlq_core::InvalidPosition>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Position {
    /// An offset or sequence number.
    Offset(u64),
    /// A two-part entry id.
    Pair(u64, u64),
    /// An id without an order, of at most [`Position::MAX_OPAQUE`] bytes. Made by [`Position::opaque`].
    #[non_exhaustive]
    Opaque(Bytes),
}

impl Position {
    /// Largest number of bytes of an opaque position.
    pub const MAX_OPAQUE: usize = 512;

    /// A position that only the broker can read, such as the id of a message.
    ///
    /// # Errors
    ///
    /// If the id has more than [`Position::MAX_OPAQUE`] bytes.
    pub fn opaque(id: impl Into<Bytes>) -> Result<Self, InvalidPosition> {
        let id = id.into();
        if id.len() <= Self::MAX_OPAQUE {
            return Ok(Self::Opaque(id));
        }
        // Only as much is shown as would have been taken, since the id comes from outside.
        Err(InvalidPosition::new(&opaque_text(&id[..Self::MAX_OPAQUE])))
    }
}

/// Returns the text form of an opaque position.
fn opaque_text(id: &[u8]) -> String {
    let mut text = String::from("~");
    URL_SAFE_NO_PAD.encode_string(id, &mut text);
    text
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Offset(offset) => write!(f, "{offset}"),
            Self::Pair(left, right) => write!(f, "{left}-{right}"),
            Self::Opaque(id) => f.write_str(&opaque_text(id)),
        }
    }
}

/// A text that is not a position.
#[derive(Debug, thiserror::Error)]
#[error(
    "`{text}` is not a position; write an offset such as `42`, an entry id such as `1700000000000-3`, or `~` and at most {} \
     bytes in base64url",
    Position::MAX_OPAQUE
)]
pub struct InvalidPosition {
    text: String,
}

impl InvalidPosition {
    fn new(text: &str) -> Self {
        Self { text: text.chars().take(80).collect() }
    }
}

impl FromStr for Position {
    type Err = InvalidPosition;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Some(id) = text.strip_prefix('~') {
            // Judged by its length first, so that nothing large is decoded.
            let is_short = id.len() <= Self::MAX_OPAQUE.div_ceil(3) * 4;
            let id = is_short.then(|| URL_SAFE_NO_PAD.decode(id).ok()).flatten();
            let id = id.filter(|id| id.len() <= Self::MAX_OPAQUE);
            return id.map(|id| Self::Opaque(id.into())).ok_or_else(|| InvalidPosition::new(text));
        }
        let parsed = match text.split_once('-') {
            Some((left, right)) => left
                .parse()
                .ok()
                .zip(right.parse().ok())
                .map(|(left, right)| Self::Pair(left, right)),
            None => text.parse().ok().map(Self::Offset),
        };
        parsed.ok_or_else(|| InvalidPosition::new(text))
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
    // Sources make one of these for each partition and share it, so that an origin costs no allocation for each
    // message.
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
    pub fn position(&self) -> &Position {
        &self.position
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LetterId;

    #[test]
    fn positions_are_read_back() {
        let opaque = |id: &[u8]| Position::opaque(id.to_vec()).unwrap();
        let all = [
            Position::Offset(0),
            Position::Offset(u64::MAX),
            Position::Pair(0, u64::MAX),
            opaque(b""),
            opaque(b"a"),
            opaque(&[0xfb; Position::MAX_OPAQUE]),
            opaque(b"\xff\xfe\0-~"),
        ];
        for position in &all {
            assert_eq!(position.to_string().parse::<Position>().unwrap(), *position);
            let json = serde_json::to_string(position).unwrap();
            assert_eq!(serde_json::from_str::<Position>(&json).unwrap(), *position);
        }
        let mut sorted = all.to_vec();
        sorted.sort();
        assert_eq!(sorted, all);
    }

    #[test]
    fn other_texts_are_no_positions() {
        // Padding, other alphabets and bits that nothing stands for would be a second text of the same position.
        let long = opaque_text(&[7; Position::MAX_OPAQUE + 1]);
        for text in ["", "-", "x", "1-", "~=", "~YQ==", "~YR", "~++++", "~a", "~ YQ", &long] {
            assert!(text.parse::<Position>().is_err(), "{text}");
        }
        assert!(Position::opaque(vec![7; Position::MAX_OPAQUE + 1]).is_err());
    }

    #[test]
    fn letters_of_long_positions_differ() {
        let id = |last| {
            let mut id = vec![7; Position::MAX_OPAQUE - 1];
            id.push(last);
            let position = Position::opaque(id).unwrap();
            LetterId::of(&Origin::new("amqp", "orders", position), None, "a")
        };
        assert_ne!(id(1), id(2));
    }
}
