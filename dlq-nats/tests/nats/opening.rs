//! What is found at the server when it is opened.

use std::time::Duration;

use async_nats::jetstream::consumer::{AckPolicy, PriorityPolicy, pull, push};
use async_nats::jetstream::stream;
use dlq_core::log::Log as _;
use dlq_core::{Message, Sink as _, StoreErrorKind, TransportErrorKind};
use dlq_nats::admin::{ConsumerPlan, Deployment, Finding};
use dlq_nats::{DlqStream, NatsLetters, NatsSink, NatsTransport};
use dlq_testkit::fixtures::letter_of;

use crate::fixture::{STREAM, Server, available, billing, consumer, handle, number};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_with_other_settings_is_reported_and_not_changed() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let theirs = stream::Config {
        name: "DLQ".to_owned(),
        subjects: vec!["dlq.>".to_owned()],
        max_age: Duration::from_secs(3600),
        storage: stream::StorageType::Memory,
        ..stream::Config::default()
    };
    server.context.create_stream(theirs).await.unwrap();
    let before = server.context.get_stream("DLQ").await.unwrap().cached_info().config.clone();
    let error = NatsSink::open(&server.client, DlqStream::new()).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::InvalidConfig);
    let text = error.to_string();
    for part in ["`subjects` is dlq.>, asked", "`max_age` is 1h", "`storage` is Memory"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let after = server.context.get_stream("DLQ").await.unwrap().cached_info().config.clone();
    assert_eq!(after, before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bound_that_would_evict_letters_is_reported() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let _ = NatsSink::open(&server.client, DlqStream::new()).await.unwrap();
    let mut config = server.context.get_stream("DLQ").await.unwrap().cached_info().config.clone();
    config.max_messages = 1000;
    config.discard = stream::DiscardPolicy::Old;
    server.context.update_stream(config).await.unwrap();
    let error = NatsSink::open(&server.client, DlqStream::new()).await.unwrap_err();
    assert!(error.to_string().contains("would lose what it keeps"), "{error}");
}

/// Whatever `discard` says, a server removes what is oldest on a subject, unless it is told to refuse there, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g9_a_bound_of_each_subject_that_would_evict_letters_is_reported() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let sink = NatsSink::open(&server.client, DlqStream::new()).await.unwrap();
    let mut config = server.context.get_stream("DLQ").await.unwrap().cached_info().config.clone();
    config.max_messages_per_subject = 1;
    server.context.update_stream(config.clone()).await.unwrap();
    let error = NatsSink::open(&server.client, DlqStream::new()).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::InvalidConfig);
    let text = error.to_string();
    assert!(text.contains("`max_msgs_per_subject` is 1") && text.contains("lose"), "{text}");
    let findings = Deployment::default().check(&server.client).await.unwrap();
    let names_it = |found: &Finding| found.setting == "max_msgs_per_subject";
    assert!(findings.iter().any(names_it), "{findings:#?}");
    config.discard_new_per_subject = true;
    server.context.update_stream(config).await.unwrap();
    let _ = NatsSink::open(&server.client, DlqStream::new()).await.unwrap();
    let letter = |number| letter_of(Message::new("orders.created", number), 7);
    sink.put(vec![letter("1")]).await.unwrap();
    let error = sink.put(vec![letter("2")]).await.unwrap_err();
    assert!(error.to_string().contains("stream `DLQ` takes no more of this subject"), "{error}");
    assert_eq!(error.kind(), StoreErrorKind::Refused, "others are taken");
    assert_eq!(server.stored("DLQ").await[0].payload, "1");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_takes_no_large_messages_is_reported() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let _ = NatsSink::open(&server.client, DlqStream::new()).await.unwrap();
    let mut config = server.context.get_stream("DLQ").await.unwrap().cached_info().config.clone();
    let most = server.client.max_payload();
    config.max_message_size = i32::try_from(most - 1).unwrap();
    server.context.update_stream(config.clone()).await.unwrap();
    let error = NatsSink::open(&server.client, DlqStream::new()).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::InvalidConfig);
    assert!(error.to_string().contains("`max_msg_size` is"), "{error}");
    // As large as anything can be.
    config.max_message_size += 1;
    server.context.update_stream(config).await.unwrap();
    let _ = NatsSink::open(&server.client, DlqStream::new()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn subjects_of_another_stream_are_reported() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let stream = DlqStream::new().prefix("orders");
    let error = NatsSink::open(&server.client, stream).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::InvalidConfig, "{error}");
    assert!(error.to_string().contains("overlap"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_made_once_is_opened_again_by_many() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let open = || async {
        let _ = NatsSink::open(&server.client, DlqStream::new()).await.unwrap();
        let _ = billing().retry_queue(&server.client).await.unwrap();
        let _ = billing().source(&server.client).await.unwrap();
    };
    tokio::join!(open(), open(), open(), open());
    open().await;
    let info = server.context.get_stream("DLQ").await.unwrap().cached_info().clone();
    assert_eq!(info.config.retention, stream::RetentionPolicy::Limits);
    assert_eq!(info.config.storage, stream::StorageType::File);
    assert_eq!(info.config.max_age, Duration::from_secs(30 * 24 * 3600));
    let stream = server.context.get_stream(STREAM).await.unwrap();
    let config = stream.consumer_info("billing").await.unwrap().config;
    assert_eq!((config.max_deliver, config.ack_policy), (-1, AckPolicy::Explicit));
    assert!(config.backoff.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_that_would_drop_messages_is_reported() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let stream = server.context.get_stream(STREAM).await.unwrap();
    let theirs = pull::Config {
        durable_name: Some("billing".to_owned()),
        max_deliver: 3,
        backoff: vec![Duration::from_secs(1), Duration::from_secs(2)],
        ..pull::Config::default()
    };
    stream.create_consumer(theirs).await.unwrap();
    let error = billing().source(&server.client).await.unwrap_err();
    assert_eq!(error.kind(), TransportErrorKind::InvalidConfig);
    let text = error.to_string();
    for part in ["`max_deliver` is 3", "`backoff` is", "`filter_subjects` is []"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    for (name, lease) in [("long", Duration::from_secs(90)), ("short", Duration::from_millis(300))]
    {
        let theirs = pull::Config {
            durable_name: Some(name.to_owned()),
            filter_subject: "orders.>".to_owned(),
            ack_wait: lease,
            ..pull::Config::default()
        };
        stream.create_consumer(theirs).await.unwrap();
    }
    consumer("long").source(&server.client).await.unwrap();
    let error = consumer("short").source(&server.client).await.unwrap_err();
    assert!(error.to_string().contains("`ack_wait` is 300ms, asked was 3s"), "{error}");
    let pushing = push::Config {
        durable_name: Some("pushing".to_owned()),
        deliver_subject: "somewhere".to_owned(),
        ..push::Config::default()
    };
    stream.create_consumer(pushing).await.unwrap();
    let error =
        NatsTransport::new(STREAM).name("pushing").source(&server.client).await.unwrap_err();
    assert!(error.to_string().contains("`deliver_subject` is somewhere"), "{error}");
}

/// The server would delete it while nobody pulls, and with it where it stood: whoever creates it anew skips messages.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g1_a_consumer_that_the_server_would_delete_is_reported() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let mut config = server.context.get_stream(STREAM).await.unwrap().cached_info().config.clone();
    config.consumer_limits = Some(stream::ConsumerLimits {
        inactive_threshold: Duration::from_secs(3600),
        ..stream::ConsumerLimits::default()
    });
    server.context.update_stream(config).await.unwrap();
    let error = billing().source(&server.client).await.unwrap_err();
    assert_eq!(error.kind(), TransportErrorKind::InvalidConfig);
    let text = error.to_string();
    assert!(text.contains("`inactive_threshold` is 3600s, asked was none"), "{text}");
    assert!(text.contains("`consumer_limits`"), "{text}");
    let mut deployment = Deployment::default();
    deployment.consumers.push(ConsumerPlan::new(STREAM, "billing"));
    let findings = deployment.check(&server.client).await.unwrap();
    let names_it = |found: &Finding| found.setting == "inactive_threshold";
    assert!(findings.iter().any(names_it), "{findings:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_that_would_refuse_to_be_pulled_is_reported() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let stream = server.context.get_stream(STREAM).await.unwrap();
    let theirs = |name: &str| pull::Config {
        durable_name: Some(name.to_owned()),
        filter_subject: "orders.>".to_owned(),
        ..pull::Config::default()
    };
    let brief = pull::Config { max_expires: Duration::from_secs(1), ..theirs("brief") };
    stream.create_consumer(brief).await.unwrap();
    let error = consumer("brief").source(&server.client).await.unwrap_err();
    assert_eq!(error.kind(), TransportErrorKind::InvalidConfig);
    assert!(error.to_string().contains("`max_expires` is 1s, asked was 30s or more"), "{error}");
    // No more is asked for than it gives.
    let few = pull::Config { max_batch: 1, ..theirs("few") };
    stream.create_consumer(few).await.unwrap();
    let mut source = consumer("few").source(&server.client).await.unwrap();
    server.publish([1, 2]).await;
    for wanted in [1, 2] {
        assert_eq!(number(&handle(&mut source).await.unwrap()), wanted);
    }
    let grouped = pull::Config {
        priority_policy: PriorityPolicy::Overflow,
        priority_groups: vec!["jobs".to_owned()],
        ..theirs("grouped")
    };
    stream.create_consumer(grouped).await.unwrap();
    let error = consumer("grouped").source(&server.client).await.unwrap_err();
    assert!(error.to_string().contains("`priority_groups` is [\"jobs\"]"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_is_not_there_is_named() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let error =
        NatsTransport::new("ODRERS").name("billing").source(&server.client).await.unwrap_err();
    assert_eq!(error.kind(), TransportErrorKind::Unavailable);
    assert!(error.to_string().contains("there is no stream `ODRERS`"), "{error}");
    let error = billing().without_retries().retry_queue(&server.client).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::InvalidConfig);
}

/// Two releases at their first start: the second does not change what the first has made.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_that_create_a_consumer_the_second_changes_nothing() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let one = billing().without_retries();
    let other = NatsTransport::new(STREAM).name("billing").subject("orders.eu.>").without_retries();
    let stream = server.context.get_stream(STREAM).await.unwrap();
    for _ in 0..20 {
        let (one, other) = tokio::join!(one.source(&server.client), other.source(&server.client));
        let there = stream.consumer_info("billing").await.unwrap().config.filter_subject;
        let (made, refused, filter) = match (one, other) {
            (Ok(made), Err(refused)) => (made, refused, "orders.>"),
            (Err(refused), Ok(made)) => (made, refused, "orders.eu.>"),
            both => panic!("one of them has it: {both:?}"),
        };
        assert_eq!(there, filter);
        assert_eq!(refused.kind(), TransportErrorKind::InvalidConfig, "{refused}");
        assert!(refused.to_string().contains("`filter_subjects` is"), "{refused}");
        drop(made);
        stream.delete_consumer("billing").await.unwrap();
    }
}

/// Two `dlq ingest` into different stores: the letters of a consumer go into one of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_feeds_with_different_stores_one_is_opened() {
    const LEASE: Duration = Duration::from_secs(1);
    if !available() {
        return;
    }
    let server = Server::start().await;
    let letters = DlqStream::new();
    let _ = NatsSink::open(&server.client, letters.clone()).await.unwrap();
    let stream = server.context.get_stream("DLQ").await.unwrap();
    let letters = NatsLetters::new(&server.client, letters);
    let open = |store: &str| letters.follow(store.to_owned(), LEASE);
    for _ in 0..20 {
        let (store, refused) = match tokio::join!(open("one"), open("other")) {
            (Ok(_), Err(refused)) => ("one", refused),
            (Err(refused), Ok(_)) => ("other", refused),
            both => panic!("one of them has it: {both:?}"),
        };
        assert!(!refused.is_transient(), "{refused}");
        let marks = letters.marks().await.unwrap();
        assert_eq!(marks[0].store, store, "{refused}");
        stream.delete_consumer("dlq-ingest").await.unwrap();
    }
}
