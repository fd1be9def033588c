//! MessagePack as far as job envelopes need it. Nothing is allocated; depth and lengths are bounded by the bytes that are there.

use std::ops::Range;

/// Nested values that are passed over at most.
const DEPTH: usize = 32;

/// A cursor over MessagePack.
#[derive(Debug)]
pub(super) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub(super) const fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// Returns true if all bytes were read.
    pub(super) const fn is_at_end(&self) -> bool {
        self.at == self.bytes.len()
    }

    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        // Anybody can write these bytes, and a length may be as large as the address space.
        let end = self.at.checked_add(count)?;
        let taken = self.bytes.get(self.at..end)?;
        self.at = end;
        Some(taken)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take(1).map(|bytes| bytes[0])
    }

    /// A big-endian number of so many bytes, at most 8.
    fn number(&mut self, width: usize) -> Option<u64> {
        self.take(width).map(|bytes| bytes.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte)))
    }

    fn length(&mut self, width: usize) -> Option<usize> {
        self.number(width).and_then(|length| usize::try_from(length).ok())
    }

    /// Reads the head of an array and returns its length.
    pub(super) fn array(&mut self) -> Option<usize> {
        match self.byte()? {
            head @ 0x90..=0x9f => Some(usize::from(head & 0x0f)),
            0xdc => self.length(2),
            0xdd => self.length(4),
            _ => None,
        }
    }

    pub(super) fn text(&mut self) -> Option<&'a str> {
        let length = match self.byte()? {
            head @ 0xa0..=0xbf => usize::from(head & 0x1f),
            0xd9 => self.length(1)?,
            0xda => self.length(2)?,
            0xdb => self.length(4)?,
            _ => return None,
        };
        std::str::from_utf8(self.take(length)?).ok()
    }

    pub(super) fn binary(&mut self) -> Option<&'a [u8]> {
        let length = match self.byte()? {
            0xc4 => self.length(1)?,
            0xc5 => self.length(2)?,
            0xc6 => self.length(4)?,
            _ => return None,
        };
        self.take(length)
    }

    /// Reads an unsigned number, and returns the bytes that it takes too.
    pub(super) fn unsigned(&mut self) -> Option<(u64, Range<usize>)> {
        let from = self.at;
        let number = match self.byte()? {
            head @ 0x00..=0x7f => u64::from(head),
            0xcc => self.number(1)?,
            0xcd => self.number(2)?,
            0xce => self.number(4)?,
            0xcf => self.number(8)?,
            _ => return None,
        };
        Some((number, from..self.at))
    }

    /// Passes over a value of any kind, and returns its bytes.
    pub(super) fn any(&mut self) -> Option<&'a [u8]> {
        let from = self.at;
        // Values that are still to come, for each level that is open.
        let mut open = [0_usize; DEPTH];
        let mut depth = 0;
        open[0] = 1;
        loop {
            while open[depth] == 0 {
                if depth == 0 {
                    return self.bytes.get(from..self.at);
                }
                depth -= 1;
            }
            open[depth] -= 1;
            let inner = self.head()?;
            if inner > 0 {
                depth += 1;
                // Values that are nested deeper are not read: the levels are bounded, whatever bytes somebody wrote.
                *open.get_mut(depth)? = inner;
            }
        }
    }

    /// Reads the head of a value, with its bytes if it holds no other values, and returns how many values it holds.
    fn head(&mut self) -> Option<usize> {
        let (bytes, values) = match self.byte()? {
            0x00..=0x7f | 0xe0..=0xff | 0xc0 | 0xc2 | 0xc3 => (0, 0),
            head @ 0x80..=0x8f => (0, usize::from(head & 0x0f) * 2),
            head @ 0x90..=0x9f => (0, usize::from(head & 0x0f)),
            head @ 0xa0..=0xbf => (usize::from(head & 0x1f), 0),
            0xc1 => return None,
            0xc4 | 0xd9 => (self.length(1)?, 0),
            0xc5 | 0xda => (self.length(2)?, 0),
            0xc6 | 0xdb => (self.length(4)?, 0),
            0xc7 => (self.length(1)?.checked_add(1)?, 0),
            0xc8 => (self.length(2)?.checked_add(1)?, 0),
            0xc9 => (self.length(4)?.checked_add(1)?, 0),
            0xcc | 0xd0 => (1, 0),
            0xcd | 0xd1 | 0xd4 => (2, 0),
            0xd5 => (3, 0),
            0xca | 0xce | 0xd2 => (4, 0),
            0xd6 => (5, 0),
            0xcb | 0xcf | 0xd3 => (8, 0),
            0xd7 => (9, 0),
            0xd8 => (17, 0),
            0xdc => (0, self.length(2)?),
            0xdd => (0, self.length(4)?),
            0xde => (0, self.length(2)?.checked_mul(2)?),
            0xdf => (0, self.length(4)?.checked_mul(2)?),
        };
        self.take(bytes)?;
        Some(values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_passed_over_whole() {
        let values: [&[u8]; 8] = [
            &[0x05],
            &[0xc0],
            &[0x92, 0x02, 0xc0],
            &[0x82, 0xa1, b'a', 0x01, 0xa1, b'b', 0x91, 0x90],
            &[0xc7, 2, 9, 1, 2],
            &[0xd8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            &[0xcb, 0, 0, 0, 0, 0, 0, 0, 0],
            &[0xdc, 0, 2, 0xff, 0xd9, 1, b'x'],
        ];
        for value in values {
            let mut reader = Reader::new(value);
            assert_eq!(reader.any(), Some(value), "{value:?}");
            assert!(reader.is_at_end());
            for cut in 0..value.len() {
                assert_eq!(Reader::new(&value[..cut]).any(), None, "{value:?} cut at {cut}");
            }
        }
    }

    #[test]
    fn hostile_lengths_and_depths_end_without_a_value() {
        let deep = [vec![0x91; 100_000], vec![0xc0]].concat();
        assert_eq!(Reader::new(&deep).any(), None);
        let allowed = [vec![0x91; DEPTH - 1], vec![0xc0]].concat();
        assert_eq!(Reader::new(&allowed).any(), Some(&allowed[..]));
        for head in 0..=255_u8 {
            let _ = Reader::new(&[head, 0xff, 0xff, 0xff, 0xff, 0xff]).any();
            let _ = Reader::new(&[head]).any();
        }
        assert_eq!(Reader::new(&[0xdd, 0xff, 0xff, 0xff, 0xff]).any(), None);
        assert_eq!(Reader::new(&[0xc6, 0xff, 0xff, 0xff, 0xff, 1]).binary(), None);
        assert_eq!(Reader::new(&[0xa2, 0xff, 0xff]).text(), None, "no UTF-8");
    }
}
