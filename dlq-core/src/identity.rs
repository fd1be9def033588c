//! Deterministic identities: which message died ([`LetterId`]), which of its deaths it was ([`Death`]), and the
//! [`Binding`] that ties identity headers to the bytes they were written for.

use std::fmt;
use std::io::Write as _;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{Message, Origin, Position, Timestamp};

/// Hashes fields one after another, each with its length in front, so that no two lists of fields read the same.
pub(crate) struct Fields {
    /// Bytes that are not hashed yet. Most lists fit, and are hashed at once.
    text: [u8; 256],
    length: usize,
    // Boxed and made late: a hasher takes about two kilobytes, and most lists never need one.
    hasher: Option<Box<blake3::Hasher>>,
}

impl Fields {
    pub(crate) const fn new() -> Self {
        Self { text: [0; 256], length: 0, hasher: None }
    }

    fn of(domain: &str) -> Self {
        let mut fields = Self::new();
        // The domain keeps hashes for different purposes apart even if their fields are the same. Its version permits
        // another scheme later.
        fields.add(domain.as_bytes());
        fields
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        if let Some(room) = self.text[self.length..].get_mut(..bytes.len()) {
            room.copy_from_slice(bytes);
            self.length += bytes.len();
            return;
        }
        let hasher = self.hasher.get_or_insert_with(Box::default);
        // What was gathered goes first, so that the hash is that of all bytes in their order, however they came.
        hasher.update(&self.text[..self.length]).update(bytes);
        self.length = 0;
    }

    pub(crate) fn add(&mut self, bytes: &[u8]) {
        // The width and the byte order are fixed, since hashes are compared between machines.
        self.bytes(&(bytes.len() as u64).to_le_bytes());
        self.bytes(bytes);
    }

    fn add_option(&mut self, bytes: Option<&[u8]>) {
        // An absent field and an empty one are different, as a tombstone and an empty payload are (G8).
        self.bytes(&[u8::from(bytes.is_some())]);
        self.add(bytes.unwrap_or_default());
    }

    fn add_position(&mut self, position: &Position) {
        // An opaque position may be long. The others fit into the array below, without an allocation.
        if let Position::Opaque(..) = position {
            self.add(position.to_string().as_bytes());
            return;
        }
        let mut text = [0; 41];
        let mut rest = &mut text[..];
        // Two numbers and what stands between them: there is room.
        let _ = write!(rest, "{position}");
        let written = 41 - rest.len();
        self.add(&text[..written]);
    }

    /// The first bytes of the hash.
    pub(crate) fn finish<const N: usize>(mut self) -> [u8; N] {
        let rest = &self.text[..self.length];
        let hash = match &mut self.hasher {
            None => blake3::hash(rest),
            Some(hasher) => hasher.update(rest).finalize(),
        };
        std::array::from_fn(|at| hash.as_bytes()[at])
    }
}

macro_rules! hex_id {
    ($(#[$meta:meta])* $name:ident, $what:literal) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name([u8; 16]);

        impl $name {
            /// The id with these bytes.
            #[must_use]
            pub const fn from_bytes(bytes: [u8; 16]) -> Self { Self(bytes) }

            /// The 16 bytes of the id.
            #[must_use]
            pub const fn as_bytes(&self) -> &[u8; 16] { &self.0 }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                const DIGITS: &[u8; 16] = b"0123456789abcdef";
                let mut text = [0; 32];
                for (pair, byte) in text.chunks_exact_mut(2).zip(self.0) {
                    pair[0] = DIGITS[usize::from(byte >> 4)];
                    pair[1] = DIGITS[usize::from(byte & 15)];
                }
                f.write_str(std::str::from_utf8(&text).unwrap_or_default())
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self)
            }
        }

        impl FromStr for $name {
            type Err = InvalidId;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                parse_hex(text).map(Self).ok_or_else(|| InvalidId {
                    what: $what,
                    expected: "32 hexadecimal digits",
                    text: text.chars().take(80).collect(),
                })
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

/// A text that is not an id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is no id of a {what}; expected {expected}")]
pub struct InvalidId {
    what: &'static str,
    expected: &'static str,
    text: String,
}

fn parse_hex(text: &str) -> Option<[u8; 16]> {
    let digits = text.as_bytes();
    // The check on bytes comes first. Afterwards every chunk is a pair, and text beyond ASCII is refused as no digit.
    if digits.len() != 32 {
        return None;
    }
    let mut bytes = [0; 16];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        let high = char::from(pair[0]).to_digit(16)?;
        let low = char::from(pair[1]).to_digit(16)?;
        *byte = u8::try_from(high * 16 + low).ok()?;
    }
    Some(bytes)
}

hex_id! {
    /// The identity of a letter: which message died, for which consumer.
    ///
    /// A hash (the first 128 bits of BLAKE3) of cluster, transport, stream, partition, position, publish time and
    /// consumer. The same message dying again in the same consumer has the same id, whichever process writes it and
    /// however often. The publish time keeps ids apart when a stream is deleted and its positions start over.
    LetterId, "letter"
}

hex_id! {
    /// The identity of an operation on many letters.
    OperationId, "operation"
}

impl LetterId {
    /// The id of a message that stood at `origin` and was published at `published_at`, for `consumer`.
    #[must_use]
    pub fn of(origin: &Origin, published_at: Option<Timestamp>, consumer: &str) -> Self {
        // The fields, their order and their form are part of every stored id. If one changed, messages that are already
        // known would get second letters (G2).
        let mut fields = Fields::of("dlq letter v1");
        fields.add(origin.cluster().as_bytes());
        fields.add(origin.transport().as_bytes());
        fields.add(origin.stream().as_bytes());
        fields
            .add_option(origin.partition().map(u32::to_le_bytes).as_ref().map(<[u8; 4]>::as_slice));
        fields.add_position(origin.position());
        fields.add_option(
            published_at.map(|at| at.as_nanos().to_le_bytes()).as_ref().map(<[u8; 8]>::as_slice),
        );
        fields.add(consumer.as_bytes());
        Self(fields.finish())
    }

    /// Returns true if this is the id that follows from a message's birth and consumer: its own, or the one under which
    /// [another message](Self::conflicting) with that birth is kept. Letters of other systems may leave the publish time
    /// out.
    #[must_use]
    pub fn follows_from(
        &self,
        origin: &Origin,
        published_at: Option<Timestamp>,
        consumer: &str,
        message: &Message,
    ) -> bool {
        let is_of = |published_at| {
            let id = Self::of(origin, published_at, consumer);
            *self == id || *self == id.conflicting(message)
        };
        is_of(published_at) || (published_at.is_some() && is_of(None))
    }

    /// The id under which another payload that claims this id is kept beside it.
    #[must_use]
    pub fn conflicting(&self, message: &Message) -> Self {
        // The parts are those by which stores compare messages (`same_bytes`), so the second letter is recognised when
        // it arrives again.
        let mut fields = Fields::of("dlq conflict v1");
        fields.add(&self.0);
        fields.add_option(message.payload().map(|payload| &payload[..]));
        fields.add_option(message.key().map(|key| &key[..]));
        Self(fields.finish())
    }
}

impl OperationId {
    /// The id of an operation started by `who` at `at`; `salt` keeps simultaneous ones apart.
    #[must_use]
    pub fn of(who: &str, at: Timestamp, salt: u64) -> Self {
        let mut fields = Fields::of("dlq operation v1");
        fields.add(who.as_bytes());
        fields.add(&at.as_nanos().to_le_bytes());
        fields.add(&salt.to_le_bytes());
        Self(fields.finish())
    }
}

/// Death of a message: its letter, and the number of times that the message had died before. The text form is
/// `ID.GENERATION`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Death {
    /// The letter.
    pub letter: LetterId,
    /// Deaths before this one.
    pub generation: u32,
}

impl Death {
    /// The highest generation that headers are believed to claim. No message dies more often; where a letter says so it
    /// is compared with none of a lower generation, so that it hides no death.
    pub const MAX_GENERATION: u32 = 1_000_000;

    /// Returns the death after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self { letter: self.letter, generation: self.generation.saturating_add(1) }
    }
}

impl fmt::Display for Death {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.letter, self.generation)
    }
}

impl FromStr for Death {
    type Err = InvalidId;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let invalid = || InvalidId {
            what: "death",
            expected: "`LETTER.GENERATION`",
            text: text.chars().take(80).collect(),
        };
        let (letter, generation) = text.split_once('.').ok_or_else(invalid)?;
        let generation = generation.parse().map_err(|_| invalid())?;
        Ok(Self { letter: letter.parse()?, generation })
    }
}

hex_id! {
    /// Ties identity headers to a message: a hash of letter id, payload and key.
    ///
    /// Handlers copy headers onto new messages. A message whose `dlq.binding` does not fit its bytes is a new message
    /// that merely carries somebody else's headers, and its identity headers are not believed.
    Binding, "binding"
}

impl Binding {
    /// The binding of `letter` to payload and key of `message`.
    #[must_use]
    pub fn of(letter: &LetterId, message: &Message) -> Self {
        let mut fields = Fields::of("dlq binding v1");
        fields.add(letter.as_bytes());
        fields.add_option(message.payload().map(|payload| &payload[..]));
        fields.add_option(message.key().map(|key| &key[..]));
        Self(fields.finish())
    }
}

/// A secret by which identity headers are bound to a message, so that nobody forges them who does not have it.
///
/// A [`Binding`] without a secret keeps headers apart that were copied onto another message; who knows how it is computed
/// can compute one. The processes that send letters back and the consumers that take them have the same secret.
#[derive(Clone, PartialEq, Eq)]
pub struct BindingKey([u8; 32]);

impl BindingKey {
    /// The key of this secret, which should have at least 16 bytes that cannot be guessed.
    #[must_use]
    pub fn new(secret: impl AsRef<[u8]>) -> Self {
        // The derived key is of no use elsewhere, even if an operator takes one secret for several purposes.
        Self(blake3::derive_key("dlq binding key v1", secret.as_ref()))
    }

    /// The binding of `death` to payload and key of `message` by this secret. Its generation counts, too.
    #[must_use]
    pub fn bind(&self, death: &Death, message: &Message) -> Binding {
        let mut fields = Fields::of("dlq keyed binding v1");
        fields.add(death.letter.as_bytes());
        fields.add(&death.generation.to_le_bytes());
        fields.add_option(message.payload().map(|payload| &payload[..]));
        fields.add_option(message.key().map(|key| &key[..]));
        // `Fields` hashes without a key. The keyed hash over its whole result is as strong, since nobody finds two
        // messages with one hash.
        let hash = blake3::keyed_hash(&self.0, &fields.finish::<32>());
        Binding(std::array::from_fn(|at| hash.as_bytes()[at]))
    }

    /// Returns true if `binding` is that of `death` to `message`. The comparison takes the same time whatever it finds.
    #[must_use]
    pub fn fits(&self, binding: &Binding, death: &Death, message: &Message) -> bool {
        let own = self.bind(death, message);
        // A comparison that ended at the first difference would tell a forger how many bytes were right.
        own.0.iter().zip(binding.0).fold(0, |differs, (own, other)| differs | (own ^ other)) == 0
    }
}

/// Without the secret.
impl fmt::Debug for BindingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BindingKey(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin() -> Origin {
        Origin::new("memory", "orders", Position::Offset(7))
    }

    #[test]
    fn every_field_of_the_origin_counts() {
        let base = LetterId::of(&origin(), None, "a");
        let others = [
            LetterId::of(&origin().with_cluster("b"), None, "a"),
            LetterId::of(&origin().with_partition(0), None, "a"),
            LetterId::of(&Origin::new("memory", "orders", Position::Offset(8)), None, "a"),
            LetterId::of(&Origin::new("memory", "order", Position::Offset(7)), None, "a"),
            LetterId::of(&Origin::new("nats", "orders", Position::Offset(7)), None, "a"),
            LetterId::of(&origin(), Some(Timestamp::EPOCH), "a"),
            LetterId::of(&origin(), None, "b"),
        ];
        assert!(others.iter().all(|other| *other != base));
        assert_eq!(LetterId::of(&origin(), None, "a"), base);
        assert_eq!(base.to_string().parse::<LetterId>().unwrap(), base);
    }

    #[test]
    fn fields_are_hashed_as_one_text_whatever_their_lengths() {
        for lengths in [&[0, 1][..], &[256], &[255, 2], &[100, 156, 1], &[300], &[9, 4000, 7, 249]]
        {
            let (mut fields, mut whole) = (Fields::new(), blake3::Hasher::new());
            for length in lengths {
                let bytes = vec![*length as u8; *length];
                fields.bytes(&bytes);
                whole.update(&bytes);
            }
            assert_eq!(fields.finish::<32>(), *whole.finalize().as_bytes(), "{lengths:?}");
        }
    }

    #[test]
    fn g2_another_key_conflicts_under_an_id_of_its_own() {
        let letter = LetterId::of(&origin(), None, "a");
        let message = || Message::new("s", "payload");
        let of = |message: Message| letter.conflicting(&message);
        let (none, empty) = (of(message()), of(message().with_key("")));
        let (one, other) = (of(message().with_key("1")), of(message().with_key("2")));
        let all = std::collections::BTreeSet::from([letter, none, empty, one, other]);
        assert_eq!(all.len(), 5, "{all:?}");
        assert_eq!(of(message().with_key("1")), one);
    }

    #[test]
    fn a_copied_header_does_not_bind_to_other_bytes() {
        let letter = LetterId::of(&origin(), None, "a");
        let message = Message::new("s", "payload");
        assert_ne!(
            Binding::of(&letter, &message),
            Binding::of(&letter, &Message::new("s", "other"))
        );
        assert_ne!(
            Binding::of(&letter, &Message::tombstone("s")),
            Binding::of(&letter, &Message::new("s", "")),
        );
    }

    #[test]
    fn a_binding_by_a_secret_fits_what_it_was_made_for() {
        let key = BindingKey::new("a secret");
        let message = Message::new("s", "payload").with_key("k");
        let death = Death { letter: LetterId::of(&origin(), None, "a"), generation: 3 };
        let binding = key.bind(&death, &message);
        assert!(key.fits(&binding, &death, &message));
        assert!(!BindingKey::new("another").fits(&binding, &death, &message));
        assert!(!key.fits(&Binding::of(&death.letter, &message), &death, &message));
        assert!(!key.fits(&binding, &Death { generation: 4, ..death }, &message));
        assert!(!key.fits(&binding, &death, &message.clone().with_key("l")));
        let other = Death { letter: LetterId::of(&origin(), None, "b"), ..death };
        assert!(!key.fits(&binding, &other, &message));
        assert_eq!(format!("{key:?}"), "BindingKey(..)");
    }

    #[test]
    fn an_id_follows_from_birth_and_consumer() {
        let (message, at) = (Message::new("s", "p"), Some(Timestamp::from_millis(7)));
        let id = LetterId::of(&origin(), at, "a");
        assert!(id.follows_from(&origin(), at, "a", &message));
        assert!(id.conflicting(&message).follows_from(&origin(), at, "a", &message));
        assert!(LetterId::of(&origin(), None, "a").follows_from(&origin(), at, "a", &message));
        let other = id.conflicting(&Message::new("s", "q"));
        assert!(!other.follows_from(&origin(), at, "a", &message));
        assert!(!id.follows_from(&origin(), at, "b", &message));
        assert!(!id.follows_from(&origin(), None, "a", &message));
        let elsewhere = origin().with_position(Position::Offset(8));
        assert!(!id.follows_from(&elsewhere, at, "a", &message));
    }
}
