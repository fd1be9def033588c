use std::borrow::Cow;
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};

/// Types that a key closure may return: text, integers, bytes, and options and tuples of those.
///
/// An absent key is no key, and so is an **empty** one: messages whose key was left empty are not the same message.
///
/// ```
/// use dlq_tower::handler::ToKey;
///
/// assert_eq!(42_u64.to_key().unwrap(), "42");
/// assert_eq!("".to_key(), None);
/// assert_ne!(("a", "bc").to_key(), ("ab", "c").to_key());
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a key",
    label = "not a key",
    note = "a key is text, an integer or bytes, or an `Option` or tuple of those; write e.g. `.to_string()` for anything that has a text form"
)]
pub trait ToKey {
    /// The key's bytes; `None` for no key.
    fn to_key(&self) -> Option<Bytes>;

    /// The same of a value that is of no further use. Defaults to a copy.
    fn into_key(self) -> Option<Bytes>
    where
        Self: Sized,
    {
        self.to_key()
    }
}

impl ToKey for [u8] {
    fn to_key(&self) -> Option<Bytes> {
        (!self.is_empty()).then(|| Bytes::copy_from_slice(self))
    }
}

impl ToKey for str {
    fn to_key(&self) -> Option<Bytes> {
        self.as_bytes().to_key()
    }
}

impl ToKey for Bytes {
    fn to_key(&self) -> Option<Bytes> {
        self.clone().into_key()
    }

    fn into_key(self) -> Option<Bytes> {
        (!self.is_empty()).then_some(self)
    }
}

macro_rules! by_slice {
    ($($of:ty),*) => {$(
        impl ToKey for $of {
            fn to_key(&self) -> Option<Bytes> {
                self[..].to_key()
            }

            fn into_key(self) -> Option<Bytes> {
                Bytes::from(self).into_key()
            }
        }
    )*};
}
by_slice!(String, Vec<u8>);

impl<const N: usize> ToKey for [u8; N] {
    fn to_key(&self) -> Option<Bytes> {
        self[..].to_key()
    }
}

macro_rules! by_text {
    ($($of:ty),*) => {$(
        impl ToKey for $of {
            fn to_key(&self) -> Option<Bytes> {
                Some(Bytes::from(self.to_string()))
            }
        }
    )*};
}
by_text!(i8, i16, i32, i64, i128, isize, u8, u16, u32, u64, u128, usize, bool, char);

macro_rules! by_reference {
    ($($of:ty),*) => {$(
        impl<T: ToKey + ?Sized> ToKey for $of {
            fn to_key(&self) -> Option<Bytes> {
                (**self).to_key()
            }
        }
    )*};
}
by_reference!(&T, Box<T>, Arc<T>);

impl<T: ToKey + ToOwned + ?Sized> ToKey for Cow<'_, T> {
    fn to_key(&self) -> Option<Bytes> {
        (**self).to_key()
    }
}

impl<T: ToKey> ToKey for Option<T> {
    fn to_key(&self) -> Option<Bytes> {
        self.as_ref().and_then(ToKey::to_key)
    }

    fn into_key(self) -> Option<Bytes> {
        self.and_then(ToKey::into_key)
    }
}

/// Each part with its length in front, so that no two tuples read the same; absent parts are marked. `None` when all
/// are absent.
fn joined<const N: usize>(parts: [Option<Bytes>; N]) -> Option<Bytes> {
    // If all parts are absent, the messages have nothing in common by which they would be the same.
    if parts.iter().all(Option::is_none) {
        return None;
    }
    let mut key = BytesMut::new();
    for part in parts {
        match part {
            Some(part) => {
                key.put_u64(part.len() as u64);
                key.put(part);
            }
            // No part has this length, so that an absent one cannot be taken for a present one.
            None => key.put_u64(u64::MAX),
        }
    }
    Some(key.freeze())
}

macro_rules! by_parts {
    ($($part:ident $index:tt),*) => {
        impl<$($part: ToKey),*> ToKey for ($($part,)*) {
            fn to_key(&self) -> Option<Bytes> {
                joined([$(self.$index.to_key()),*])
            }
        }
    };
}
by_parts!(A 0, B 1);
by_parts!(A 0, B 1, C 2);
by_parts!(A 0, B 1, C 2, D 3);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_that_read_the_same_when_joined_differ() {
        let keys = [
            ("a", "bc", "").to_key(),
            ("ab", "c", "").to_key(),
            ("ab", "", "c").to_key(),
            ("", "ab", "c").to_key(),
            ("abc", "", "").to_key(),
        ];
        for (index, key) in keys.iter().enumerate() {
            assert!(key.is_some());
            assert!(!keys[..index].contains(key), "{key:?}");
        }
    }

    #[test]
    fn what_is_empty_or_absent_is_no_key() {
        assert_eq!(String::new().to_key(), None);
        assert_eq!(Bytes::new().to_key(), None);
        assert_eq!(None::<u64>.to_key(), None);
        assert_eq!(Some("").to_key(), None);
        assert_eq!(("", None::<u8>).to_key(), None);
        assert_eq!(0_u64.to_key().unwrap(), "0");
    }
}
