use std::fmt;

/// Longest key that needs no allocation of its own: the text form of a UUID and a little more.
const SHORT: usize = 38;

/// A key as it is kept: a copy, since a slice would keep alive the whole buffer that it came in.
pub(super) enum Key {
    Short { length: u8, bytes: [u8; SHORT] },
    Long(Box<[u8]>),
}

impl Key {
    #[inline]
    pub(super) fn as_slice(&self) -> &[u8] {
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

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "b\"{}\"", self.as_slice().escape_ascii())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_any_length_are_kept_byte_for_byte() {
        let all: Vec<u8> = (0..100).collect();
        for length in 0..=all.len() {
            let kept = Key::from(&all[..length]);
            assert_eq!(kept.as_slice(), &all[..length]);
            assert_eq!(matches!(kept, Key::Short { .. }), length <= SHORT);
        }
        assert_eq!(size_of::<Key>(), 40);
    }
}
