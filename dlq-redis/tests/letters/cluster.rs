//! Three masters that share the slots.

use std::future::pending;
use std::time::Duration;

use dlq_core::log::{Entries as _, Log as _, Range};
use dlq_core::replay::Skipped;
use dlq_core::store::Letters as _;
use dlq_core::{
    DeadLetter, Filter, LetterId, OperationId, Origin, Position, Sink as _, Status, StoreErrorKind,
};
use dlq_letters::log::Reading;
use dlq_redis::{RedisClient, RedisLetters, RedisReplay, RedisTarget, RedisTransport};
use dlq_services::{RedisCluster, Service, or_skip};
use dlq_testkit::fixtures::{CONSUMER, letter};
use redis::cluster::ClusterClient;

/// A letter that was born in this stream.
fn born(number: u64, stream: &str) -> DeadLetter {
    let mut letter = letter(number);
    letter.origin = Origin::new("redis", stream, Position::Pair(1, number));
    letter.id = LetterId::of(&letter.origin, letter.message.published_at(), CONSUMER);
    letter
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn letters_of_a_cluster_are_sent_within_their_slot_alone() {
    let started = tokio::task::block_in_place(|| RedisCluster::builder().ours().start_cluster());
    let Ok(cluster) = or_skip(Service::Redis, started) else { return };
    let url = cluster.url();
    let raw = ClusterClient::new(url.split(',').collect::<Vec<_>>()).unwrap();
    let mut raw = raw.get_async_connection().await.unwrap();
    for stream in ["orders", "elsewhere"] {
        let mut create = redis::cmd("XGROUP");
        create.arg("CREATE").arg(stream).arg(CONSUMER).arg("0").arg("MKSTREAM");
        let _: redis::Value = create.query_async(&mut raw).await.unwrap();
    }
    let client = RedisClient::cluster(url.split(',')).await.unwrap();
    let sink = RedisTransport::new("orders").dead_letters(&client).await.unwrap();
    let mut letters: Vec<_> = (0..5).map(|number| born(number, "orders")).collect();
    letters.push(born(9, "elsewhere"));
    sink.put(letters).await.unwrap();
    let log = RedisLetters::new(&client, sink.key()).unwrap();
    let of =
        |target| RedisReplay::new(&log, Filter::new(), target, OperationId::from_bytes([1; 16]));
    let refused = of(RedisTarget::Stream("elsewhere".to_owned())).plan().await;
    let refused = refused.expect_err("one script does not reach both");
    assert_eq!(refused.kind(), StoreErrorKind::Refused, "{refused}");
    assert!(refused.to_string().contains("another slot"), "{refused}");
    for (sent, before) in [(5, 0), (0, 5)] {
        let report = of(RedisTarget::Origin).run(pending(), |_| {}).await.unwrap();
        let skipped = report.skipped.get(&Skipped::Sent).copied().unwrap_or(0);
        assert_eq!((report.sent, skipped, report.skipped[&Skipped::NoOrigin]), (sent, before, 1));
    }
    let length = |stream: &'static str| {
        let mut raw = raw.clone();
        async move {
            let mut length = redis::cmd("XLEN");
            let found: i64 = length.arg(stream).query_async(&mut raw).await.unwrap();
            found
        }
    };
    assert_eq!((length("orders").await, length("elsewhere").await), (5, 0));
    let reading = Reading::of(log.clone(), Range::all()).await.unwrap();
    let sent = Filter::new().with_status(Status::Sent);
    assert_eq!(reading.count(sent).await.unwrap(), 5);
    let follow = log.clone().until_end();
    let mut feed = follow.follow("memory".to_owned(), Duration::from_secs(60)).await.unwrap();
    assert_eq!(feed.next(10).await.unwrap().len(), 6);
    feed.confirm().await.unwrap();
    assert!(feed.next(10).await.unwrap().is_empty());
    assert_eq!(log.marks().await.unwrap()[0].confirmed, 6);
}
