//! A broker that is away while it is asked which groups there are: the groups that it decides for are known to no other.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use dlq_core::StoreErrorKind;
use dlq_kafka::rdkafka::admin::{NewTopic, TopicReplication};
use dlq_kafka::rdkafka::consumer::{BaseConsumer, Consumer as _};
use dlq_kafka::{KafkaFeed, ReplayPlan, ingest_marks};
use dlq_services::{Service, or_skip};
use tokio::task::block_in_place;

use crate::fixture::PATIENCE;
use crate::fixture_feed::Topic;
use crate::fixture_replay::{Shop, to_origin};
use crate::topic;

/// So many partitions has the topic of offsets here.
const OFFSETS: i32 = 5;

/// The broker that decides for a group.
fn coordinator(shop: &Shop, group: &str) -> i32 {
    let hash =
        group.bytes().fold(0_i32, |hash, byte| hash.wrapping_mul(31).wrapping_add(i32::from(byte)));
    let client: BaseConsumer = shop.config().create().unwrap();
    let leader = || {
        let found = client.fetch_metadata(Some("__consumer_offsets"), PATIENCE).unwrap();
        let mut partitions = found.topics()[0].partitions().iter();
        partitions.find(|found| found.id() == (hash & i32::MAX) % OFFSETS).map(|of| of.leader())
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

fn hearers(plan: &ReplayPlan) -> BTreeSet<&str> {
    plan.hearers.iter().map(|hearer| &*hearer.consumer).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g1_groups_of_a_broker_that_is_away_are_not_taken_for_absent() {
    // For as long as a broker is one of the cluster, no other decides for its groups.
    let cluster = || {
        let builder = Service::Kafka.builder().ours();
        or_skip(
            Service::Kafka,
            builder.setting("broker.session.timeout.ms", "1800000").start_cluster(),
        )
    };
    let Ok(mut cluster) = block_in_place(cluster) else { return };
    let leads = block_in_place(|| cluster.leader()).unwrap();
    let silent = (0..3).rev().find(|index| Some(*index) != leads).unwrap();
    let id = i32::try_from(silent).unwrap() + 1;
    let there = (1..=3).find(|other| *other != id).unwrap();
    let alive = cluster.nodes().iter().enumerate().filter(|(index, _)| *index != silent);
    let url = alive.map(|(_, node)| node.url()).collect::<Vec<_>>().join(",");

    let first = Topic::at(&url, "begun", 1).await;
    first.commit("begun", 0, "");
    let asking = Shop::at(url.clone(), "asking");
    let is_far = |group: &str| coordinator(&asking, group) == id;
    let name = |far: bool, of: &dyn Fn(u32) -> String| {
        (0..).map(of).find(|name| is_far(name) == far).unwrap()
    };
    let shop = name(false, &|number| KafkaFeed::group_of(&format!("shop-{number}.billing.dlq")));
    let shop = shop.strip_prefix("dlq-ingest.").unwrap().strip_suffix(".billing.dlq").unwrap();
    let shop = Shop::at(url.clone(), shop);
    let there: &[i32] = &[there];
    for (name, brokers) in [(&shop.topic, [there; 3].as_slice()), (&shop.dlq, &[there])] {
        let partitions = i32::try_from(brokers.len()).unwrap();
        let replication = TopicReplication::Variable(brokers);
        topic::make(&url, &NewTopic::new(name, partitions, replication)).await;
    }
    let of = |name: &str| Topic { bootstrap: url.clone(), name: name.to_owned(), partitions: 1 };
    let (near, far) = (name(false, &|n| format!("near-{n}")), name(true, &|n| format!("far-{n}")));
    for group in [&near, &far] {
        of(&shop.topic).commit(group, 0, "");
    }
    shop.bury(&shop.dead([3])).await;
    let group = KafkaFeed::group_of(&shop.dlq);
    let more = name(true, &|number| format!("{group}.{number}"));
    for group in [&group, &more] {
        let lease = Duration::from_secs(10);
        let store = format!("sqlite:///{group}.db");
        let feed = KafkaFeed::open(&shop.brokers(), &shop.dlq, group, &store, lease).await;
        drop(feed.unwrap());
    }

    let is_named = |text: &str| text.contains(&format!("broker {id} at 127.0.0.1:"));
    let plan = async || to_origin(&shop.letters(), 1).plan().await.unwrap();
    let marks = async || ingest_marks(&shop.brokers(), &shop.dlq).await;
    let all = BTreeSet::from([&*near, &*far]);
    let complete = async || {
        let known = plan().await;
        assert!(hearers(&known).is_superset(&all), "{known:?}");
        assert!(!known.notes.iter().any(|note| is_named(note)), "{known:?}");
        assert_eq!(marks().await.unwrap().len(), 2);
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
        assert_eq!(hearers(&known).contains(&*near), !is_none, "{known:?}");
        assert!(!hearers(&known).contains(&*far), "{known:?}");
        let error = marks().await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
        assert!(is_named(&error.to_string()), "{error}");
        if !kills {
            block_in_place(|| cluster.resume(silent)).unwrap();
        }
    }
}
