//! Types of header values.

use dlq_core::Timestamp;

/// A time, unless it is the -1 of a record without one.
pub(super) fn millis(value: i64) -> Option<Timestamp> {
    (value >= 0).then(|| Timestamp::from_millis(value))
}

/// UTF-8.
pub(super) fn text(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes).ok()
}

/// The name of a topic.
pub(super) fn topic(bytes: &[u8]) -> Option<&str> {
    let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    let is_topic = (1..=249).contains(&bytes.len()) && bytes.iter().all(is_name);
    text(bytes).filter(|_| is_topic)
}

/// Four bytes, the highest first.
pub(super) fn i32(bytes: &[u8]) -> Option<i64> {
    Some(i64::from(i32::from_be_bytes(bytes.try_into().ok()?)))
}

/// Eight bytes, the highest first.
pub(super) fn i64(bytes: &[u8]) -> Option<i64> {
    Some(i64::from_be_bytes(bytes.try_into().ok()?))
}

/// Reads an integer of one to eight bytes with a sign, highest byte first, without needless bytes.
pub(super) fn minimal(bytes: &[u8]) -> Option<i64> {
    let first = bytes.first().filter(|_| bytes.len() <= 8)?;
    let sign = if *first >= 0x80 { -1 } else { 0 };
    Some(bytes.iter().fold(sign, |number, byte| (number << 8) | i64::from(*byte)))
}

/// Digits, with or without a minus.
pub(super) fn decimal(bytes: &[u8]) -> Option<i64> {
    let digits = bytes.strip_prefix(b"-").unwrap_or(bytes);
    let is_number = digits.iter().all(u8::is_ascii_digit);
    text(bytes).filter(|_| is_number)?.parse().ok()
}

/// A count in four bytes, in one without a sign, or in digits.
pub(super) fn count(bytes: &[u8]) -> Option<u32> {
    match bytes {
        [byte] => Some(u32::from(*byte)),
        [_, _, _, _] => i32(bytes).and_then(|count| u32::try_from(count).ok()),
        _ => decimal_count(bytes),
    }
}

/// A count in digits.
pub(super) fn decimal_count(bytes: &[u8]) -> Option<u32> {
    decimal(bytes).and_then(|count| u32::try_from(count).ok())
}

/// A time in RFC 3339, or in milliseconds as digits.
pub(super) fn time(bytes: &[u8]) -> Option<Timestamp> {
    decimal(bytes).and_then(millis).or_else(|| text(bytes)?.trim().parse().ok())
}

/// The topic at the end of an address.
pub(super) fn last_segment(bytes: &[u8]) -> Option<&str> {
    // Addresses of these frameworks may carry settings behind a question mark.
    let address = text(bytes)?.split('?').next()?;
    topic(address.rsplit('/').next()?.as_bytes())
}
