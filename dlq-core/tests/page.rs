//! Cursors: their text comes back as it was, and orders as the list does.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use dlq_core::{Cursor, LetterId, Timestamp};
use proptest::prelude::*;

fn any_place() -> impl Strategy<Value = (Timestamp, LetterId)> {
    (any::<i64>(), any::<[u8; 16]>())
        .prop_map(|(nanos, id)| (Timestamp::from_nanos(nanos), LetterId::from_bytes(id)))
}

fn any_cursor() -> impl Strategy<Value = Cursor> {
    (any_place(), proptest::option::of(any_place()))
        .prop_map(|((at, id), start)| Cursor::after(at, id).with_start(start))
}

proptest! {
    #[test]
    fn a_cursor_round_trips(cursor in any_cursor()) {
        prop_assert_eq!(cursor.to_string().parse::<Cursor>().unwrap(), cursor);
        let json = serde_json::to_string(&cursor).unwrap();
        prop_assert_eq!(serde_json::from_str::<Cursor>(&json).unwrap(), cursor);
    }

    #[test]
    fn texts_order_as_cursors_do(left in any_cursor(), right in any_cursor()) {
        prop_assert_eq!(left.to_string().cmp(&right.to_string()), left.cmp(&right));
    }

    #[test]
    fn any_other_text_is_refused_without_a_panic(text in any::<String>()) {
        if let Ok(cursor) = text.parse::<Cursor>() {
            prop_assert_eq!(cursor.to_string(), text.to_lowercase());
        }
    }
}
