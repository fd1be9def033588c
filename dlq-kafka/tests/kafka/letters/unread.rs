//! What may not be read, or is away, keeps nobody from the letters beside those that point to it.

use std::future::pending;
use std::io;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use dlq_core::log::{Content, Entries as _, Entry};
use dlq_core::{DeadLetter, Origin, Position};
use dlq_kafka::rdkafka::ClientConfig;
use dlq_kafka::rdkafka::admin::TopicReplication;
use dlq_kafka::rdkafka::producer::{FutureProducer, FutureRecord, Producer as _};
use dlq_kafka::{Brokers, KafkaEntries, KafkaLetters, ReplayOutcome};
use dlq_testkit::fixtures::letter;
use tokio::time::timeout;

use super::pointers::pointing;
use super::replay_brokers::{leader, make, node, three};
use crate::access::{DESCRIBE, DESCRIBE_CONFIGS, TOPIC, allow_only, guarded};
use crate::fixture_feed::follow;
use crate::fixture_letters::{Dead, PATIENCE, available, fill};
use crate::fixture_reading::Look as _;
use crate::fixture_replay::{Shop, to_origin};
use crate::topic;

const STORE: &str = "sqlite:///dlq.db";
const LEASE: Duration = Duration::from_secs(10);
const UNREAD: &str = "kafka.pointer.unread";

async fn open(letters: KafkaLetters) -> KafkaEntries {
    follow(&letters, STORE, LEASE).await.unwrap()
}

/// Everything up to the end, or why it is set aside.
async fn drain(mut feed: KafkaEntries) -> Vec<Result<DeadLetter, String>> {
    let mut letters = Vec::new();
    loop {
        // A broker that has gone may have led more than what is asked for.
        let next = async {
            loop {
                match feed.next(256).await {
                    Err(error) if error.is_transient() => println!("{error}"),
                    fed => break fed.unwrap(),
                }
            }
        };
        let fed = timeout(PATIENCE, next).await.expect("letters come");
        if fed.is_empty() {
            return letters;
        }
        for fed in fed {
            letters.push(match fed.content {
                Content::Letter(letter) => Ok(*letter),
                Content::Damaged(why) => Err(why),
                Content::Outline(_) | Content::Foreign => panic!("all are letters"),
            });
        }
        let confirmed = async {
            while let Err(error) = feed.confirm().await {
                assert!(error.is_transient(), "{error}");
            }
        };
        timeout(PATIENCE, confirmed).await.expect("the group takes it");
    }
}

/// The same letter, which can be sent back.
fn born_in(topic: &str, mut letter: DeadLetter, n: u64) -> DeadLetter {
    letter.origin = Origin::new("kafka", topic, Position::Offset(n)).with_partition(0);
    letter
}

/// What becomes of each letter that is sent back.
async fn sent_back(letters: &KafkaLetters, dead: &[DeadLetter]) -> Vec<Option<String>> {
    let mut why = vec![Some("nothing".to_owned()); dead.len()];
    let replay = to_origin(letters, 1);
    let report = replay.run(pending(), |replayed| {
        let place = dead.iter().position(|letter| letter.id == replayed.id).unwrap();
        why[place] = match &replayed.outcome {
            ReplayOutcome::Sent => None,
            ReplayOutcome::Failed(error) => Some(error.to_string()),
            other => Some(format!("{other:?}")),
        };
    });
    let report = timeout(PATIENCE, report).await.expect("it ends").unwrap();
    assert!(report.is_complete(), "{report}");
    why
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pointer_into_a_topic_that_may_not_be_read_stops_nobody() {
    if !available() {
        return;
    }
    let broker = Arc::new(Mutex::new(guarded()));
    let dead = Dead::at(Arc::clone(&broker), 1).await;
    let name = |name: &str| format!("{}.{name}", dead.topic);
    let (seen, hidden, home) = (name("seen"), name("hidden"), name("home"));
    for topic in [&seen, &hidden, &home] {
        dead.create(topic, 1).await;
        dead.send(FutureRecord::to(topic).partition(0).payload(&b"message"[..])).await;
    }
    allow_only(&broker.lock().unwrap(), TOPIC, &seen, DESCRIBE);
    allow_only(&broker.lock().unwrap(), TOPIC, &hidden, DESCRIBE_CONFIGS);
    let to = |n, topic: &str| born_in(&home, pointing(n, format!("{topic}/0/0")), n);
    let written =
        [to(1, &seen), to(2, &hidden), to(3, &home), born_in(&home, letter(4), 4), to(5, "none")];
    for letter in &written {
        dead.put(0, letter).await;
    }
    let letters = dead.letters();
    let refused = async {
        for n in [1, 2] {
            while !letters.get(letter(n).id).await.unwrap().unwrap().attributes.contains_key(UNREAD)
            {
            }
        }
    };
    timeout(PATIENCE, refused).await.expect("the rules are in force");

    let why = sent_back(&letters, &written).await;
    assert!(why[0].as_ref().is_some_and(|why| why.contains("`Read`")), "{why:?}");
    assert!(why[1].as_ref().is_some_and(|why| why.contains("`Describe`")), "{why:?}");
    assert_eq!(why[2..4], [None, None]);
    assert!(why[4].as_ref().is_some_and(|why| why.contains("Gone")), "{why:?}");

    let fed = drain(open(dead.letters().until_end()).await).await;
    let shown = letters.get_all(written.iter().map(|letter| letter.id).collect()).await.unwrap();
    assert_eq!((fed.len(), shown.len()), (written.len(), written.len()));
    for (n, topic, advice) in [(0, &seen, "`Read`"), (1, &hidden, "`Describe`")] {
        for why in [fed[n].as_ref().unwrap_err(), &shown[n].attributes[UNREAD]] {
            println!("{why}");
            assert!(why.contains(topic.as_str()) && why.contains(advice), "{why}");
        }
    }
    for n in [2, 3] {
        assert_eq!(fed[n].as_ref().unwrap().message, shown[n].message);
    }
    assert_eq!(shown[2].message.payload().map(|payload| &payload[..]), Some(&b"message"[..]));
    assert_eq!(shown[3].message.payload(), letter(4).message.payload());
    assert!(fed[4].as_ref().is_err_and(|why| why.contains("`none`, has gone")), "{:?}", fed[4]);
    assert!(shown[4].attributes.contains_key("kafka.pointer.gone"), "{:?}", shown[4]);
    for n in [1, 2] {
        let one = letters.get(letter(n).id).await.unwrap().unwrap();
        assert!(one.attributes.contains_key(UNREAD), "{one:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pointer_into_a_topic_that_is_away_is_waited_for_and_then_stops_nobody() {
    if !available() {
        return;
    }
    let Some(mut cluster) = three(&[]) else { return };
    let shop = Shop::at(cluster.url(), "away");
    // The first broker of a partition of the source goes, and no other has it.
    make(&shop, &shop.topic, 2, TopicReplication::Variable(&[&[3], &[1]])).await;
    make(&shop, "away-home", 1, TopicReplication::Fixed(3)).await;
    make(&shop, &shop.dlq, 1, TopicReplication::Fixed(3)).await;
    let mut dead = shop.dead(0..3);
    for (n, letter) in (0..).zip(&mut dead) {
        *letter = born_in("away-home", letter.clone(), n);
    }
    for n in [0, 1] {
        let to = format!("{}/{n}/0", shop.topic);
        dead[n].attributes.insert("kafka.pointer".to_owned(), to);
        dead[n].message = dead[n].message.clone().with_payload(None);
    }
    let producer: FutureProducer =
        ClientConfig::new().set("bootstrap.servers", cluster.url()).create().unwrap();
    for n in [0, 1] {
        let record = FutureRecord::<[u8], _>::to(&shop.topic).partition(n).payload(&b"message"[..]);
        producer.send(record, PATIENCE).await.unwrap();
    }
    shop.bury(&dead).await;
    // The same letters once more, which go into no store.
    let unfollowed = Shop { dlq: "away-unfollowed.dlq".to_owned(), ..shop.clone() };
    make(&shop, &unfollowed.dlq, 1, TopicReplication::Fixed(3)).await;
    let letters = unfollowed.bury(&dead).await;
    let mut feed = open(shop.letters().until_end()).await;
    let gone = node(leader(&shop, &shop.topic, 0));
    tokio::task::block_in_place(|| cluster.kill(gone).unwrap());
    let topic = format!("`{}`", shop.topic);

    // The group may have to find another coordinator first.
    let waits = async {
        loop {
            match feed.next(256).await {
                Err(error) if error.to_string().contains(&topic) => break error,
                Err(error) => assert!(error.is_transient(), "{error}"),
                Ok(fed) => panic!("it does not wait: {fed:?}"),
            }
        }
    };
    let error = timeout(PATIENCE, waits).await.expect("it is said");
    println!("{error}");
    assert!(error.is_transient(), "{error}");
    drop(feed);
    let impatient = shop.letters().until_end().message_timeout(Duration::ZERO);
    let fed = drain(open(impatient).await).await;
    assert_eq!(fed.len(), 3);
    assert!(fed[0].as_ref().is_err_and(|why| why.contains(&topic)), "{:?}", fed[0]);
    // Another broker has it.
    let beside = fed[1].as_ref().expect("it is read").message.payload();
    assert_eq!(beside.map(|payload| &payload[..]), Some(&b"message"[..]));
    assert_eq!(fed[2].as_ref().unwrap().message.payload(), dead[2].message.payload());
    let why = sent_back(&letters, &dead).await;
    assert!(why[0].as_ref().is_some_and(|why| why.contains(&topic)), "{why:?}");
    assert_eq!(why[1..], [None, None]);
}

/// Whether the cluster answers is asked by the topic of letters, and that this is gone is an answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g1_a_message_is_waited_for_whatever_becomes_of_the_topic_of_its_letter() {
    if !available() {
        return;
    }
    let Some(mut cluster) = three(&[]) else { return };
    let shop = Shop::at(cluster.url(), "deleted");
    make(&shop, &shop.topic, 1, TopicReplication::Variable(&[&[3]])).await;
    make(&shop, &shop.dlq, 1, TopicReplication::Fixed(3)).await;
    let producer: FutureProducer = shop.config().create().unwrap();
    let record = FutureRecord::<[u8], _>::to(&shop.topic).partition(0).payload(&b"message"[..]);
    producer.send(record, PATIENCE).await.unwrap();
    shop.bury(&[pointing(1, format!("{}/0/0", shop.topic))]).await;
    let mut feed = open(shop.letters().message_timeout(PATIENCE * 10)).await;
    tokio::task::block_in_place(|| cluster.kill(node(3)).unwrap());
    let topic = format!("`{}`", shop.topic);
    let mut waits = async || {
        let said = async {
            loop {
                let error = feed.next(256).await.expect_err("it is waited for");
                assert!(error.is_transient(), "{error}");
                if error.to_string().contains(&topic) {
                    break;
                }
            }
        };
        timeout(PATIENCE, said).await.expect("it is said");
    };
    waits().await;
    topic::delete(&shop.url, &shop.dlq).await;
    for _ in 0..2 {
        waits().await;
    }
    tokio::task::block_in_place(|| cluster.restart(node(3)).unwrap());
    let comes = async {
        loop {
            match feed.next(256).await {
                Ok(mut fed) => break fed.remove(0),
                Err(error) => assert!(error.is_transient(), "{error}"),
            }
        }
    };
    match timeout(PATIENCE, comes).await.expect("it comes").content {
        Content::Letter(letter) => {
            assert_eq!(letter.message.payload().map(|of| &of[..]), Some(&b"message"[..]));
        }
        other => panic!("it is set aside: {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_message_that_cannot_be_decompressed_is_told_from_those_beside_it() {
    if !available() || cfg!(feature = "zstd") {
        return;
    }
    let dead = Dead::fresh(1).await;
    let (source, home) = (format!("{}.source", dead.topic), format!("{}.home", dead.topic));
    for topic in [&source, &home] {
        dead.create(topic, 1).await;
    }
    let message = || FutureRecord::<[u8], _>::to(&source).partition(0).payload(&b"message"[..]);
    for n in 0..7 {
        if n == 4 || n == 5 {
            let codec = if n == 4 { "zstd" } else { "producer" };
            dead.alter(&source, "compression.type", codec).await;
        }
        dead.send(message()).await;
        dead.put(0, &pointing(n, format!("{source}/0/{n}"))).await;
    }
    let fed = drain(open(dead.letters().until_end()).await).await;
    let unread: Vec<_> = (0..7).filter(|n| fed[*n].is_err()).collect();
    assert_eq!(unread, [4]);
    assert!(fed[4].as_ref().unwrap_err().contains("zstd"), "{:?}", fed[4]);
    assert!(fed.iter().flatten().all(|letter| letter.message.payload().is_some()));
}

/// The next two, whatever has to be waited for before them.
async fn next_two(feed: &mut KafkaEntries) -> Vec<Entry> {
    let two = async {
        let mut two = Vec::new();
        while two.len() < 2 {
            match feed.next(256).await {
                Err(error) if error.is_transient() => println!("{error}"),
                fed => two.extend(fed.unwrap()),
            }
        }
        two
    };
    timeout(PATIENCE, two).await.expect("they come")
}

/// As a share group reads it that does not wait for the end of a transaction.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g1_a_message_of_a_transaction_that_is_open_is_waited_for() {
    if !available() {
        return;
    }
    let dead = Dead::fresh(1).await;
    let source = format!("{}.source", dead.topic);
    dead.create(&source, 1).await;
    let open_one = dead.transaction("open");
    let record = FutureRecord::<[u8], [u8]>::to(&source).partition(0).payload(&b"message"[..]);
    open_one.send(record, PATIENCE).await.unwrap();
    // Written now.
    let record = FutureRecord::<[u8], _>::to(&dead.topic).partition(0);
    dead.send(fill(record, &pointing(1, format!("{source}/0/0")))).await;
    dead.put(0, &pointing(2, format!("{source}/1/0"))).await;
    // Behind the last record, which no transaction explains.
    dead.put(0, &pointing(3, format!("{source}/0/9"))).await;
    let letters = dead.letters();
    let shown = letters.get(letter(1).id).await.unwrap().unwrap();
    assert!(shown.attributes[UNREAD].contains("a transaction"), "{:?}", shown.attributes);

    // It ends before long, which a broker that is away may not.
    let mut feed = open(dead.letters().until_end().message_timeout(Duration::ZERO)).await;
    // Nothing behind it waits for that, though it may come again: nothing is committed beyond what is waited for.
    let behind = next_two(&mut feed).await;
    for fed in &behind {
        assert!(
            matches!(&fed.content, Content::Damaged(why) if why.contains("has gone")),
            "{fed:?}"
        );
    }
    feed.confirm().await.unwrap();
    for _ in 0..2 {
        let error = feed.next(256).await.unwrap_err();
        assert!(error.is_transient() && error.to_string().contains("a transaction"), "{error}");
    }
    drop(feed);
    let mut feed = open(dead.letters().until_end().message_timeout(Duration::ZERO)).await;
    let again = next_two(&mut feed).await;
    assert!(again.len() == 2 && again.iter().all(|fed| fed.again), "{again:?}");
    feed.confirm().await.unwrap();
    tokio::task::block_in_place(|| open_one.commit_transaction(PATIENCE).unwrap());
    let fed = drain(feed).await;
    assert_eq!(fed.len(), 1, "{fed:?}");
    let message = fed[0].as_ref().expect("it is waited for").message.payload();
    assert_eq!(message.map(|payload| &payload[..]), Some(&b"message"[..]));
}

/// Stands before a broker, and counts who comes to it first: each client once.
fn counting(broker: &str) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (at, broker) = (listener.local_addr().unwrap().to_string(), broker.to_owned());
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    thread::spawn(move || {
        for one in listener.incoming().flatten() {
            counted.fetch_add(1, Ordering::SeqCst);
            let other = TcpStream::connect(&broker).unwrap();
            let ways = [(one.try_clone(), other.try_clone()), (Ok(other), Ok(one))];
            for (mut from, mut to) in ways.map(|(from, to)| (from.unwrap(), to.unwrap())) {
                thread::spawn(move || {
                    let _ = io::copy(&mut from, &mut to);
                    let _ = to.shutdown(Shutdown::Both);
                });
            }
        }
    });
    (at, count)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_of_many_pointers_are_fetched_together() {
    if !available() {
        return;
    }
    const MANY: u64 = 200;
    let dead = Dead::fresh(1).await;
    let source = format!("{}.source", dead.topic);
    dead.create(&source, 2).await;
    for n in 0..MANY {
        let partition = i32::try_from(n % 2).unwrap();
        let payload = n.to_string();
        let record = FutureRecord::<[u8], _>::to(&source).partition(partition);
        let at = dead.send(record.payload(payload.as_bytes())).await;
        dead.put(0, &pointing(n, format!("{source}/{partition}/{at}"))).await;
    }
    let (at, clients) = counting(dead.brokers.bootstrap());
    let fed =
        drain(open(KafkaLetters::new(&Brokers::at(at), &*dead.topic).until_end()).await).await;
    let payload =
        |letter: &Result<DeadLetter, _>| letter.as_ref().unwrap().message.payload().cloned();
    let payloads: Vec<_> = fed.iter().map(payload).collect();
    let wanted: Vec<_> = (0..MANY).map(|n| Some(n.to_string().into())).collect();
    assert_eq!(payloads, wanted);
    let clients = clients.load(Ordering::SeqCst);
    println!("{clients} clients");
    assert!(clients < 20, "{clients} clients");
}
