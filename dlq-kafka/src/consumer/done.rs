//! The offsets that are done above the position of a commit, and their text in its metadata.
//!
//! The text is the position that the ranges belong to, then for each range how far it begins after the end of the one
//! before and how long it is, both in digits of five bits. Ranges that were written for another position are not believed:
//! a tool that copies commits from one cluster to another keeps the metadata and changes the position.
//!
//! As with the position itself, the log is taken for the same. Where brokers lose the end of a log that they had confirmed,
//! and write other records there while nobody reads, those are passed over up to the end of the ranges.

/// The digits of a number: five bits each, the lowest first; the upper half means that more follow.
const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
const MORE: u64 = 32;

/// The most ranges that are looked at. A range takes two digits at least, and the broker takes 4 KiB of metadata.
pub(crate) const RANGES: usize = 2_048;

/// Ranges of offsets, without the last of each: ascending, and apart from each other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Done {
    ranges: Vec<(u64, u64)>,
}

impl Done {
    /// Returns whether `offset` is in one of the ranges.
    pub(crate) fn contains(&self, offset: u64) -> bool {
        // The range that may have it is the last of those that begin no later.
        let after = self.ranges.partition_point(|(from, _)| *from <= offset);
        after > 0 && self.ranges[after - 1].1 > offset
    }

    /// Returns how many offsets from `from` on and before `to` are in the ranges.
    pub(crate) fn within(&self, from: u64, to: u64) -> u64 {
        let part = |range: &(u64, u64)| range.1.min(to).saturating_sub(range.0.max(from));
        self.ranges.iter().map(part).sum()
    }

    /// Forgets what stands before `position`.
    pub(crate) fn reached(&mut self, position: u64) {
        if self.ranges.first().is_some_and(|(from, _)| *from < position) {
            self.ranges.retain(|(_, to)| *to > position);
            if let Some((from, _)) = self.ranges.first_mut() {
                *from = position.max(*from);
            }
        }
    }

    pub(crate) fn clear(&mut self) {
        self.ranges.clear();
    }

    /// Returns these ranges and `more`, which may overlap.
    pub(crate) fn with(&self, more: impl IntoIterator<Item = (u64, u64)>) -> Self {
        let mut all: Vec<_> = self.ranges.iter().copied().chain(more).collect();
        // A record that an owner before has done counts as done in the tracker as well, so the ranges of both overlap.
        all.sort_unstable();
        let mut ranges: Vec<(u64, u64)> = Vec::with_capacity(all.len());
        for (from, to) in all {
            match ranges.last_mut() {
                Some(last) if from <= last.1 => last.1 = last.1.max(to),
                _ => ranges.push((from, to)),
            }
        }
        Self { ranges }
    }

    /// Writes the ranges above `position` in at most `room` bytes. The highest are left out when there is no room for them:
    /// their records run again.
    pub(crate) fn write(&self, position: u64, room: usize) -> Option<String> {
        let mut text = format!("{position}:");
        let start = text.len();
        let mut end = position;
        for (from, to) in &self.ranges {
            // A range may begin before the position. Only the part above it is written.
            let from = (*from).max(end);
            if from >= *to {
                continue;
            }
            let before = text.len();
            digits(&mut text, from - end);
            digits(&mut text, to - from);
            if text.len() > room {
                // Taken out whole: half of a range would read as another one.
                text.truncate(before);
                break;
            }
            end = *to;
        }
        (text.len() > start).then_some(text)
    }

    /// Reads what [`write`](Self::write) wrote for `position`. Returns no ranges if the text is of another position, or is
    /// not one that `write` can have written.
    pub(crate) fn read(text: &str, position: u64) -> Self {
        Self::parse(text, position).unwrap_or_default()
    }

    fn parse(text: &str, position: u64) -> Option<Self> {
        let (of, text) = text.split_once(':')?;
        // Ranges of another position may be of another log: believed, they would pass over records that nobody has done (G1).
        if of.parse() != Ok(position) {
            return None;
        }
        let mut digits = text.bytes();
        let (mut ranges, mut end) = (Vec::new(), position);
        while digits.len() > 0 {
            // Checked: anybody can write this text, and a sum that wraps around would mark offsets that were never done.
            let from = end.checked_add(number(&mut digits)?)?;
            // `write` makes no empty range, so this is the text of somebody else.
            let length = number(&mut digits).filter(|length| *length > 0)?;
            end = from.checked_add(length)?;
            ranges.push((from, end));
        }
        Some(Self { ranges })
    }
}

fn digits(text: &mut String, mut number: u64) {
    loop {
        let low = number % MORE;
        number /= MORE;
        let digit = if number > 0 { low + MORE } else { low };
        text.push(char::from(DIGITS[usize::try_from(digit).unwrap_or(0)]));
        if number == 0 {
            return;
        }
    }
}

fn number(text: &mut impl Iterator<Item = u8>) -> Option<u64> {
    let (mut number, mut place) = (0_u64, 1_u64);
    loop {
        let byte = text.next()?;
        let digit = DIGITS.iter().position(|digit| *digit == byte)? as u64;
        number = number.checked_add((digit % MORE).checked_mul(place)?)?;
        if digit < MORE {
            return Some(number);
        }
        place = place.checked_mul(MORE)?;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn done(ranges: &[(u64, u64)]) -> Done {
        Done::default().with(ranges.iter().copied())
    }

    #[test]
    fn ranges_that_touch_are_one_and_what_is_passed_is_forgotten() {
        let mut some = done(&[(20, 30), (10, 12), (11, 20), (40, 41)]);
        assert_eq!(some.ranges, [(10, 30), (40, 41)]);
        assert_eq!(
            [9, 10, 29, 30, 40, 41].map(|at| some.contains(at)),
            [false, true, true, false, true, false]
        );
        assert_eq!([some.within(0, 50), some.within(25, 40), some.within(30, 40)], [21, 5, 0]);
        some.reached(15);
        assert_eq!(some.ranges, [(15, 30), (40, 41)]);
        some.reached(40);
        assert_eq!(some.ranges, [(40, 41)]);
        some.reached(41);
        assert_eq!(some, Done::default());
    }

    #[test]
    fn a_range_of_any_length_takes_few_bytes() {
        let long = done(&[(101, 601)]);
        assert_eq!(long.write(100, 4_000).as_deref(), Some("100:B0P"));
        assert_eq!(Done::read("100:B0P", 100), long);
        let far = done(&[(u64::MAX - 1, u64::MAX)]);
        assert_eq!(Done::read(&far.write(0, 4_000).unwrap(), 0), far);
        assert_eq!(Done::default().write(100, 4_000), None);
    }

    #[test]
    fn g1_what_was_written_for_another_position_or_by_others_is_not_believed() {
        let text = "100:B0P";
        for text in [
            text, "99", "99:", ":B", "99:B", "99:BA", "99:B0", "99:B!", "99:g", "x:B0P", "",
            "99:BBé",
        ] {
            assert_eq!(Done::read(text, 99), Done::default(), "{text}");
        }
        let endless = format!("99:{}", "_".repeat(40));
        assert_eq!(Done::read(&endless, 99), Done::default());
    }

    proptest! {
        /// In however little room: what is read was written, and it is the lowest of it.
        #[test]
        fn g1_no_offset_is_read_that_is_not_done(
            position in 0_u64..1_000_000,
            lengths in prop::collection::vec((1_u64..100_000, 1_u64..5_000), 0..100),
            room in 0_usize..300,
        ) {
            let mut end = position;
            let ranges: Vec<_> = lengths.into_iter().map(|(gap, length)| {
                let from = end + gap;
                end = from + length;
                (from, end)
            }).collect();
            let all = done(&ranges);
            let text = all.write(position, room);
            prop_assert!(text.as_ref().is_none_or(|text| text.len() <= room));
            let read = text.map_or_else(Done::default, |text| Done::read(&text, position));
            prop_assert_eq!(&read.ranges[..], &all.ranges[..read.ranges.len()]);
            prop_assert!(room < 299 || read.ranges.len() >= 20.min(all.ranges.len()));
        }
    }
}
