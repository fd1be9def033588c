//! What keeps letters from being sent: whose fault it is, and what is said of it.

use std::future::pending;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use async_nats::jetstream::{self, stream};
use async_nats::{ConnectOptions, Subscriber};
use dlq_core::store::Letters as _;
use dlq_core::{Filter, OperationId, Status, StoreErrorKind, Timestamp};
use dlq_nats::{DlqStream, NatsLetters, NatsReplay, NatsTarget, RetryStream};
use dlq_services::{NatsCluster, Service, or_skip};
use futures_util::StreamExt as _;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::{assert_once, bury, bury_at, dead, forget_fast, to_origin, window_passed};
use crate::fixture::{STREAM, Server, available, billing, now};

const PATIENCE: Duration = Duration::from_secs(240);

fn config() -> stream::Config {
    stream::Config {
        name: STREAM.to_owned(),
        subjects: vec!["orders.>".to_owned()],
        ..stream::Config::default()
    }
}

/// The letters live on three servers, what they are sent to on one, which dies while they are sent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g6_letters_do_not_fail_because_a_stream_has_no_leader() {
    const MANY: u32 = 40;
    let started = tokio::task::block_in_place(|| NatsCluster::builder().ours().start_cluster());
    let Ok(mut cluster) = or_skip(Service::Nats, started) else { return };
    let at = async |node: usize| {
        let options = ConnectOptions::new().ignore_discovered_servers();
        jetstream::new(options.connect(cluster.nodes()[node].url()).await.unwrap())
    };
    let orders = at(0).await.create_stream(config()).await.unwrap();
    let leader = orders.cached_info().cluster.as_ref().unwrap().leader.clone().unwrap();
    let dies = leader.strip_prefix('n').unwrap().parse::<usize>().unwrap() - 1;
    let context = at((dies + 1) % 3).await;
    let letters = bury_at(&context, DlqStream::new().replicas(3), dead(0..MANY)).await;
    let begun = CancellationToken::new();
    let lease = Duration::from_secs(10);
    let replay = || to_origin(&letters, 1).lease(lease);
    let slow = replay().rate(8);
    let sending = slow.run(pending(), |_| begun.cancel());
    let killing = async {
        begun.cancelled().await;
        let killed = tokio::task::spawn_blocking(move || {
            cluster.kill(dies).unwrap();
            cluster
        });
        killed.await.unwrap()
    };
    let (report, mut cluster) = tokio::join!(sending, killing);
    let report = report.unwrap();
    assert_eq!(report.failed, 0, "no letter is to blame: {report}");
    assert!(report.stopped.is_some() && report.sent < u64::from(MANY), "{report}");
    let restarted = tokio::task::spawn_blocking(move || {
        cluster.restart(dies).unwrap();
        cluster
    });
    let _cluster = restarted.await.unwrap();
    let rest = async {
        loop {
            match replay().run(pending(), |_| {}).await {
                Ok(report) => {
                    assert_eq!(report.failed, 0, "{report}");
                    if report.is_complete() {
                        return;
                    }
                }
                Err(error) => assert!(error.is_transient(), "{error}"),
            }
            sleep(Duration::from_millis(200)).await;
        }
    };
    timeout(PATIENCE, rest).await.expect("the rest is sent");
    let orders = context.get_stream(STREAM).await.unwrap();
    assert_eq!(orders.cached_info().state.messages, u64::from(MANY), "each of them once");
}

/// The busy server takes something again when half of a lease is over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g6_letters_are_tried_again_with_another_lease() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let letters = bury(&server, DlqStream::new(), dead([1, 2])).await;
    let mut publishes = unanswered(&server).await;
    let answering = async {
        for asked in 0.. {
            let message = publishes.next().await.expect("the client goes on");
            let answer = match asked {
                // Four for each, together and then three times alone: after that the bite ends.
                0..8 => {
                    r#"{"error":{"code":503,"err_code":10023,"description":"insufficient resources"}}"#
                }
                _ => r#"{"stream":"ORDERS","seq":1}"#,
            };
            server.client.publish(message.reply.unwrap(), answer.into()).await.unwrap();
        }
    };
    let replay = to_origin(&letters, 1).lease(Duration::from_secs(2));
    let report = tokio::select! {
        report = replay.run(pending(), |_| {}) => report.unwrap(),
        () = answering => panic!("it answers for ever"),
    };
    assert_eq!((report.sent, report.failed, report.is_complete()), (2, 0, true), "{report}");
}

/// What is published from now on, which the stream keeps, and leaves the answer to us.
async fn unanswered(server: &Server) -> Subscriber {
    server.context.update_stream(stream::Config { no_ack: true, ..config() }).await.unwrap();
    server.client.subscribe("orders.>").await.unwrap()
}

/// Confirms a message.
async fn confirm(server: &Server, message: async_nats::Message) {
    let answer = r#"{"stream":"ORDERS","seq":1}"#;
    server.client.publish(message.reply.unwrap(), answer.into()).await.unwrap();
}

/// Of letters that are sent together the server confirms every other one, and is silent then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g6_of_letters_sent_together_those_are_marked_that_were_confirmed() {
    const MANY: u32 = 100;
    if !available() {
        return;
    }
    let server = Server::start().await;
    let letters = bury(&server, DlqStream::new(), dead(0..MANY)).await;
    let mut publishes = unanswered(&server).await;
    let answering = async {
        while let Some(message) = publishes.next().await {
            if message.payload.last().is_some_and(|digit| digit % 2 == 0) {
                confirm(&server, message).await;
            }
        }
    };
    let replay = to_origin(&letters, 1).lease(Duration::from_secs(4));
    let report = tokio::select! {
        report = replay.run(pending(), |_| {}) => report.unwrap(),
        () = answering => panic!("the client ends"),
    };
    assert!(report.stopped.is_some(), "{report}");
    assert_eq!((report.sent, report.failed), (u64::from(MANY / 2), 0), "{report}");
    let sent = Filter::new().with_status(Status::Sent);
    assert_eq!(now(&letters).count(sent).await.unwrap(), u64::from(MANY / 2));
    // Whoever comes next finds what has arrived all the same.
    forget_fast(&server).await;
    window_passed(&server).await;
    let report = to_origin(&letters, 2).run(pending(), |_| {}).await.unwrap();
    assert!(report.is_complete(), "{report}");
    assert_once(&server, 0..MANY).await;
}

/// A server that is busy says so; its stream keeps what it is sent and leaves the answer to us.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_letter_that_a_server_cannot_take_now_is_sent_again() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let letters = bury(&server, DlqStream::new(), dead([1, 2])).await;
    let asked = AtomicU32::new(0);
    let mut publishes = unanswered(&server).await;
    let answering = async {
        while let Some(message) = publishes.next().await {
            let answer = match asked.fetch_add(1, Ordering::SeqCst) {
                0 => {
                    r#"{"error":{"code":503,"err_code":10023,"description":"insufficient resources"}}"#
                }
                1 => {
                    r#"{"error":{"code":409,"err_code":10158,"description":"duplicate message id is in process"}}"#
                }
                _ => r#"{"stream":"ORDERS","seq":1}"#,
            };
            server.client.publish(message.reply.unwrap(), answer.into()).await.unwrap();
        }
    };
    let replay = to_origin(&letters, 1);
    let report = tokio::select! {
        report = replay.run(pending(), |_| {}) => report.unwrap(),
        () = answering => panic!("the client ends"),
    };
    assert_eq!((report.sent, report.failed, report.is_complete()), (2, 0, true), "{report}");
    assert_eq!(asked.load(Ordering::SeqCst), 4, "two of them twice");
}

/// The server answers when so many are on their way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_a_rate_letters_are_on_their_way_together() {
    const MANY: u32 = 20;
    if !available() {
        return;
    }
    let server = Server::start().await;
    let letters = bury(&server, DlqStream::new(), dead(0..MANY)).await;
    let mut publishes = unanswered(&server).await;
    let answering = async {
        let all: Vec<_> = publishes.by_ref().take(MANY as usize).collect().await;
        for message in all {
            confirm(&server, message).await;
        }
        pending().await
    };
    let replay = to_origin(&letters, 1).rate(100);
    let report = tokio::select! {
        report = replay.run(pending(), |_| {}) => report.unwrap(),
        () = answering => unreachable!(),
    };
    assert_eq!((report.sent, report.is_complete()), (u64::from(MANY), true), "{report}");
}

pub(crate) fn users(app: &str) -> String {
    format!(
        "{{ users: [ {{ user: root, password: root }}, {{ user: app, password: app, permissions: {app} }} ] }}"
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_who_may_not_note_what_was_sent_is_told_when_it_is_planned() {
    if !available() {
        return;
    }
    let may = "{ publish: { deny: [\"$KV.DLQ_REPLAYS.>\"] } }";
    let server = Server::bare(&[("authorization", &users(may))], "root", "root").await;
    let _ = bury(&server, DlqStream::new(), dead(0..2)).await;
    let app = server.connect("app", "app").await;
    let letters = NatsLetters::new(&app, DlqStream::new());
    let operation = OperationId::of("ana", Timestamp::EPOCH, 1);
    let replay = NatsReplay::new(&letters, Filter::new(), NatsTarget::Origin, operation);
    let refused = replay.plan().await.unwrap_err();
    assert_eq!(refused.kind(), StoreErrorKind::InvalidConfig, "{refused}");
    assert!(refused.to_string().contains("may not publish to `$KV.DLQ_REPLAYS.>`"), "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_who_may_not_send_letters_is_told_when_it_is_planned() {
    if !available() {
        return;
    }
    const READS: &str = "$JS.API.STREAM.MSG.GET.KV_DLQ_REPLAYS";
    let may =
        format!("{{ publish: {{ deny: [\"orders.>\", \"retry.billing.>\", \"{READS}\"] }} }}");
    let server = Server::bare(&[("authorization", &users(&may))], "root", "root").await;
    let _ = bury(&server, DlqStream::new(), dead(0..20)).await;
    server.source(&billing()).await;
    let app = server.connect("app", "app").await;
    let letters = NatsLetters::new(&app, DlqStream::new());
    let operation = OperationId::of("ana", Timestamp::EPOCH, 1);
    for (target, subject) in [
        (NatsTarget::Origin, "`orders.created`"),
        (NatsTarget::Subject("orders.again".to_owned()), "`orders.again`"),
        (NatsTarget::Handler(RetryStream::new()), "`retry.billing.orders.created`"),
    ] {
        let replay = NatsReplay::new(&letters, Filter::new(), target, operation);
        for refused in
            [replay.plan().await.unwrap_err(), replay.run(pending(), |_| {}).await.unwrap_err()]
        {
            assert_eq!(refused.kind(), StoreErrorKind::InvalidConfig, "{refused}");
            let text = refused.to_string();
            assert!(text.contains(subject) && text.contains("`permissions"), "{text}");
            assert!(text.contains(READS), "{text}");
        }
    }
    assert_once(&server, []).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_of_whom_nothing_is_known_is_told_what_went_unanswered() {
    if !available() {
        return;
    }
    let may = "{ publish: { deny: [\"orders.>\", \"$SYS.>\"] } }";
    let server = Server::bare(&[("authorization", &users(may))], "root", "root").await;
    let _ = bury(&server, DlqStream::new(), dead(0..20)).await;
    let app = server.connect("app", "app").await;
    let letters = NatsLetters::new(&app, DlqStream::new());
    let report = to_origin(&letters, 1).run(pending(), |_| {}).await.unwrap();
    assert_eq!((report.sent, report.failed), (0, 0), "{report}");
    let why = report.stopped.expect("it stops").to_string();
    assert!(why.contains("`orders.created`") && why.contains("`permissions`"), "{why}");
}
