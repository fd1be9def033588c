//! Conversion between our types and those of Postgres.
//!
//! A text of Postgres cannot hold the character NUL, and ours may (G8). In columns of text it stands as U+FDD0 U+FDD1, and
//! U+FDD0 itself as U+FDD0 U+FDD2: two characters that Unicode gives to nobody. Whoever searches for a text searches for
//! it as it stands. Times that the store gives are of Postgres' own kind, to the microsecond.

use std::borrow::Cow;

use dlq_core::{DeadLetter, LetterSummary, Timestamp};
use dlq_letters::Row;
use sqlx::encode::IsNull;
use sqlx::error::BoxDynError;
use sqlx::postgres::types::Oid;
use sqlx::postgres::{
    PgArgumentBuffer, PgHasArrayType, PgRow, PgTypeInfo, PgValueFormat, PgValueRef,
};
use sqlx::{Decode, Encode, Postgres, Row as _, Type};

use crate::columns::{self, Parts};
use crate::error::Result;
use crate::values::Take;

const NUL: &str = "\u{FDD0}\u{FDD1}";
const MARK: char = '\u{FDD0}';
const MARKED: &str = "\u{FDD0}\u{FDD2}";

/// A text as it stands in a column.
pub(super) fn escape(text: Cow<'_, str>) -> Cow<'_, str> {
    if !text.contains(['\0', MARK]) {
        return text;
    }
    // The mark comes first, or the marks that stand for NUL would be marked once more.
    text.replace(MARK, MARKED).replace('\0', NUL).into()
}

pub(super) fn unescape(text: String) -> String {
    if !text.contains(MARK) {
        return text;
    }
    // NUL comes first: a mark that is made plain again could look like the beginning of one.
    text.replace(NUL, "\0").replace(MARKED, "\u{FDD0}")
}

/// Microseconds between 1970 and 2000, where Postgres begins to count.
const EPOCH: i64 = 946_684_800_000_000;
const TIMESTAMPTZ: PgTypeInfo = PgTypeInfo::with_oid(Oid(1184));
const TIMESTAMPTZ_ARRAY: PgTypeInfo = PgTypeInfo::with_oid(Oid(1185));

/// A time of Postgres: microseconds, rounded up, so that nothing is due early.
#[derive(Clone, Copy, Debug)]
pub(super) struct Time(pub(super) Timestamp);

/// Bytes, borrowed or not.
pub(super) struct Blob<'v>(pub(super) Cow<'v, [u8]>);

impl Type<Postgres> for Blob<'_> {
    fn type_info() -> PgTypeInfo {
        <&[u8] as Type<Postgres>>::type_info()
    }
}

impl PgHasArrayType for Blob<'_> {
    fn array_type_info() -> PgTypeInfo {
        <&[u8] as PgHasArrayType>::array_type_info()
    }
}

impl Encode<'_, Postgres> for Blob<'_> {
    fn encode_by_ref(&self, to: &mut PgArgumentBuffer) -> std::result::Result<IsNull, BoxDynError> {
        <&[u8] as Encode<Postgres>>::encode_by_ref(&&*self.0, to)
    }
}

/// To the microsecond, up.
pub(super) fn rounded(time: Timestamp) -> Timestamp {
    Timestamp::from_nanos(micros(time).saturating_mul(1_000))
}

fn micros(time: Timestamp) -> i64 {
    let nanos = time.as_nanos();
    // Euclidean, so that times before 1970 are rounded up as well.
    nanos.div_euclid(1_000) + i64::from(nanos.rem_euclid(1_000) > 0)
}

impl Type<Postgres> for Time {
    fn type_info() -> PgTypeInfo {
        TIMESTAMPTZ
    }
}

impl PgHasArrayType for Time {
    fn array_type_info() -> PgTypeInfo {
        TIMESTAMPTZ_ARRAY
    }
}

impl Encode<'_, Postgres> for Time {
    fn encode_by_ref(&self, to: &mut PgArgumentBuffer) -> std::result::Result<IsNull, BoxDynError> {
        Encode::<Postgres>::encode(micros(self.0) - EPOCH, to)
    }
}

impl<'r> Decode<'r, Postgres> for Time {
    fn decode(value: PgValueRef<'r>) -> std::result::Result<Self, BoxDynError> {
        // Only simple queries answer in text, and none of those is read by this.
        if value.format() == PgValueFormat::Text {
            return Err("a time came as text".into());
        }
        let micros = <i64 as Decode<Postgres>>::decode(value)?;
        let nanos = micros.saturating_add(EPOCH).saturating_mul(1_000);
        Ok(Self(Timestamp::from_nanos(nanos)))
    }
}

/// Reads the columns of a row one after another.
pub(super) struct Fields<'r> {
    record: &'r PgRow,
    next: usize,
}

impl<'r> Fields<'r> {
    pub(super) fn of(record: &'r PgRow) -> Self {
        Self { record, next: 0 }
    }

    fn next<T: Decode<'r, Postgres> + Type<Postgres>>(&mut self) -> Result<T> {
        self.next += 1;
        Ok(self.record.try_get(self.next - 1)?)
    }
}

impl Take for Fields<'_> {
    fn text_or_none(&mut self) -> Result<Option<String>> {
        Ok(self.next::<Option<String>>()?.map(unescape))
    }

    fn json_text(&mut self) -> Result<String> {
        self.next()
    }

    fn int_or_none(&mut self) -> Result<Option<i64>> {
        self.next()
    }

    fn bytes_or_none(&mut self) -> Result<Option<Vec<u8>>> {
        self.next()
    }

    fn time_or_none(&mut self) -> Result<Option<Timestamp>> {
        Ok(self.next::<Option<Time>>()?.map(|time| time.0))
    }

    fn flag(&mut self) -> Result<bool> {
        self.next()
    }
}

/// Reads what `select_head` or, if it `is_whole`, `select_whole` selects.
pub(super) fn read_row(record: &PgRow, is_whole: bool) -> Result<Row> {
    let mut fields = Fields::of(record);
    if is_whole { columns::read_whole(&mut fields) } else { columns::read_head(&mut fields) }
}

/// The same, for a list.
pub(super) fn read_summary(record: &PgRow) -> Result<LetterSummary> {
    columns::read_summary(&mut Fields::of(record))
}

/// Reads what `select_whole` selects.
pub(super) fn read_whole(record: &PgRow) -> Result<Row> {
    columns::read_whole(&mut Fields::of(record))
}

/// A letter that is new.
impl<'v> From<&'v DeadLetter> for Parts<'v> {
    fn from(letter: &'v DeadLetter) -> Self {
        Self {
            letter,
            available_at: None,
            item: None,
            fence: 0,
            claim: None,
            finished: None,
            lapses: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_text_comes_back() {
        for text in ["", "plain", "a\0b", "\u{FDD0}", "\u{FDD0}\u{FDD1}\0", "\0\u{FDD2}\u{FDD0}\0"]
        {
            let stored = escape(text.into());
            assert!(!stored.contains('\0'));
            assert_eq!(unescape(stored.into_owned()), text);
        }
    }

    #[test]
    fn nothing_is_due_early() {
        for nanos in [0, 1, 999, 1_000, 1_001, -1, -1_000, i64::MAX] {
            let time = Timestamp::from_nanos(nanos);
            assert!(rounded(time) >= time || nanos == i64::MAX, "{nanos}");
            assert_eq!(rounded(rounded(time)), rounded(time));
        }
    }
}
