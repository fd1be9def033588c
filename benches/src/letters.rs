//! Letters to measure with.

use std::collections::BTreeMap;
use std::time::Duration;

use dlq_core::{
    Attempt, Cause, DeadLetter, ErrorClass, Failure, Fingerprint, History, LetterId, LetterState,
    Message, Origin, Position, Reason, Timestamp,
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
    DeadLetter {
        id: LetterId::of(&origin, Some(at), "payments.charge"),
        generation: 0,
        message: Message::new(format!("payments.{}", n % 8), payload(n, size))
            .with_id(format!("evt-{n}"))
            .with_key(format!("customer-{}", n % 100))
            .with_header(
                "traceparent",
                format!("00-4bf92f3577b34da6a3ce{n:012x}-00f067aa0ba902b7-01"),
            )
            .with_published_at(at),
        origin,
        consumer: "payments.charge".to_owned(),
        service: Some("payments".to_owned()),
        reason,
        class,
        cause: Some(cause),
        fingerprint: Fingerprint::of("payments.charge", reason, history.last()),
        history,
        attempts: 2,
        deliveries: 1,
        crashes: 0,
        escalations: 0,
        died_at: at,
        confirmed: true,
        attributes: BTreeMap::new(),
        state: LetterState::default(),
    }
}
