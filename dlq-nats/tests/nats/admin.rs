//! Each wrong setting is made at the server, and found; a right deployment has no findings.

use std::time::Duration;

use async_nats::jetstream::consumer::{AckPolicy, pull};
use async_nats::jetstream::kv;
use async_nats::jetstream::stream::{Config, DiscardPolicy, RetentionPolicy, StorageType};
use dlq_core::Sink as _;
use dlq_nats::admin::{ConsumerPlan, Deployment, Finding, Severity, StreamPlan};
use dlq_nats::router::RouterConfig;
use dlq_nats::{DlqStream, EventRouter, NatsSink, NatsTransport, RetryStream};
use dlq_testkit::fixtures::letter;
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use crate::fixture::{PATIENCE, STREAM, Server, available};

/// One consumer of ours on `ORDERS`.
fn ours() -> Deployment {
    let mut deployment = Deployment::default();
    deployment.consumers.push(ConsumerPlan::new(STREAM, "billing"));
    deployment
}

async fn check(server: &Server, deployment: &Deployment) -> Vec<Finding> {
    deployment.check(&server.client).await.unwrap()
}

async fn found(server: &Server, deployment: &Deployment, subject: &str, setting: &str) -> Finding {
    let findings = check(server, deployment).await;
    let found = findings.iter().find(|found| found.subject == subject && found.setting == setting);
    found.unwrap_or_else(|| panic!("no `{setting}` of {subject} in {findings:#?}")).clone()
}

/// Changes a stream as an operator would.
async fn change(server: &Server, name: &str, change: impl FnOnce(&mut Config)) {
    let mut config = server.context.get_stream(name).await.unwrap().cached_info().config.clone();
    change(&mut config);
    server.context.update_stream(config).await.unwrap();
}

async fn make(server: &Server, stream: &str, config: pull::Config) {
    let stream = server.context.get_stream(stream).await.unwrap();
    stream.create_consumer(config).await.unwrap();
}

fn theirs(name: &str) -> pull::Config {
    pull::Config { durable_name: Some(name.to_owned()), ..pull::Config::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_missing_is_created_and_what_exists_is_left() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let mut deployment = ours();
    let mut users = StreamPlan::new("USERS");
    users.subjects.push("users.>".to_owned());
    users.retention = RetentionPolicy::WorkQueue;
    let mut orders = StreamPlan::new(STREAM);
    orders.subjects.push("orders.>".to_owned());
    orders.max_age = Duration::from_secs(3600);
    deployment.streams.extend([users, orders]);
    deployment.consumers[0].max_ack_pending = Some(64);
    deployment.router = Some(RouterConfig::default());
    let missing = check(&server, &deployment).await;
    let lacks =
        |subject: &str| missing.iter().any(|f| f.subject == subject && f.found == "missing");
    for subject in ["stream `USERS`", "stream `DLQ`", "stream `DLQ_RETRY`", "stream `DLQ_ADVISORY`"]
    {
        assert!(lacks(subject), "{subject} in {missing:#?}");
    }
    assert!(lacks("consumer `billing` of stream `ORDERS`"));

    let done = deployment.create(&server.client).await.unwrap();
    assert_eq!(
        done.created,
        [
            "stream `USERS`",
            "stream `DLQ`",
            "stream `DLQ_RETRY`",
            "stream `DLQ_ADVISORY`",
            "consumer `billing` of stream `ORDERS`",
            "consumer `billing` of stream `DLQ_RETRY`",
        ]
    );
    let [differs] = &done.differs[..] else { panic!("{:#?}", done.differs) };
    assert_eq!((differs.setting.as_str(), differs.want.as_str()), ("max_age", "1h"));
    let config = server.context.get_stream(STREAM).await.unwrap().cached_info().config.clone();
    assert_eq!(config.max_age, Duration::ZERO, "it is as it was");
    let again = deployment.create(&server.client).await.unwrap();
    assert_eq!((again.created.len(), again.differs.len()), (0, 1));
    let stream = server.context.get_stream("USERS").await.unwrap();
    assert_eq!(stream.cached_info().config.retention, RetentionPolicy::WorkQueue);
    let info = server.context.get_stream(STREAM).await.unwrap().consumer_info("billing").await;
    assert_eq!(info.unwrap().config.max_ack_pending, 64);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_right_deployment_has_no_findings() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let mut deployment = ours();
    deployment.create(&server.client).await.unwrap();
    assert_eq!(check(&server, &deployment).await, []);
    // All that is there, nothing named.
    deployment.consumers.clear();
    assert_eq!(check(&server, &deployment).await, []);
    // With a router that runs, and a consumer for it.
    deployment.router = Some(RouterConfig::default());
    make(&server, STREAM, pull::Config { max_deliver: 3, ..theirs("mail") }).await;
    let router = EventRouter::builder(server.client.clone()).open().await.unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let run = router.run(async { drop(stopped.await) });
    let checking = async {
        let findings = check(&server, &deployment).await;
        drop(stop);
        findings
    };
    let (_, findings) = tokio::join!(run, checking);
    assert_eq!(findings, []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_of_ours_that_would_lose_messages_is_found() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let wrong = pull::Config {
        max_deliver: 3,
        backoff: vec![Duration::from_secs(1), Duration::from_secs(2)],
        max_ack_pending: 8,
        memory_storage: true,
        headers_only: true,
        ..theirs("billing")
    };
    make(&server, STREAM, wrong).await;
    let subject = "consumer `billing` of stream `ORDERS`";
    let findings = check(&server, &ours()).await;
    for (setting, severity, value) in [
        ("max_deliver", Severity::Error, "3"),
        ("backoff", Severity::Error, "[1s, 2s]"),
        ("headers_only", Severity::Error, "true"),
        ("ack_wait", Severity::Warning, "1s"),
        ("max_ack_pending", Severity::Warning, "8"),
        ("mem_storage", Severity::Warning, "true"),
    ] {
        let is = |f: &&Finding| f.subject == subject && f.setting == setting;
        let finding =
            findings.iter().find(is).unwrap_or_else(|| panic!("{setting}: {findings:#?}"));
        assert_eq!((finding.severity, finding.found.as_str()), (severity, value));
        assert!(finding.advice.contains(setting) || !finding.advice.is_empty());
    }
    assert!(findings.is_sorted_by_key(|finding| std::cmp::Reverse(finding.severity)));

    let late = pull::Config { ack_wait: Duration::from_secs(3600), ..theirs("late") };
    make(&server, STREAM, late).await;
    let none = pull::Config { ack_policy: AckPolicy::All, ..theirs("all") };
    make(&server, STREAM, none).await;
    let mut deployment = Deployment::default();
    for name in ["late", "all"] {
        deployment.consumers.push(ConsumerPlan::new(STREAM, name));
    }
    let late = found(&server, &deployment, "consumer `late` of stream `ORDERS`", "ack_wait").await;
    assert_eq!(late.found, "1h");
    let all = found(&server, &deployment, "consumer `all` of stream `ORDERS`", "ack_policy").await;
    assert_eq!((all.found.as_str(), all.want.as_str()), ("All", "Explicit"));
    deployment.consumers[0].ack_wait = Some(Duration::from_secs(60));
    deployment.consumers[0].filter_subjects = Some(vec!["orders.new".to_owned()]);
    let late = found(&server, &deployment, "consumer `late` of stream `ORDERS`", "filter_subjects");
    assert_eq!(late.await.want, "[\"orders.new\"]");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_of_deliveries_without_a_router_is_found() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let plain = Deployment::default();
    let subject = "consumer `mail` of stream `ORDERS`";
    make(&server, STREAM, pull::Config { max_deliver: 3, ..theirs("mail") }).await;
    let finding = found(&server, &plain, subject, "max_deliver").await;
    assert_eq!((finding.severity, finding.found.as_str()), (Severity::Error, "3"));

    // A router was there, and listens no more: what is given up is kept, and nobody reads it.
    drop(EventRouter::builder(server.client.clone()).open().await.unwrap());
    let finding = found(&server, &plain, "event router", "num_waiting").await;
    assert!(finding.advice.contains("7d"), "{finding}");
    assert!(!check(&server, &plain).await.iter().any(|found| found.subject == subject));

    // It expects other consumers than there are.
    let mut deployment = Deployment::default();
    let mut router = RouterConfig::default();
    router.max_retries = Some(5);
    router.consumers.extend(["ORDERS/mail".parse().unwrap(), "ORDERS/endless".parse().unwrap()]);
    deployment.router = Some(router);
    make(&server, STREAM, theirs("endless")).await;
    let finding = found(&server, &deployment, subject, "max_deliver").await;
    assert_eq!((finding.found.as_str(), finding.want.as_str()), ("3", "5"));
    let endless = "consumer `endless` of stream `ORDERS`";
    let finding = found(&server, &deployment, endless, "max_deliver").await;
    assert_eq!((finding.found.as_str(), finding.severity), ("-1", Severity::Warning));
    make(&server, STREAM, pull::Config { ack_policy: AckPolicy::None, ..theirs("deaf") }).await;
    let deaf = "consumer `deaf` of stream `ORDERS`";
    assert_eq!(found(&server, &plain, deaf, "ack_policy").await.found, "none");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_drops_what_is_not_settled_is_found() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    ours().create(&server.client).await.unwrap();
    let queue = Config {
        name: "QUEUE".to_owned(),
        subjects: vec!["queue.>".to_owned()],
        retention: RetentionPolicy::WorkQueue,
        storage: StorageType::Memory,
        max_messages: 10,
        max_bytes: 100_000,
        max_age: Duration::from_secs(3600),
        ..Config::default()
    };
    server.context.create_stream(queue).await.unwrap();
    make(&server, "QUEUE", pull::Config { max_deliver: 3, ..theirs("worker") }).await;
    let mut deployment = Deployment::default();
    deployment.streams.push(StreamPlan::new("QUEUE"));
    let subject = "stream `QUEUE`";
    for (setting, value) in
        [("max_msgs", "10"), ("max_bytes", "100000"), ("max_age", "1h"), ("storage", "memory")]
    {
        let finding = found(&server, &deployment, subject, setting).await;
        assert_eq!((finding.severity, finding.found.as_str()), (Severity::Warning, value));
    }
    for number in 0..9 {
        let sent = server.context.publish("queue.x", number.to_string().into()).await;
        sent.unwrap().await.unwrap();
    }
    let worker = "consumer `worker` of stream `QUEUE`";
    let finding = found(&server, &deployment, worker, "max_msgs").await;
    assert_eq!((finding.severity, finding.found.as_str()), (Severity::Error, "used to 90 %"));
    // What a consumer terminates there cannot be read by a router any more.
    drop(EventRouter::builder(server.client.clone()).open().await.unwrap());
    assert_eq!(found(&server, &deployment, subject, "retention").await.found, "workqueue");
    let interest = Config {
        name: "INTEREST".to_owned(),
        subjects: vec!["interest.>".to_owned()],
        retention: RetentionPolicy::Interest,
        ..Config::default()
    };
    server.context.create_stream(interest).await.unwrap();
    make(&server, "INTEREST", pull::Config { max_deliver: 3, ..theirs("worker") }).await;
    deployment.streams.push(StreamPlan::new("INTEREST"));
    let finding = found(&server, &deployment, "stream `INTEREST`", "retention").await;
    assert_eq!((finding.severity, &*finding.found), (Severity::Warning, "interest"));
    // On a stream that keeps what is settled, a bound is only worth a note.
    change(&server, STREAM, |config| config.max_messages = 1000).await;
    let finding = found(&server, &ours(), "stream `ORDERS`", "max_msgs").await;
    assert_eq!(finding.severity, Severity::Note);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_of_ours_that_would_lose_letters_are_found() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let deployment = ours();
    deployment.create(&server.client).await.unwrap();
    change(&server, "DLQ", |config| {
        config.discard = DiscardPolicy::Old;
        config.max_messages = 1000;
        config.max_message_size = 10_000;
        config.duplicate_window = Duration::from_secs(30);
    })
    .await;
    let subject = "stream `DLQ`";
    let finding = found(&server, &deployment, subject, "discard").await;
    assert_eq!((finding.severity, finding.found.as_str()), (Severity::Error, "Old"));
    assert_eq!(found(&server, &deployment, subject, "max_msgs").await.found, "1000");
    assert_eq!(found(&server, &deployment, subject, "max_msg_size").await.found, "10000");
    let findings = check(&server, &deployment).await;
    let windows: Vec<_> = findings.iter().filter(|f| f.setting == "duplicate_window").collect();
    assert!(windows.iter().any(|f| f.want == "1m 30s or more"), "{windows:#?}");
    assert!(windows.iter().any(|f| f.found == "30s" && f.severity == Severity::Error));
    change(&server, "DLQ_RETRY", |config| config.duplicate_window = Duration::from_secs(1)).await;
    let finding = found(&server, &deployment, "stream `DLQ_RETRY`", "duplicate_window").await;
    assert_eq!(finding.found, "1s");

    // A server that has schedules, and a stream that was made without them.
    let server = Server::start().await;
    let mut old = ours();
    old.retries = Some(RetryStream::new().without_schedules());
    old.create(&server.client).await.unwrap();
    let finding = found(&server, &ours(), "stream `DLQ_RETRY`", "allow_msg_schedules").await;
    assert_eq!(finding.found, "false");
    server.context.delete_stream("DLQ").await.unwrap();
    let memory = Config {
        name: "DLQ".to_owned(),
        subjects: vec!["dlq.>".to_owned(), "dlq-aside.>".to_owned()],
        storage: StorageType::Memory,
        ..Config::default()
    };
    server.context.create_stream(memory).await.unwrap();
    let finding = found(&server, &ours(), "stream `DLQ`", "storage").await;
    assert_eq!((finding.severity, finding.found.as_str()), (Severity::Error, "Memory"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_of_letters_that_is_full_or_old_is_found() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let mut deployment = ours();
    deployment.letters = DlqStream::new().max_age(Duration::from_secs(10));
    deployment.create(&server.client).await.unwrap();
    change(&server, "DLQ", |config| config.max_messages = 4).await;
    let sink = NatsSink::open(&server.client, deployment.letters.clone()).await.unwrap();
    for number in 0..4 {
        sink.put(vec![letter(number)]).await.unwrap();
    }
    let finding = found(&server, &deployment, "stream `DLQ`", "max_msgs").await;
    assert_eq!(
        (finding.severity, finding.found.as_str()),
        (Severity::Error, "used to 100 % (4 of 4)")
    );
    let old = async {
        loop {
            let findings = check(&server, &deployment).await;
            if let Some(found) = findings.into_iter().find(|found| found.setting == "max_age") {
                return found;
            }
            sleep(Duration::from_millis(100)).await;
        }
    };
    let old = timeout(PATIENCE, old).await.expect("letters grow old");
    assert_eq!((old.severity, old.subject.as_str()), (Severity::Warning, "stream `DLQ`"));
    assert!(old.found.starts_with("10s, and the oldest letter"), "{old}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parts_of_retry_records_without_a_record_are_found() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    ours().create(&server.client).await.unwrap();
    let parts = async || {
        let findings = check(&server, &ours()).await;
        findings.into_iter().find(|f| f.subject == "stream `DLQ_RETRY`" && f.setting == "subjects")
    };
    let publish = async |subject: &'static str| {
        server.context.publish(subject, "x".into()).await.unwrap().await.unwrap()
    };
    assert!(parts().await.is_none());
    publish("retry-aside.billing.a.0.1").await;
    publish("retry-aside.billing.a.0.1").await;
    let found = parts().await.expect("nobody reads them");
    assert_eq!(found.severity, Severity::Note, "their record may come yet");
    assert!(found.found.starts_with("2 parts") && found.found.ends_with("0 records"), "{found}");
    assert!(found.advice.contains("--subject 'retry-aside.>'"), "{found}");
    publish("retry.billing.orders.created").await;
    assert!(parts().await.is_none(), "they may be of this one");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_would_catch_our_subjects_is_found() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let greedy = Config {
        name: "GREEDY".to_owned(),
        subjects: vec!["dlq.*".to_owned(), "retry-at.x".to_owned()],
        ..Config::default()
    };
    server.context.create_stream(greedy).await.unwrap();
    let findings = check(&server, &ours()).await;
    let taken: Vec<_> = findings.iter().filter(|f| f.subject == "stream `GREEDY`").collect();
    assert_eq!(taken.len(), 2, "{findings:#?}");
    assert!(taken.iter().all(|f| f.severity == Severity::Error && f.setting == "subjects"));
    assert!(taken.iter().any(|f| f.found == "dlq.*" && f.advice.contains("`DLQ`")));
    let error = ours().create(&server.client).await.unwrap_err();
    assert!(error.to_string().contains("overlap"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn buckets_that_forget_are_found() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    ours().create(&server.client).await.unwrap();
    let mut deployment = ours();
    deployment.buckets.extend(["marks".to_owned(), "keys".to_owned()]);
    let marks = kv::Config {
        bucket: "marks".to_owned(),
        storage: StorageType::Memory,
        max_bytes: 1_000_000,
        ..kv::Config::default()
    };
    server.context.create_key_value(marks).await.unwrap();
    let findings = check(&server, &deployment).await;
    let seen: Vec<_> = findings.iter().map(|f| (f.subject.as_str(), f.setting.as_str())).collect();
    assert!(seen.contains(&("bucket `marks`", "storage")), "{findings:#?}");
    assert!(seen.contains(&("bucket `keys`", "existence")), "{findings:#?}");
    change(&server, "KV_marks", |config| config.discard = DiscardPolicy::Old).await;
    assert_eq!(found(&server, &deployment, "bucket `marks`", "max_bytes").await.found, "1000000");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_jetstream_says_so() {
    if !available() {
        return;
    }
    let off = "{ A: { users: [{ user: a, password: a }] }, B: { jetstream: enabled, users: [{ user: b, password: b }] } }";
    let server = Server::bare(&[("accounts", off)], "b", "b").await;
    let none = server.connect("a", "a").await;
    let findings = ours().check(&none).await.unwrap();
    let finding = findings.iter().find(|f| f.setting == "jetstream").unwrap();
    assert!(
        finding.severity == Severity::Error && finding.advice.contains("jetstream {}"),
        "{finding}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permissions_that_are_missing_are_named() {
    if !available() {
        return;
    }
    let users = "{ users: [ { user: root, password: root }, { user: app, password: app, permissions: { publish: { allow: \
                 [\"$JS.API.>\", \"$JS.ACK.ORDERS.>\", \"retry.billing.>\", \"retry-at.>\", \"dlq.orders.>\", \"$SYS.REQ.USER.INFO\"], deny: \
                 [\"$JS.API.STREAM.LIST\"] }, subscribe: { deny: [\"$JS.EVENT.>\"] } } } ] }";
    let server = Server::bare(&[("authorization", users)], "root", "root").await;
    let mut deployment = ours();
    deployment.router = Some(RouterConfig::default());
    deployment.create(&server.client).await.unwrap();
    let app = server.connect("app", "app").await;
    deployment.buckets.push("marks".to_owned());
    let findings = deployment.check(&app).await.unwrap();
    deployment.buckets.clear();
    let lacks = |part: &str| {
        findings.iter().any(|f| f.severity == Severity::Error && f.to_string().contains(part))
    };
    for part in [
        "user `app`: `permissions.publish` is without `dlq-aside.>`",
        "without `retry-aside.billing.>`",
        "without `$JS.ACK.DLQ_RETRY.billing.>`",
        "without `$KV.marks.>`",
        "`permissions.subscribe` is without `$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.>`",
        "`API request STREAM.LIST` is unanswered",
    ] {
        assert!(lacks(part), "{part}: {findings:#?}");
    }
    for part in ["without `retry.", "without `dlq.>`", "without `$JS.ACK.ORDERS", "STREAM.INFO"] {
        assert!(!lacks(part), "{part}: {findings:#?}");
    }
    let part = findings.iter().find(|f| f.to_string().contains("without `dlq.>`")).unwrap();
    assert_eq!(part.severity, Severity::Warning, "it may write some letters: {part}");
    assert!(
        deployment.check(&server.client).await.unwrap().iter().all(|f| f.subject == "event router")
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_right_of_a_consumer_that_is_missing_is_found() {
    /// The right, how bad it is to be without it, and whether a consumer does not even start.
    const RIGHTS: [(&str, Severity, bool); 12] = [
        ("$JS.API.CONSUMER.MSG.NEXT.ORDERS.billing", Severity::Error, true),
        ("$JS.API.CONSUMER.MSG.NEXT.DLQ_RETRY.billing", Severity::Error, true),
        ("$JS.API.STREAM.MSG.GET.DLQ_RETRY", Severity::Error, true),
        ("$JS.ACK.ORDERS.billing.>", Severity::Error, true),
        ("$JS.ACK.DLQ_RETRY.billing.>", Severity::Error, true),
        ("retry.billing.>", Severity::Error, true),
        ("retry-at.billing.>", Severity::Error, true),
        ("retry-aside.billing.>", Severity::Error, true),
        ("dlq.>", Severity::Error, true),
        ("dlq-aside.>", Severity::Error, true),
        // Needed for messages that hardly any stream has, and for a part of the letters.
        ("$JS.API.STREAM.MSG.GET.ORDERS", Severity::Warning, false),
        ("dlq.orders.special", Severity::Warning, false),
    ];
    if !available() {
        return;
    }
    let user = |(n, (right, ..)): (usize, &(&str, Severity, bool))| {
        format!(
            "{{ user: u{n}, password: p, permissions: {{ publish: {{ deny: [\"{right}\"] }} }} }}"
        )
    };
    let users: Vec<String> = RIGHTS.iter().enumerate().map(user).collect();
    let users = format!("{{ users: [ {{ user: root, password: root }}, {} ] }}", users.join(", "));
    let server = Server::bare(&[("authorization", &users)], "root", "root").await;
    let deployment = ours();
    deployment.create(&server.client).await.unwrap();
    assert_eq!(check(&server, &deployment).await, [], "who may do everything lacks nothing");
    for (n, (right, severity, keeps)) in RIGHTS.into_iter().enumerate() {
        let client = server.connect(&format!("u{n}"), "p").await;
        let findings = deployment.check(&client).await.unwrap();
        // A part of the subjects of letters is named by all of them.
        let named = if right == "dlq.orders.special" { "dlq.>" } else { right };
        let [found] = &findings[..] else { panic!("{right}: {findings:#?}") };
        assert_eq!(found.severity, severity, "{found}");
        assert!(found.to_string().contains(&format!("is without `{named}`")), "{found}");
        let billing = NatsTransport::new(STREAM).name("billing");
        let source = billing.source(&client).await.err().map(|error| error.to_string());
        let queue = billing.retry_queue(&client).await.err().map(|error| error.to_string());
        let sink = NatsSink::open(&client, DlqStream::new()).await.err();
        let errors = [source, queue, sink.map(|error| error.to_string())];
        let refused: Vec<String> = errors.into_iter().flatten().collect();
        assert_eq!(!refused.is_empty(), keeps, "{right}: {refused:?}");
        assert!(refused.iter().all(|why| why.contains(right)), "{right}: {refused:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_right_to_answer_is_one_to_acknowledge_where_it_has_no_end() {
    if !available() {
        return;
    }
    let user = |name: &str, answers: &str| {
        format!(
            "{{ user: {name}, password: p, permissions: {{ publish: {{ allow: [\"$JS.API.>\", \"retry.>\", \"retry-at.>\", \
             \"retry-aside.>\", \"dlq.>\", \"dlq-aside.>\", \"$SYS.REQ.USER.INFO\"] }}, allow_responses: {answers} }} }}"
        )
    };
    let (once, often) = (user("once", "true"), user("often", "{ max: -1, expires: \"1h\" }"));
    let users = format!("{{ users: [ {{ user: root, password: root }}, {once}, {often} ] }}");
    let server = Server::bare(&[("authorization", &users)], "root", "root").await;
    let deployment = ours();
    deployment.create(&server.client).await.unwrap();
    for (name, expected) in [("once", Severity::Error), ("often", Severity::Warning)] {
        let client = server.connect(name, "p").await;
        let findings = deployment.check(&client).await.unwrap();
        let lacks = findings.iter().filter(|f| f.to_string().contains("without `$JS.ACK."));
        let severities: Vec<_> = lacks.map(|finding| finding.severity).collect();
        assert!(!severities.is_empty(), "{findings:#?}");
        assert!(severities.iter().all(|severity| *severity == expected), "{findings:#?}");
        let opened = NatsTransport::new(STREAM).name("billing").source(&client).await;
        assert_eq!(opened.is_err(), expected == Severity::Error, "{opened:?}");
    }
}
