//! What is written by compare-and-set, to buckets of which three servers keep a copy: there a write is on its way for a
//! while, and whoever comes meanwhile has lost.

use std::future::pending;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_nats::jetstream::{self, Context, stream};
use dlq_core::idempotency::{Idempotency as _, IdempotencyClaim};
use dlq_core::{CrashMarks as _, LetterId, Origin, Position};
use dlq_nats::{DlqStream, IdempotencyBucket, NatsCrashMarks, NatsIdempotency, NatsLetters};
use dlq_services::{Cluster, NatsCluster, Service, or_skip};
use dlq_testkit::fixtures::ManualClock;
use dlq_testkit::idempotency::{IdempotencyFixture, claims, run};
use futures_util::future::join_all;

use crate::cluster::connect;
use crate::fixture::{STREAM, available};
use crate::letters::{bury_at, dead, to_origin};

const LEASE: Duration = Duration::from_secs(60);

async fn start() -> Option<(Cluster, Context)> {
    let started = tokio::task::block_in_place(|| NatsCluster::builder().ours().start_cluster());
    let cluster = or_skip(Service::Nats, started).ok()?;
    let context = jetstream::new(connect(&cluster).await);
    Some((cluster, context))
}

/// The suite, where it is about being faster than others.
struct Replicated {
    _cluster: Cluster,
    keys: NatsIdempotency,
}

impl IdempotencyFixture for Replicated {
    type Store = NatsIdempotency;

    fn is_available() -> bool {
        available()
    }

    async fn fresh(_check: &'static str) -> Self {
        let (cluster, context) = start().await.expect("there are servers to be had");
        let bucket = IdempotencyBucket::new().replicas(3);
        let keys = NatsIdempotency::open(&context, bucket).await.unwrap();
        Self { _cluster: cluster, keys }
    }

    async fn open(&self) -> NatsIdempotency {
        self.keys.clone()
    }

    fn clock(&self) -> Option<&ManualClock> {
        None
    }
}

#[test]
fn many_claimers_get_a_key_once() {
    run::<Replicated, _>("replicated", claims::many_claimers_get_a_key_once);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g3_what_is_done_is_known_although_its_lease_was_being_extended() {
    let Some((_cluster, context)) = start().await else { return };
    let bucket = IdempotencyBucket::new().replicas(3);
    let keys = NatsIdempotency::open(&context, bucket).await.unwrap();
    for number in 0..30_u8 {
        let claim = || keys.claim(Arc::from("billing"), vec![number].into(), LEASE);
        let IdempotencyClaim::New { token, .. } = claim().await.unwrap() else { panic!() };
        let (_, done) = tokio::join!(
            // Whoever extends is dropped when the handler has ended; its word is on its way.
            keys.extend(token.clone(), LEASE),
            keys.complete(token, LEASE),
        );
        assert!(done.expect("it is written, whoever else writes"), "{number}");
        assert!(matches!(claim().await.unwrap(), IdempotencyClaim::Done { .. }), "{number}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g3_marks_that_are_written_at_once_are_all_counted() {
    const AT_ONCE: u32 = 5;
    let Some((_cluster, context)) = start().await else { return };
    let marks = NatsCrashMarks::open(&context, "marks", 3).await.unwrap();
    for number in 0..5 {
        let origin = Origin::new("nats", STREAM, Position::Offset(number));
        let letter = LetterId::of(&origin, None, "billing");
        let begun = join_all((0..AT_ONCE).map(|_| marks.begin(letter))).await;
        let mut begun = begun.into_iter().collect::<Result<Vec<_>, _>>().unwrap();
        begun.sort_unstable();
        assert_eq!(begun, (0..AT_ONCE).collect::<Vec<_>>());
        marks.end(letter, 0).await.unwrap();
        assert_eq!(marks.begin(letter).await.unwrap(), 0, "it is forgotten");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g6_two_at_once_send_each_letter_once() {
    const MANY: u32 = 1_200;
    let Some((_cluster, context)) = start().await else { return };
    let config = stream::Config {
        name: STREAM.to_owned(),
        subjects: vec!["orders.>".to_owned()],
        // So short that it is no help.
        duplicate_window: Duration::from_millis(100),
        ..stream::Config::default()
    };
    context.create_stream(config).await.unwrap();
    let stream = DlqStream::new().replicas(3);
    bury_at(&context, stream.clone(), dead(0..MANY)).await;
    let letters = [(); 2].map(|()| NatsLetters::new(&context, stream.clone()));
    // On a busy machine a server may take another one for absent for a moment, and then creates no bucket of three replicas.
    let until = Instant::now() + LEASE;
    let begun = loop {
        match to_origin(&letters[0], 1).limit(1).run(pending(), |_| {}).await {
            Ok(begun) => break begun,
            Err(error) => assert!(error.is_transient() && Instant::now() < until, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    };
    assert_eq!(begun.sent, 1, "{begun}");
    let (first, second) = (to_origin(&letters[0], 2), to_origin(&letters[1], 3));
    let (first, second) = tokio::join!(first.run(pending(), |_| {}), second.run(pending(), |_| {}));
    let (first, second) = (first.unwrap(), second.unwrap());
    assert!(first.is_complete() && second.is_complete(), "{first}; {second}");
    assert_eq!(first.sent + second.sent, u64::from(MANY) - 1, "{first}; {second}");
    let stream = context.get_stream(STREAM).await.unwrap();
    assert_eq!(stream.cached_info().state.messages, u64::from(MANY), "each of them once");
}
