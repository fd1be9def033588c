//! Whatever is in the topic is a letter.

use dlq_core::log::Range;
use dlq_kafka::rdkafka::message::{Header, OwnedHeaders};
use dlq_kafka::rdkafka::producer::FutureRecord;
use dlq_testkit::fixtures::letter;

use crate::fixture_letters::{BEGIN, Dead, available, fill};
use crate::fixture_reading::{self, Look as _, entries};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_is_in_the_topic_is_a_letter() {
    if !available() {
        return;
    }
    let dead = Dead::fresh(1).await;
    let at = || FutureRecord::<[u8], _>::to(&dead.topic).partition(0).timestamp(BEGIN);
    dead.put(0, &letter(1)).await;
    // Without anything; a tombstone; with other bytes than its identity; with half of what it needs; with odd headers.
    dead.send(at().payload(&b"{}"[..])).await;
    dead.send(at().key(&b"key"[..])).await;
    let (one, two) = (letter(1), letter(2));
    dead.send(fill(at(), &one).payload(&b"tampered"[..])).await;
    let mut half = fill(at(), &two);
    let torn = Header { key: "dlq.kafka.rest", value: Some("{\"half\":") };
    half.headers = Some(OwnedHeaders::new().insert(torn));
    dead.send(half).await;
    let odd = OwnedHeaders::new()
        .insert(Header::<&[u8]> { key: "null", value: None })
        .insert(Header { key: "", value: Some(&b"\xff\0"[..]) })
        .insert(Header { key: "dlq.id", value: Some(&[b'7'; 70_000][..]) })
        .insert(Header { key: "dlq.id", value: Some(&b"x"[..]) });
    dead.send(at().headers(odd).payload(&b"odd"[..])).await;
    dead.put(0, &letter(2)).await;
    let letters = dead.letters();
    let read = letters.all().await.unwrap();
    let mut payloads: Vec<_> =
        read.iter().map(|read| read.letter.message.payload().map(|payload| &payload[..])).collect();
    payloads.sort_unstable();
    let mut wanted = vec![
        one.message.payload().map(|payload| &payload[..]),
        Some(&b"{}"[..]),
        None,
        Some(&b"tampered"[..]),
        two.message.payload().map(|payload| &payload[..]),
        Some(&b"odd"[..]),
        two.message.payload().map(|payload| &payload[..]),
    ];
    wanted.sort_unstable();
    assert_eq!(payloads, wanted);
    let tombstone = read.iter().find(|read| read.offset == 2).unwrap();
    assert_eq!(tombstone.letter.message.key().map(|key| &key[..]), Some(&b"key"[..]));
    let odd = read.iter().find(|read| read.offset == 5).unwrap();
    let headers: Vec<_> = odd.letter.message.headers().iter().collect();
    assert!(headers.iter().any(|header| header.name == "null" && header.value.is_none()));
    assert!(headers.iter().any(|header| header.value.as_deref() == Some(&b"\xff\0"[..])));
    // Nothing of what is odd makes anything else odd, and every one can be asked for.
    let ours = letters.get(letter(2).id).await.unwrap().unwrap();
    assert_eq!(ours.with_state(letter(2).state), letter(2));
    for stored in &read {
        assert_eq!(letters.get(stored.letter.id).await.unwrap().as_ref(), Some(&stored.letter));
    }
    let entries = entries(&letters, Range::all()).await;
    let offsets: Vec<_> = entries.iter().map(|entry| fixture_reading::at(&entry.place).1).collect();
    assert_eq!(offsets, [0, 1, 2, 3, 4, 5, 6]);
}
