//! Letters of any content and any size, byte for byte.

use dlq_core::store::{
    ClaimRequest, Claims as _, Finish, Letters as _, Schedule, ScheduleRun, Sink as _,
};
use dlq_core::{Filter, Message, Resolution, SubjectPattern};
use dlq_testkit::fixtures::{CONSUMER, died_again, letter};
use std::time::Duration;

use crate::fixture::{TestDatabase, available};

#[tokio::test]
async fn what_means_something_to_the_server_is_text_like_any_other() {
    if !available() {
        return;
    }
    let store = TestDatabase::fresh().store().await;
    let mut hostile = letter(1);
    let names = ["a.b", "$set", "", "k\0", "v'\"\\", "créé", "a.$[].b"];
    for name in names {
        hostile.attributes.insert(name.to_owned(), format!("${name}.$where"));
    }
    hostile.consumer = "$consumer.\0".to_owned();
    hostile.message = Message::new("orders.$eu.[a-z]+.x\n", &b"\0\xff\xfe$"[..])
        .with_id("$id")
        .with_event("$ne")
        .with_key(&b"\xff\0."[..])
        .with_header("$h.\0", &b"\xff"[..])
        .with_header("", &b""[..]);
    store.put(vec![hostile.clone(), letter(2)]).await.unwrap();
    let found = store.get(hostile.id).await.unwrap().unwrap();
    assert_eq!(found.message, hostile.message);
    assert_eq!(found.attributes, hostile.attributes);
    for name in names {
        let filter = Filter::new().attribute(name, format!("${name}.$where"));
        assert_eq!(store.count(filter).await.unwrap(), 1, "{name:?}");
    }
    let by = |filter: Filter| store.count(filter);
    assert_eq!(by(Filter::new().with_consumer("$consumer.\0".to_owned())).await.unwrap(), 1);
    assert_eq!(by(Filter::new().with_event("$ne".to_owned())).await.unwrap(), 1);
    assert_eq!(by(Filter::new().with_message_id("$id".to_owned())).await.unwrap(), 1);
    let patterns = [
        ("orders.*.[a-z]+.>", 1),
        ("orders.$eu.*.x\n", 1),
        ("orders.$eu.*.x", 0),
        ("orders.$eu.[a-z]*.>", 0),
        ("*.$eu.>", 1),
        ("orders.>", 1),
        ("order.>", 0),
    ];
    for (pattern, count) in patterns {
        let pattern: SubjectPattern = pattern.parse().unwrap();
        let (is, filter) = (pattern.matches(hostile.message.subject()), pattern.clone());
        assert_eq!(is, count == 1, "{pattern:?}");
        let filter = Filter::new().with_subject(filter).with_id(hostile.id);
        assert_eq!(by(filter).await.unwrap(), count, "{pattern:?}");
    }
}

#[tokio::test]
async fn no_letter_is_too_large() {
    if !available() {
        return;
    }
    let place = TestDatabase::fresh();
    let store = place.store().await;
    let size = 40 * 1024 * 1024 + 7;
    let mut large = letter(1);
    let payload: Vec<u8> = (0..size).map(|n: u32| (n % 251) as u8).collect();
    large.message = large.message.with_payload(Some(payload.into()));
    store.put(vec![letter(2), large.clone(), letter(3)]).await.unwrap();
    let found = store.get(large.id).await.unwrap().unwrap();
    assert!(found.message == large.message, "the bytes are the same");
    assert_eq!(
        store.put(vec![large.clone()]).await.unwrap(),
        [dlq_core::store::Receipt::Unchanged]
    );
    let page = store.list(Filter::new().with_id(large.id), Default::default()).await.unwrap();
    assert_eq!(page.letters[0].payload_size, Some(u64::from(size)));
    // A death that replaces it has pieces of its own.
    store.put(vec![died_again(&large)]).await.unwrap();
    let schedule = Schedule::enabled().all_classes();
    let run = ScheduleRun { consumer: CONSUMER.to_owned(), schedule };
    assert_eq!(store.run_schedule(run).await.unwrap().0, 3);
    let claims = store.claim(ClaimRequest::due([CONSUMER], 3, Duration::from_secs(60))).await;
    let claims = claims.unwrap();
    let claim = claims.iter().find(|claim| claim.token.letter == large.id).unwrap();
    assert!(claim.letter.message == large.message, "the bytes are the same");
    let resolved = Finish::Resolved(Resolution::Succeeded);
    store.finish(vec![(claim.token, resolved)]).await.unwrap();
    let found = store.get(large.id).await.unwrap().unwrap();
    assert!(found.message == large.message && found.generation == 1);
    assert_eq!(place.count("parts").await, 6, "pieces of the death before are deleted");
}
