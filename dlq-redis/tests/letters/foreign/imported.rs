//! The store of event-dlq, read for an import.

use dlq_core::{DeadLetter, Resolution, Status};
use dlq_redis::foreign::event_dlq::{BadMessage, EventDlq};

use super::{EVENT_DLQ, ForeignServer};

async fn read(mut store: EventDlq) -> (Vec<DeadLetter>, Vec<BadMessage>) {
    let (mut letters, mut bad) = (Vec::new(), Vec::new());
    while let Some(page) = store.next_page().await.unwrap() {
        for one in page {
            match one {
                Ok(letter) => letters.push(letter),
                Err(why) => bad.push(why),
            }
        }
    }
    (letters, bad)
}

#[tokio::test(flavor = "multi_thread")]
async fn every_message_of_event_dlq_is_a_letter() {
    let Some(place) = ForeignServer::with(EVENT_DLQ).await else { return };
    let before = place.dump().await;
    let store = EventDlq::open(&place.client, "dlq:").await.unwrap();
    assert_eq!(store.count().await.unwrap(), 4);
    let (letters, bad) = read(store.consumer("billing-worker")).await;
    assert_eq!((letters.len(), bad), (4, vec![]));
    let of = |id: &str| letters.iter().find(|one| one.attributes["event-dlq.id"] == id).unwrap();
    let a = of("a");
    assert_eq!((a.message.event(), a.message.id()), (Some("order.placed"), Some("orig-a")));
    assert_eq!(a.message.payload().unwrap(), &b"{\"order\":\xff1}"[..]);
    assert_eq!(a.message.headers().get("trace").unwrap(), b"t1");
    assert_eq!((a.error(), a.state.retry_count), ("cannot pay: card 17 refused".to_owned(), 3));
    assert_eq!((a.service.as_deref(), &*a.consumer), (Some("billing"), "billing-worker"));
    assert_eq!(a.died_at.to_string(), "2026-11-25T10:11:12.000000000Z");
    assert_eq!(a.state.status, Status::Pending);
    let b = of("b");
    assert_eq!(
        (b.state.status, b.state.resolution),
        (Status::Resolved, Some(Resolution::Succeeded))
    );
    assert_eq!(of("c").state.status, Status::Quarantined);
    let bare = of("bare");
    assert_eq!((bare.message.id(), bare.message.payload().map(|one| one.len())), (None, Some(0)));
    assert_eq!(bare.service, None);
    // The other store, which puts deaths of a message together; ids are as before where read again.
    let (other, _) = read(EventDlq::open(&place.client, "shop:dlq:").await.unwrap()).await;
    assert_eq!((other.len(), &*other[0].consumer, &*other[0].error()), (4, "shop:dlq", "again"));
    assert_eq!(other[0].state.status, Status::Pending, "an empty time is none");
    let (again, _) = read(EventDlq::open(&place.client, "dlq:").await.unwrap()).await;
    assert!(again.iter().zip(&letters).all(|(one, other)| one.id == other.id));
    assert!(other.iter().all(|one| letters.iter().all(|letter| letter.id != one.id)));
    assert_eq!(place.dump().await, before);
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_that_cannot_be_read_are_named_and_the_others_are_read() {
    let Some(place) = ForeignServer::with(EVENT_DLQ).await else { return };
    place.words("ZADD dlq:by_time 1 gone 2 kind 3 time 4 event 5 odd").await;
    place.words("SET dlq:msg:kind text").await;
    place.words("HSET dlq:msg:time id time event_name e created_at soon").await;
    place.words("HSET dlq:msg:event id event error x").await;
    place.words("HSET dlq:msg:odd id odd event_name e metadata [[1]] created_at 9").await;
    let (letters, bad) = read(EventDlq::open(&place.client, "dlq:").await.unwrap()).await;
    assert_eq!(letters.len(), 5);
    assert_eq!(letters[0].attributes["event-dlq.metadata"], "[[1]]");
    let why: Vec<_> = bad.iter().map(BadMessage::to_string).collect();
    assert_eq!(
        why,
        [
            "message gone: it is in the index, and its hash has gone",
            "message kind: its key holds a value of another type",
            "message time: its field `created_at` is no time in seconds",
            "message event: it has no field `event_name`",
        ]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prefix_without_a_store_is_named() {
    let Some(place) = ForeignServer::with("").await else { return };
    let error = EventDlq::open(&place.client, "dlq").await.unwrap_err();
    assert!(error.to_string().contains("there is no `dlqby_time`"), "{error}");
    place.words("SET dlq:by_time text").await;
    let error = EventDlq::open(&place.client, "dlq:").await.unwrap_err();
    assert!(error.to_string().contains("is a string"), "{error}");
}
