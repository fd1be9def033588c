//! The header protocol: what is written is read back, whatever the bytes.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod incoming;
mod selected;

use bytes::Bytes;
use dlq_core::fingerprint::Fingerprint;
use dlq_core::protocol::{self, Decoded, Replay, names};
use dlq_core::{
    Attempt, BindingKey, Cause, DeadLetter, Death, DelayedRetry, Delivery, ErrorClass, Failure,
    Header, Headers, History, LetterId, Message, OperationId, Origin, Position, Reason, Timestamp,
};
use proptest::prelude::*;

fn letter(message: Message, error: &str, attempts: u32) -> DeadLetter {
    let origin = Origin::new("memory", "orders", Position::Offset(42)).with_partition(3);
    let mut history = History::new();
    for number in 1..=attempts {
        let failure = Failure::new(ErrorClass::Transient, Cause::Error, "app::Error", error)
            .timed(Timestamp::from_millis(i64::from(number)), std::time::Duration::from_millis(5));
        history.push(Attempt { number, generation: 0, failure });
    }
    let mut letter = DeadLetter::new(message, origin, "payments.charge", Reason::Exhausted);
    letter.generation = 2;
    letter.service = Some("payments".to_owned());
    letter.class = ErrorClass::Transient;
    letter.cause = Some(Cause::Error);
    letter.history = history;
    letter.attempts = attempts;
    letter.deliveries = 1;
    letter.delayed_retries = 1;
    letter.fingerprint = "v1:0123456789abcdef".parse::<Fingerprint>().unwrap();
    letter.died_at = Timestamp::from_millis(9);
    letter
}

fn carried(letter: &DeadLetter, headers: Headers) -> Message {
    letter.message.clone().with_headers(headers)
}

#[test]
fn a_death_is_read_back() {
    let message = Message::new("orders", "payload")
        .with_key("k")
        .with_published_at(Timestamp::from_nanos(1_234_567_891));
    let letter = letter(message, "line one\r\nline two", 2);
    let (producers, decoded) = protocol::split(&protocol::on_death(&letter));
    assert_eq!(&producers, letter.message.headers());
    assert_eq!(decoded.invalid, []);
    assert_eq!(decoded.message.as_deref(), Some("line one\r\nline two"));
    assert_eq!(decoded.reason, Some(letter.reason));
    assert_eq!(decoded.fingerprint.as_ref(), Some(&letter.fingerprint));
    assert_eq!(decoded.history.as_ref(), Some(&letter.history));
    assert_eq!(decoded.original.offset, Some(Position::Offset(42)));
    assert_eq!(decoded.original.timestamp, letter.message.published_at());
    assert_eq!((decoded.delayed_retries, decoded.attempts), (Some(1), Some(2)));
    assert_eq!(claimed(&decoded, &letter.message), Some((letter.death(), letter.origin)));
}

#[test]
fn an_opaque_position_is_read_back() {
    let message = Message::new("orders", "payload");
    let mut letter = letter(message, "e", 1);
    let position = Position::opaque(vec![0xfe; Position::MAX_OPAQUE]).unwrap();
    letter.origin = letter.origin.with_position(position.clone());
    letter.id = LetterId::of(&letter.origin, None, &letter.consumer);
    let (_, decoded) = protocol::split(&protocol::on_death(&letter));
    assert_eq!((decoded.invalid.len(), &decoded.original.offset), (0, &Some(position)));
    assert_eq!(claimed(&decoded, &letter.message), Some((letter.death(), letter.origin)));
}

/// Returns what a consumer without a secret believes of a message of the main stream.
fn claimed(decoded: &Decoded, message: &Message) -> Option<(Death, Origin)> {
    let claimed = decoded.claimed(message, "payments.charge", &read_at(), None)?;
    Some((claimed.death, claimed.origin))
}

fn read_at() -> Origin {
    Origin::new("memory", "orders", Position::Offset(99))
}

#[test]
fn g2_a_letter_that_took_over_another_death_is_sent_under_the_identity_of_that() {
    let mut letter = letter(Message::new("orders", "payload"), "e", 1);
    let latest = letter.id;
    letter.id = LetterId::of(&letter.origin.clone().with_position(Position::Offset(1)), None, "c");
    let key = BindingKey::new("a secret");
    let sent = protocol::of_replay(&letter, &replay()).bound_by(Some(&key), &letter);
    let (_, decoded) = protocol::split(&sent.onto(letter.message.headers()));
    let claimed = decoded.claimed(&letter.message, "payments.charge", &read_at(), Some(&key));
    assert_eq!(claimed.unwrap().death, Death { letter: latest, generation: 2 });
    // To its handler, which is no main stream, under its own.
    let (_, decoded) = protocol::split(&protocol::on_replay_to_handler(&letter, &replay()));
    assert_eq!(decoded.letter, Some(letter.id));
}

fn replay() -> Replay {
    Replay {
        operation: OperationId::of("t", Timestamp::EPOCH, 0),
        count: 1,
        from: "sqlite".to_owned(),
        at: Timestamp::EPOCH,
    }
}

#[test]
fn our_headers_do_not_grow_from_cycle_to_cycle() {
    let mut letter =
        letter(Message::new("orders", "p").with_header("tag", "a").with_header("tag", "b"), "e", 3);
    let replay = Replay {
        operation: OperationId::of("t", Timestamp::EPOCH, 0),
        count: 1,
        from: "sqlite".to_owned(),
        at: Timestamp::EPOCH,
    };
    let first = (protocol::on_death(&letter).len(), protocol::on_replay(&letter, &replay).len());
    for _ in 0..20 {
        let (producers, _) = protocol::split(&protocol::on_replay(&letter, &replay));
        letter.message = letter.message.clone().with_headers(producers);
        let (producers, _) = protocol::split(&protocol::on_death(&letter));
        letter.message = letter.message.clone().with_headers(producers);
    }
    assert_eq!(
        (protocol::on_death(&letter).len(), protocol::on_replay(&letter, &replay).len()),
        first
    );
}

#[test]
fn g8_a_replay_gives_back_names_like_ours_as_they_were() {
    let message = Message::new("orders", "p")
        .with_header("retry.count", "7")
        .with_header("error.message", "the producer's")
        .with_header("original.partition", "9")
        .with_header("dlq.id", "copied");
    let letter = letter(message, "e", 3);
    let replay = Replay {
        operation: OperationId::of("t", Timestamp::EPOCH, 0),
        count: 1,
        from: "orders.dlq/0/1".to_owned(),
        at: Timestamp::EPOCH,
    };
    let sent = protocol::on_replay(&letter, &replay);
    let values = |name: &str| {
        let named = sent.iter().filter(|header| header.name == name);
        named.map(|header| header.value.clone().unwrap_or_default()).collect::<Vec<_>>()
    };
    assert_eq!(values("retry.count"), ["7", "0"], "ours is the last one");
    assert_eq!(values("error.message"), ["the producer's"]);
    assert_eq!((values("original.partition").len(), values("dlq.id").len()), (1, 1), "ours only");
    let (producers, decoded) = protocol::split(&sent);
    assert_eq!(&producers, letter.message.headers());
    assert_eq!((decoded.delayed_retries, decoded.letter), (Some(0), Some(letter.id)));
}

#[test]
fn one_of_our_headers_can_be_left_out() {
    let letter = letter(Message::new("orders", "p").with_header("tag", "a"), "e", 3);
    let replay = Replay {
        operation: OperationId::of("t", Timestamp::EPOCH, 0),
        count: 1,
        from: "sqlite".to_owned(),
        at: Timestamp::EPOCH,
    };
    let without =
        |name| protocol::of_replay(&letter, &replay).without(name).onto(letter.message.headers());
    let mut expected = protocol::on_replay(&letter, &replay);
    assert_eq!(without("tag"), expected, "the producer's");
    let all = expected.len();
    expected.remove("replay.original-error");
    assert_eq!(without("replay.original-error"), expected);
    assert_eq!(expected.len(), all - 1);
}

#[test]
fn a_replay_starts_the_count_of_delayed_retries_over() {
    let letter = letter(Message::new("orders", "p"), "e", 3);
    let replay = Replay {
        operation: OperationId::of("t", Timestamp::EPOCH, 0),
        count: 4,
        from: "sqlite".to_owned(),
        at: Timestamp::EPOCH,
    };
    let (_, decoded) = protocol::split(&protocol::on_replay(&letter, &replay));
    assert_eq!((decoded.delayed_retries, decoded.replays), (Some(0), Some(4)));
    assert_eq!(decoded.original_error.as_deref(), Some("e"));
    assert_eq!(decoded.original.topic.as_deref(), Some("orders"));
}

#[test]
fn each_stage_says_which_was_the_one_before() {
    let previous = |headers: &Headers| protocol::split(headers).1.previous_topic.unwrap();
    let mut letter = letter(Message::new("orders", "p"), "e", 1);
    assert_eq!(previous(&protocol::on_death(&letter)), "orders");
    let stage = "orders.retry.1h";
    letter.attributes.insert(names::PREVIOUS_TOPIC.to_owned(), stage.to_owned());
    assert_eq!(previous(&protocol::on_death(&letter)), stage, "the stage that gave up");
    for (stage, expected) in [(None, "orders"), (Some(stage), stage)] {
        let delivery = Delivery::new(letter.message.clone(), letter.origin.clone());
        let delayed_retry = DelayedRetry {
            delivery: match stage {
                Some(stage) => delivery.with_previous(stage),
                None => delivery,
            },
            consumer: "billing".into(),
            due: Timestamp::EPOCH,
            history: letter.history.clone(),
            attempts: 1,
        };
        let headers = protocol::on_delayed_retry(&delayed_retry);
        assert_eq!(previous(&headers), expected);
    }
}

#[test]
fn huge_histories_are_bounded_and_stay_readable() {
    let letter = letter(Message::new("orders", "p"), &"very long \n".repeat(2000), 100);
    let headers = protocol::on_death(&letter);
    let size = headers.get(names::ERROR_HISTORY).unwrap().len();
    assert!(size <= 17 * 1024, "{size}");
    let history = protocol::split(&headers).1.history.unwrap();
    assert_eq!(history.len(), 100);
    assert_eq!(history.attempts()[0].number, 1);
    assert_eq!(history.attempts().last().unwrap().number, 100);
}

fn any_header() -> impl Strategy<Value = Header> {
    let ours = (0..protocol::TABLE.len()).prop_map(|i| protocol::TABLE[i].name.as_bytes().to_vec());
    let kept = Just(b"dlq.kept.error.class".to_vec());
    let name = prop_oneof![ours, kept, prop::collection::vec(any::<u8>(), 0..12)];
    let value = prop::option::of(prop::collection::vec(any::<u8>(), 0..40));
    (name, value)
        .prop_map(|(name, value)| Header { name: name.into(), value: value.map(Bytes::from) })
}

proptest! {
    #[test]
    fn reading_is_total(headers in prop::collection::vec(any_header(), 0..20)) {
        let headers: Headers = headers.into_iter().collect();
        let (producers, decoded) = protocol::split(&headers);
        prop_assert!(producers.len() + decoded.invalid.len() <= headers.len());
    }

    #[test]
    fn g8_the_producers_headers_come_back_byte_for_byte(
        headers in prop::collection::vec(any_header(), 0..20),
        payload in prop::option::of(prop::collection::vec(any::<u8>(), 0..20)),
        error in "\\PC*",
    ) {
        let headers: Headers = headers.into_iter().collect();
        let message = Message::tombstone("orders").with_payload(payload.map(Bytes::from)).with_headers(headers.clone());
        let letter = letter(message, &error, 2);
        let written = protocol::on_death(&letter);
        let (producers, decoded) = protocol::split(&written);
        prop_assert_eq!(&producers, &headers);
        prop_assert_eq!(&decoded.invalid, &[]);
        let believed = claimed(&decoded, &carried(&letter, written));
        prop_assert_eq!(believed, Some((letter.death(), letter.origin)));
    }
}

#[test]
fn no_value_of_ours_has_a_control_character() {
    let letter = letter(Message::new("orders", "x"), "a\u{7f}b\r\nc\u{7f}\u{7f}", 2);
    let headers = protocol::on_death(&letter);
    for header in &headers {
        let value = std::str::from_utf8(header.value.as_deref().unwrap()).unwrap();
        // What is no control character of ASCII may stand in JSON.
        assert!(!value.chars().any(|char| char.is_ascii_control()), "{value:?}");
    }
    let (_, decoded) = protocol::split(&headers);
    assert_eq!(decoded.history.as_ref(), Some(&letter.history));
}
