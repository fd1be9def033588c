//! A letter that only says where its message stands has that message, as long as it is there.

use dlq_core::log::{Log as _, Range};
use dlq_core::{DeadLetter, Filter};
use dlq_kafka::rdkafka::message::{Header, OwnedHeaders};
use dlq_kafka::rdkafka::producer::FutureRecord;
use dlq_testkit::fixtures::letter;

use crate::fixture_letters::{BEGIN, Dead, available};
use crate::fixture_reading::{Look as _, entries};

pub(super) fn pointing(n: u64, to: String) -> DeadLetter {
    let mut letter = letter(n);
    letter.message = letter.message.with_payload(None).with_headers(dlq_core::Headers::new());
    letter.attributes.insert("kafka.pointer".to_owned(), to);
    letter
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_message_of_a_pointer_is_fetched() {
    if !available() {
        return;
    }
    let dead = Dead::fresh(2).await;
    let source = format!("{}.source", dead.topic);
    dead.create(&source, 2).await;
    for n in 0..4 {
        let (payload, key) = (format!("message {n}"), format!("key {n}"));
        let header = Header { key: "trace", value: Some("t-1") };
        let record = FutureRecord::<[u8], _>::to(&source).partition(1).timestamp(BEGIN + n);
        let record = record.payload(payload.as_bytes()).key(key.as_bytes());
        dead.send(record.headers(OwnedHeaders::new().insert(header))).await;
    }
    dead.put(0, &pointing(1, format!("{source}/1/3"))).await;
    dead.put(1, &pointing(2, format!("{source}/1/0"))).await;
    dead.put(0, &pointing(3, format!("{source}/9/0"))).await;
    dead.put(0, &pointing(4, "mistyped/0/0".to_owned())).await;
    dead.put(0, &pointing(5, "no pointer".to_owned())).await;
    dead.put(1, &letter(6)).await;
    dead.remove_before(&source, 1, 2).await;
    let letters = dead.letters();
    assert_eq!(letters.count(Filter::new()).await.unwrap(), 6);

    let shown = letters.get(letter(1).id).await.unwrap().unwrap();
    let message = &shown.message;
    assert_eq!(message.payload().map(|payload| &payload[..]), Some(&b"message 3"[..]));
    assert_eq!(message.key().map(|key| &key[..]), Some(&b"key 3"[..]));
    assert_eq!(message.headers().get("trace"), Some(&b"t-1"[..]));
    for (n, what) in [(2, "offset 0 of partition 1"), (3, "partition 9"), (4, "`mistyped`")] {
        let shown = letters.get(letter(n).id).await.unwrap().unwrap();
        assert!(shown.attributes["kafka.pointer.gone"].contains(what), "{:?}", shown.attributes);
    }
    assert!(letters.get(letter(5).id).await.unwrap().is_some(), "as it stands");
    let ids = (1..=6).rev().map(|n| letter(n).id).collect::<Vec<_>>();
    let all = letters.get_all(ids.clone()).await.unwrap();
    assert_eq!(all.iter().map(|letter| letter.id).collect::<Vec<_>>(), ids, "as asked for");
    let gone = all.iter().filter(|one| one.attributes.contains_key("kafka.pointer.gone"));
    assert_eq!(gone.count(), 3);

    let bare = entries(&letters, Range::all()).await.swap_remove(0);
    let bare = bare.letter().unwrap().clone();
    assert_eq!((bare.id, bare.message.payload()), (letter(1).id, None));
    assert_eq!(letters.complete(vec![bare]).await.unwrap(), [shown]);
}
