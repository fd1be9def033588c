//! Letters to measure with.

use std::time::Duration;

use dlq_core::{
    Attempt, Cause, DeadLetter, ErrorClass, Failure, History, Message, Origin, Position, Reason,
    Timestamp,
};

/// Text of `size` bytes that no other letter has.
fn payload(n: u64, size: usize) -> Vec<u8> {
    let mut state = n.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let next = |_| {
        // Xorshift, a letter of the alphabet at a time.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        b'a' + (state % 26) as u8
    };
    (0..size).map(next).collect()
}

/// A letter with a payload of `size` bytes and two attempts; a tenth of them are decode errors.
pub(crate) fn letter(n: u64, size: usize) -> DeadLetter {
    let origin = Origin::new("memory", "payments", Position::Offset(n));
    let at = Timestamp::from_millis(1_763_683_200_000 + i64::try_from(n).unwrap_or(0));
    let (class, cause, reason) = if n.is_multiple_of(10) {
        (ErrorClass::Permanent, Cause::Decode, Reason::Permanent)
    } else {
        (ErrorClass::Transient, Cause::Error, Reason::Exhausted)
    };
    let mut history = History::new();
    for number in 1..=2 {
        let failure = Failure::new(
            class,
            cause,
            "app::ChargeError",
            &format!("provider timed out after {n}ms"),
        )
        .timed(at, Duration::from_millis(5));
        history.push(Attempt { number, generation: 0, failure });
    }
    let message = Message::new(format!("payments.{}", n % 8), payload(n, size))
        .with_id(format!("evt-{n}"))
        .with_key(format!("customer-{}", n % 100))
        .with_header("traceparent", format!("00-4bf92f3577b34da6a3ce{n:012x}-00f067aa0ba902b7-01"))
        .with_published_at(at);
    let letter = DeadLetter::new(message, origin, "payments.charge", reason);
    let mut letter = letter.with_history(history);
    letter.service = Some("payments".to_owned());
    letter.attempts = 2;
    letter.deliveries = 1;
    letter.died_at = at;
    letter
}
