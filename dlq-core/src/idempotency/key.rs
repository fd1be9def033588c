use std::borrow::Borrow;
use std::fmt;
use std::hash::{Hash, Hasher};

/// Up to this length a key needs no memory of its own: the text form of a UUID and a little more.
const SHORT: usize = 38;

/// A key as it is kept: a copy, since a slice would keep alive the whole buffer that it came in.
#[derive(Clone)]
pub(super) enum Key {
    Short { length: u8, bytes: [u8; SHORT] },
    Long(Box<[u8]>),
}

impl Key {
    #[inline]
    fn as_slice(&self) -> &[u8] {
        match self {
            Self::Short { length, bytes } => &bytes[..usize::from(*length)],
            Self::Long(bytes) => bytes,
        }
    }
}

impl From<&[u8]> for Key {
    #[inline]
    fn from(key: &[u8]) -> Self {
        let mut bytes = [0; SHORT];
        match (u8::try_from(key.len()), bytes.get_mut(..key.len())) {
            (Ok(length), Some(start)) => {
                start.copy_from_slice(key);
                Self::Short { length, bytes }
            }
            _ => Self::Long(key.into()),
        }
    }
}

impl Borrow<[u8]> for Key {
    #[inline]
    fn borrow(&self) -> &[u8] {
        self.as_slice()
    }
}

impl Hash for Key {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        // As that of the slice, by which it is looked up.
        self.as_slice().hash(state);
    }
}

impl PartialEq for Key {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        self.as_slice() == other.as_slice()
    }
}

impl Eq for Key {}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "b\"{}\"", self.as_slice().escape_ascii())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn keys_of_any_length_are_found_by_their_bytes() {
        let all = [7_u8; 100];
        let keys: HashMap<Key, usize> =
            (0..=all.len()).map(|length| (Key::from(&all[..length]), length)).collect();
        assert_eq!(keys.len(), 101, "a key is not the start of another");
        for length in 0..=all.len() {
            assert_eq!(keys.get(&all[..length]), Some(&length));
            let kept = Key::from(&all[..length]);
            assert_eq!(matches!(kept, Key::Short { .. }), length <= SHORT);
        }
        assert_eq!(size_of::<Key>(), 40);
    }
}
