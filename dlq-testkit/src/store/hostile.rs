//! Any bytes (G8): no letter is refused for its content, and what went in comes out.

use bytes::Bytes;
use dlq_core::store::{ItemOutcome, Receipt};
use dlq_core::{Attempt, DeadLetter, Filter, History, Message, Order, Timestamp};

use super::check::written;
use super::{Check, StoreFixture};
use crate::fixtures::{failed, failure, hostile_messages, letter, letter_of};

async fn comes_back<F: StoreFixture>(check: &Check<F>, what: &str, letter: &DeadLetter) {
    assert_eq!(check.put_one(letter).await, Receipt::Stored, "{what}");
    let found = check.get(letter.id).await;
    assert_eq!(written(&found), *letter, "{what}");
    assert_eq!(check.put_one(letter).await, Receipt::Unchanged, "{what}");
    let listed = check.list(&Filter::new().with_id(letter.id), Order::NewestFirst, 10).await;
    assert_eq!(listed, [found.summary()], "{what}");
}

/// Payload, key and headers come back byte for byte, whatever they are.
pub async fn any_message_comes_back<F: StoreFixture>(check: Check<F>) {
    for (n, (what, message)) in hostile_messages().into_iter().enumerate() {
        comes_back(&check, what, &letter_of(message, n as u64)).await;
    }
}

/// All hostile letters can be written in one batch, and handed out again.
pub async fn any_message_can_be_replayed<F: StoreFixture>(check: Check<F>) {
    let messages = hostile_messages();
    let letters: Vec<_> =
        (0..).zip(messages).map(|(n, (_, message))| letter_of(message, n)).collect();
    let receipts = check.put(letters.clone()).await;
    assert!(receipts.iter().all(|receipt| *receipt == Receipt::Stored));
    let operation = check.replay().await;
    let claims = check.claim(1_000).await;
    assert_eq!(claims.len(), letters.len());
    for claim in &claims {
        let letter = letters.iter().find(|letter| letter.id == claim.letter.id);
        assert_eq!(Some(&claim.letter.message), letter.map(|letter| &letter.message));
        check.die(claim).await;
    }
    let outcomes = check.outcomes(&operation).await;
    assert!(outcomes.iter().all(|outcome| *outcome == ItemOutcome::FailedAgain));
}

/// Hostile subjects, events, ids and consumers are found by filters that name them.
pub async fn any_text_can_be_filtered_by<F: StoreFixture>(check: Check<F>) {
    let messages = hostile_messages();
    for (n, (what, message)) in messages.into_iter().enumerate() {
        let mut letter = letter_of(message.clone(), n as u64);
        letter.consumer = format!("c\0{}", message.subject());
        letter.service = Some(format!("{}\u{7}'", message.subject()));
        letter.attributes.insert(format!("a\0\"{}", message.subject()), "\0".to_owned());
        check.put_one(&letter).await;
        let mut filter = Filter::new()
            .with_consumer(letter.consumer.clone())
            .with_id(letter.id)
            .with_service(letter.service.clone().unwrap_or_default());
        filter.attributes = letter.attributes.clone();
        filter.events.extend(message.event().map(str::to_owned));
        filter.message_ids.extend(message.id().map(str::to_owned));
        assert!(filter.matches(&letter), "{what}");
        assert_eq!(check.count(filter.clone()).await, 1, "{what}");
        assert_eq!(check.ids(&filter, Order::NewestFirst).await, [letter.id], "{what}");
    }
}

/// A payload of 16 MiB is no problem.
pub async fn a_huge_payload_comes_back<F: StoreFixture>(check: Check<F>) {
    // Its bytes differ from place to place, so that a piece that is lost, doubled or moved shows.
    let payload: Vec<u8> =
        (0..16_u32 << 20).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let letter = letter_of(Message::new("s", payload), 1);
    comes_back(&check, "16 MiB", &letter).await;
}

/// An error text of a megabyte is no problem, and is searched to its end.
pub async fn a_huge_error_comes_back<F: StoreFixture>(check: Check<F>) {
    let mut letter = letter(1);
    let mut long = failure(1);
    long.messages = vec![format!("{}needle", "x é ".repeat(200_000)), "\0source".to_owned()];
    long.backtrace = Some("at\n".repeat(10_000));
    letter.history.push(Attempt { number: 4, generation: 0, failure: long });
    comes_back(&check, "an error of 1 MB", &letter).await;
    assert_eq!(check.count(Filter::new().error("NEEDLE: \0sour")).await, 1);
    assert_eq!(check.count(Filter::new().error("needles")).await, 0);
}

/// Error texts with NUL, terminal control, quotes or half a pattern come back and are found literally.
pub async fn odd_errors_come_back<F: StoreFixture>(check: Check<F>) {
    let texts = ["a\0b", "\u{1b}[31mred", "", "'; --", "{\"a\":1}", "$set", "a%b_c\\", "(.*", "İı"];
    for (n, text) in texts.into_iter().enumerate() {
        comes_back(&check, text, &failed(letter(n as u64), text)).await;
        let filter = Filter::new().error(text);
        let expected = (0..=n).filter(|m| {
            let other = check_error(texts[*m], *m);
            filter.matches(&other)
        });
        assert_eq!(check.count(filter.clone()).await, expected.count() as u64, "{text}");
    }
}

fn check_error(text: &str, n: usize) -> DeadLetter {
    failed(letter(n as u64), text)
}

/// A long history comes back whole, with what was left out of it.
pub async fn a_long_history_comes_back<F: StoreFixture>(check: Check<F>) {
    let mut letter = letter(1);
    letter.history = History::new();
    for number in 1..=250 {
        let failure = failure(u64::from(number));
        letter.history.push(Attempt { number, generation: number / 50, failure });
    }
    assert_eq!(letter.history.omitted(), 150);
    comes_back(&check, "250 attempts", &letter).await;
}

/// Times and counts at their ends come back.
pub async fn extreme_numbers_come_back<F: StoreFixture>(check: Check<F>) {
    let mut letter = letter(1);
    letter.generation = u32::MAX;
    letter.attempts = u32::MAX;
    letter.deliveries = u32::MAX;
    letter.crashes = u32::MAX;
    letter.delayed_retries = u32::MAX;
    letter.died_at = Timestamp::MAX;
    letter.origin = dlq_core::Origin::new("x", "y", dlq_core::Position::Pair(u64::MAX, u64::MAX))
        .with_cluster("c")
        .with_partition(u32::MAX);
    comes_back(&check, "the largest numbers", &letter).await;
    let mut letter = crate::fixtures::letter(2);
    letter.died_at = Timestamp::from_nanos(i64::MIN);
    comes_back(&check, "the earliest time", &letter).await;
}

/// Many headers and attributes, and long ones, come back in order.
pub async fn many_headers_come_back<F: StoreFixture>(check: Check<F>) {
    let mut message = Message::new("s", "x");
    for n in 0..500 {
        message = message.with_header(format!("h{}", n % 50), Bytes::from(vec![n as u8; n]));
    }
    let mut letter = letter_of(message, 1);
    for n in 0..100 {
        letter.attributes.insert(format!("a{n}"), "v".repeat(n));
    }
    comes_back(&check, "500 headers", &letter).await;
}
