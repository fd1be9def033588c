//! A broker that is away and still one of the cluster: the groups that it decides for are known to no other, and it leads what
//! it has.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use dlq_core::log::Log as _;
use dlq_core::{Disposition, Settle as _, Source as _, StoreErrorKind, TransportError};
use dlq_kafka::rdkafka::ClientConfig;
use dlq_kafka::rdkafka::admin::{NewTopic, TopicReplication};
use dlq_kafka::rdkafka::consumer::{BaseConsumer, Consumer as _};
use dlq_kafka::rdkafka::producer::{FutureProducer, FutureRecord};
use dlq_kafka::{Brokers, KafkaLetters, KafkaTransport, ReplayPlan, Start};
use dlq_services::{Cluster, Service, or_skip};
use tokio::task::block_in_place;
use tokio::time::timeout;

use crate::fixture::{self, PATIENCE, handle};
use crate::fixture_feed::{Topic, follow};
use crate::fixture_replay::{Shop, to_origin};
use crate::topic;

/// So many partitions has the topic of offsets here.
const OFFSETS: u32 = 5;

/// A cluster that keeps a broker which falls silent, so that no other takes over what it has.
fn three() -> Option<Cluster> {
    let builder = Service::Kafka.builder().ours();
    let builder = builder.setting("broker.session.timeout.ms", "1800000");
    // What it has copies of is confirmed without it soon.
    let builder = builder.setting("replica.lag.time.max.ms", "10000");
    block_in_place(|| or_skip(Service::Kafka, builder.start_cluster())).ok()
}

/// The broker that decides for a group.
fn coordinator(url: &str, group: &str) -> i32 {
    let hash =
        group.bytes().fold(0_i32, |hash, byte| hash.wrapping_mul(31).wrapping_add(i32::from(byte)));
    let client: BaseConsumer = ClientConfig::new().set("bootstrap.servers", url).create().unwrap();
    let leader = || {
        let found = client.fetch_metadata(Some("__consumer_offsets"), PATIENCE).unwrap();
        let mut partitions = found.topics()[0].partitions().iter();
        partitions
            .find(|found| found.id().unsigned_abs() == hash.unsigned_abs() % OFFSETS)
            .map(|of| of.leader())
    };
    let until = Instant::now() + PATIENCE;
    block_in_place(|| {
        loop {
            assert!(Instant::now() < until, "nobody decides for `{group}`");
            if let Some(leader @ 1..) = leader() {
                break leader;
            }
        }
    })
}

/// Where the other brokers are.
fn others(cluster: &Cluster, silent: usize) -> String {
    let others = cluster.nodes().iter().enumerate().filter(|(index, _)| *index != silent);
    others.map(|(_, node)| node.url()).collect::<Vec<_>>().join(",")
}

/// What a question comes to, which is asked again while its error says nothing: a broker may be slow to come back.
async fn answered<T, E>(
    ask: impl AsyncFn() -> Result<T, E>,
    is_passing: impl Fn(&E) -> bool,
) -> Result<T, E> {
    let until = Instant::now() + PATIENCE * 2;
    loop {
        match ask().await {
            Err(error) if is_passing(&error) && Instant::now() < until => {}
            answer => break answer,
        }
    }
}

fn subscribers(plan: &ReplayPlan) -> BTreeSet<&str> {
    plan.subscribers.iter().map(|subscriber| &*subscriber.consumer).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g1_groups_of_a_broker_that_is_away_are_not_taken_for_absent() {
    let Some(mut cluster) = three() else { return };
    let url = cluster.url();
    // The topic of offsets is made with the first group.
    Topic::at(&url, "begun", 1).await.commit("begun", 0, "");
    let shop = Shop::at(url.clone(), "shop");
    let first = KafkaLetters::group_of(&shop.dlq);
    let home = coordinator(&url, &first);
    let there: &[i32] = &[home];
    for (name, brokers) in [(&shop.topic, [there; 3].as_slice()), (&shop.dlq, &[there])] {
        let partitions = i32::try_from(brokers.len()).unwrap();
        let replication = TopicReplication::Variable(brokers);
        topic::make(&url, &NewTopic::new(name, partitions, replication)).await;
    }
    // Names of which the last digits differ are of all partitions of the topic of offsets.
    let named = |name: &str| (0..OFFSETS).map(|n| format!("{name}.{n}")).collect::<Vec<_>>();
    let read = Topic { bootstrap: url.clone(), name: shop.topic.clone(), partitions: 1 };
    let readers = named("reader");
    readers.iter().for_each(|group| read.commit(group, 0, ""));
    shop.bury(&shop.dead([3])).await;
    for group in named(&first).iter().chain([&first]) {
        let store = format!("sqlite:///{group}.db");
        let letters = shop.letters().group(&**group);
        drop(follow(&letters, &store, Duration::from_secs(10)).await.unwrap());
    }
    let decides = |group: &String| coordinator(&url, group);
    // A broker that leads neither the topics nor the first group, so that only its own groups are unknown.
    let is_other = |id: &i32| *id != home && *id != decides(&first);
    let id = readers.iter().map(decides).find(is_other).unwrap();
    let (far, near): (BTreeSet<&str>, BTreeSet<_>) =
        readers.iter().map(|group| &**group).partition(|group| coordinator(&url, group) == id);
    let silent = usize::try_from(id).unwrap() - 1;
    let shop = Shop { url: others(&cluster, silent), ..shop };

    let is_named = |text: &str| text.contains(&format!("broker {id} at 127.0.0.1:"));
    let letters = || shop.letters();
    let plan = async || {
        answered(async || to_origin(&letters(), 1).plan().await, |error| error.is_transient())
            .await
            .unwrap()
    };
    let marks = async || {
        let asked = async || letters().marks().await;
        answered(asked, |error| error.is_transient() && !is_named(&error.to_string())).await
    };
    let complete = async || {
        let known = plan().await;
        assert!(subscribers(&known).is_superset(&(&near | &far)), "{known:?}");
        assert!(!known.notes.iter().any(|note| is_named(note)), "{known:?}");
        assert_eq!(marks().await.unwrap().len(), 6);
    };
    complete().await;
    for kills in [false, true] {
        if kills {
            complete().await;
            block_in_place(|| cluster.kill(silent)).unwrap();
        } else {
            block_in_place(|| cluster.pause(silent)).unwrap();
        }
        let known = plan().await;
        assert!(known.notes.iter().any(|note| is_named(note)), "{known:?}");
        // The client gives no part of a list while it waits for the rest.
        let is_none = known.notes.iter().any(|note| note.contains("names no group"));
        assert!(is_none || kills, "{known:?}");
        assert_eq!(subscribers(&known).is_superset(&near), !is_none, "{known:?}");
        assert!(subscribers(&known).is_disjoint(&far), "{known:?}");
        let error = marks().await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
        assert!(is_named(&error.to_string()), "{error}");
        if !kills {
            block_in_place(|| cluster.resume(silent)).unwrap();
        }
    }
}

/// Where a new partition ends, which begins with what comes from now on, only its leader can say.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g4_a_new_partition_whose_broker_is_silent_holds_up_no_other() {
    const TRIPS: u32 = 100;
    let Some(mut cluster) = three() else { return };
    let url = cluster.url();
    Topic::at(&url, "begun", 1).await.commit("late", 0, "");
    let home = coordinator(&url, "late");
    let away = (1..=3).find(|id| *id != home).unwrap();
    let replicas: [&[i32]; 2] = [&[home], &[away]];
    let new = NewTopic::new("late", 2, TopicReplication::Variable(&replicas));
    topic::make(&url, &new).await;
    let silent = usize::try_from(away).unwrap() - 1;
    let url = others(&cluster, silent);
    block_in_place(|| cluster.pause(silent)).unwrap();
    let consumer = KafkaTransport::new("late").name("late");
    let consumer = consumer.without_retries().start(Start::Latest);
    // Who opens it may ask the silent one time and again.
    let brokers = Brokers::at(&*url);
    let opened = answered(|| consumer.source(&brokers), TransportError::is_transient);
    let mut source = opened.await.unwrap();
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", &url).set("linger.ms", "0");
    let producer: FutureProducer = config.create().unwrap();
    let write = async |number: u32| {
        let text = number.to_string();
        let record = FutureRecord::<[u8], _>::to("late").partition(0).payload(text.as_bytes());
        producer.send(record, PATIENCE).await.unwrap();
    };
    let begun = async {
        loop {
            write(0).await;
            if let Ok(next) = timeout(Duration::from_millis(500), source.next()).await {
                match next {
                    Ok(Some((_, settle))) => break settle.settle(Disposition::Succeeded).await,
                    Ok(None) => panic!("it has ended"),
                    Err(error) => assert!(error.is_transient(), "{error}"),
                }
            }
        }
    };
    let begins = timeout(PATIENCE * 2, begun).await;
    let decides = coordinator(&url, "late");
    begins
        .unwrap_or_else(|_| panic!("it does not begin: {decides} decides, {away} is silent"))
        .unwrap();
    let trips = async {
        for number in 1..=TRIPS {
            write(number).await;
            while fixture::number(&handle(&mut source).await) != number {}
        }
    };
    timeout(PATIENCE, trips).await.expect("each comes when it was written");
}
