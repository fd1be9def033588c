//! G8 where Postgres has limits of its own: rows of an index, texts without NUL, values below a gigabyte.

use std::time::Duration;

use dlq_core::idempotency::{Idempotency as _, IdempotencyClaim};
use dlq_core::store::{
    Actor, ClaimRequest, Claims as _, Finish, ItemOutcome, Letters as _, OperationSpec,
    Operations as _, Receipt, Schedule, ScheduleRun, Sink as _,
};
use dlq_core::{DeadLetter, Filter, LetterId, Message, PageRequest, Resolution, StoreErrorKind};
use dlq_testkit::fixtures::{died_again, failed, letter_of};

use crate::fixture::{Schema, available};

/// A text in which nothing repeats, so that no index can make it shorter; of any two, all but the last letter is equal.
fn long(what: char, length: usize, last: char) -> String {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64 ^ u64::from(u32::from(what));
    let random = std::iter::repeat_with(move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        char::from(b'a' + (state % 26) as u8)
    });
    std::iter::once(what).chain(random.take(length - 2)).chain([last]).collect()
}

/// Everything by which letters are found is 10,000 characters long.
fn endless(last: char) -> DeadLetter {
    let text = |what| long(what, 10_000, last);
    let message = Message::new(text('s'), "x").with_id(text('i')).with_event(text('e'));
    let mut letter = letter_of(message, u64::from(u32::from(last)));
    letter.consumer = text('c');
    letter.service = Some(text('v'));
    letter.id = LetterId::of(&letter.origin, letter.message.published_at(), &letter.consumer);
    letter
}

#[tokio::test]
async fn g8_names_of_any_length_are_stored_and_found() {
    if !available() {
        return;
    }
    let schema = Schema::fresh();
    let store = schema.store().await;
    let (one, other) = (endless('1'), endless('2'));
    let receipts = store.put(vec![one.clone(), other.clone()]).await.unwrap();
    assert_eq!(receipts, [Receipt::Stored, Receipt::Stored]);
    let read = store.get(one.id).await.unwrap().unwrap();
    assert_eq!(read.message, one.message);
    assert_eq!((&read.consumer, &read.service), (&one.consumer, &one.service));
    let subject = one.message.subject().parse().unwrap();
    let filters = [
        Filter::new().with_subject(subject),
        Filter::new().with_event(one.message.event().unwrap().to_owned()),
        Filter::new().with_message_id(one.message.id().unwrap().to_owned()),
        Filter::new().with_consumer(one.consumer.clone()),
        Filter::new().with_consumer(one.consumer.clone()).with_consumer("short".to_owned()),
    ];
    for filter in filters {
        let page = store.list(filter.clone(), PageRequest::default()).await.unwrap();
        let ids: Vec<_> = page.letters.iter().map(|letter| letter.id).collect();
        assert_eq!(ids, [one.id]);
        assert_eq!(store.count(filter.clone()).await.unwrap(), 1);
        assert_eq!(store.stats(filter).await.unwrap().total, 1);
    }
    assert_eq!(store.groups(Filter::new(), 10).await.unwrap().len(), 2);

    let by = Actor::new("ana");
    let operation = store.start(OperationSpec::replay(Filter::new()), by).await.unwrap();
    let request = ClaimRequest::due([one.consumer.as_str()], 10, Duration::from_secs(60));
    let claims = store.claim(request).await.unwrap();
    assert_eq!(claims.iter().map(|claim| claim.letter.id).collect::<Vec<_>>(), [one.id]);
    assert!(store.next_due(vec![other.consumer.clone()]).await.unwrap().is_some());
    let success = Finish::Resolved(Resolution::Succeeded);
    store.finish(vec![(claims[0].token, success)]).await.unwrap();
    let progress = store.operation(operation.id).await.unwrap().unwrap().progress;
    assert_eq!(progress.with_outcome(ItemOutcome::Succeeded), 1);
    let schedule = Schedule::enabled();
    let run = ScheduleRun { consumer: one.consumer.clone(), schedule };
    assert_eq!(store.run_schedule(run.clone()).await.unwrap().0, 0);
    store.run_schedule(run).await.unwrap();
    store.put(vec![died_again(&one)]).await.unwrap();
}

/// The keys by which originals are known, and those of handlers, are as long as producers make them.
#[tokio::test]
async fn g8_keys_of_any_length_are_stored_and_found() {
    if !available() {
        return;
    }
    let schema = Schema::fresh();
    let store = schema.builder().dedup(true).open().await.unwrap();
    let one = endless('1');
    let again = {
        let mut again = one.clone();
        again.id = LetterId::from_bytes([7; 16]);
        again
    };
    assert_eq!(store.put(vec![one.clone(), endless('2')]).await.unwrap(), [Receipt::Stored; 2]);
    assert_eq!(store.put(vec![again]).await.unwrap(), [Receipt::Merged(one.id)]);

    let keys = store.idempotency();
    let (hour, consumer) = (Duration::from_secs(3600), one.consumer.as_str());
    for last in ['1', '2'] {
        let key = long('k', 10_000, last);
        let claim = keys.claim(consumer.into(), key.clone().into(), hour).await.unwrap();
        let IdempotencyClaim::New { token, .. } = claim else { panic!("{claim:?}") };
        let claim = keys.claim(consumer.into(), key.clone().into(), hour).await.unwrap();
        assert!(matches!(claim, IdempotencyClaim::InFlight { .. }), "{claim:?}");
        assert!(keys.extend(token.clone(), hour).await.unwrap());
        assert!(keys.complete(token, Duration::ZERO).await.unwrap());
    }
    assert_eq!(keys.purge(10).await.unwrap(), 2);
}

#[tokio::test]
async fn g8_every_text_may_hold_what_postgres_does_not() {
    if !available() {
        return;
    }
    let schema = Schema::fresh();
    let store = schema.store().await;
    for (n, odd) in ["\0", "\u{FDD0}", "\u{FDD1}\u{FDD2}\0", "\u{FDD0}\u{FDD1}", "\0\u{FDD0}\0"]
        .into_iter()
        .enumerate()
    {
        let text = |name: &str| format!("{odd}{name}{odd}");
        let message = Message::new(text("subject"), odd.to_owned())
            .with_id(text("id"))
            .with_event(text("event"))
            .with_key(text("key"))
            .with_header(text("header"), text("value"));
        let mut letter = letter_of(message, n as u64);
        (letter.consumer, letter.service) = (text("consumer"), Some(text("service")));
        letter.attributes.insert(text("name"), text("value"));
        letter = failed(letter, &text(&"long ".repeat(200_000)));
        store.put(vec![letter.clone()]).await.unwrap();
        let mut read = store.get(letter.id).await.unwrap().unwrap();
        read.state = letter.state.clone();
        assert_eq!(read, letter);
        let filter = Filter::new().with_consumer(text("consumer")).error(format!("{odd}long"));
        let filter = filter.with_subject(text("subject").parse().unwrap());
        let filter = filter.attribute(text("name"), text("value"));
        assert_eq!(store.count(filter).await.unwrap(), 1, "{odd:?}");
        let who = Actor::new(text("who")).with_note(text("note"));
        let spec = OperationSpec::replay(Filter::new().with_consumer(text("consumer")));
        let started = store.start(spec, who.clone()).await.unwrap();
        assert_eq!((started.progress.total, started.by), (1, who));
    }
}

/// More than Postgres takes is said at once, and holds up nobody else.
#[tokio::test]
async fn g8_what_postgres_cannot_take_is_refused_by_name() {
    if !available() {
        return;
    }
    let schema = Schema::fresh();
    let store = schema.store().await;
    let large = letter_of(Message::new("large", vec![0_u8; 1_100_000_000]), 1);
    let (before, after) =
        (letter_of(Message::new("small", "x"), 2), letter_of(Message::new("small", "x"), 3));
    let refused = store.put(vec![before, large.clone(), after]).await.unwrap_err();
    assert_eq!(refused.kind(), StoreErrorKind::Refused, "{refused:?}");
    assert!(format!("{refused}").contains(&large.id.to_string()), "{refused}");
    assert_eq!(store.count(Filter::new()).await.unwrap(), 2);
}

/// 100 MB go in one piece; they come back byte for byte.
#[tokio::test]
async fn g8_a_large_payload_is_stored() {
    if !available() {
        return;
    }
    let schema = Schema::fresh();
    let store = schema.store().await;
    let payload: Vec<u8> = (0..100_000_000_u32).map(|n| n.to_le_bytes()[n as usize % 3]).collect();
    let large = letter_of(Message::new("large", payload), 1);
    let small = letter_of(Message::new("small", "x"), 2);
    let receipts = store.put(vec![large.clone(), small]).await.unwrap();
    assert_eq!(receipts, [Receipt::Stored, Receipt::Stored]);
    let read = store.get(large.id).await.unwrap().unwrap();
    assert!(read.message.payload() == large.message.payload(), "not byte for byte");
}
