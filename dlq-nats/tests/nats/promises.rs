//! Streams and buckets of ours that would not keep what they confirm, or not where it is looked for.

use std::time::Duration;

use async_nats::jetstream::kv;
use async_nats::jetstream::stream::{self, Config, PersistenceMode, SubjectTransform};
use dlq_core::StoreErrorKind;
use dlq_nats::admin::{Deployment, Finding};
use dlq_nats::{DlqStream, NatsCrashMarks, NatsSink};

use crate::fixture::{Server, available};

/// The stream of letters as it is made here, but for something.
async fn letters(server: &Server, change: impl FnOnce(&mut Config)) {
    let _ = NatsSink::open(&server.client, DlqStream::new()).await.unwrap();
    let stream = server.context.get_stream("DLQ").await.unwrap();
    let mut config = stream.cached_info().config.clone();
    server.context.delete_stream("DLQ").await.unwrap();
    change(&mut config);
    server.context.create_stream(config).await.unwrap();
}

/// It is refused when it is opened, and `dlq check` names it.
async fn refused(server: &Server, setting: &str, found: &str) {
    let error = NatsSink::open(&server.client, DlqStream::new()).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::InvalidConfig);
    let text = error.to_string();
    assert!(text.contains(&format!("`{setting}` is {found}")), "{text}");
    let findings = Deployment::default().check(&server.client).await.unwrap();
    assert!(findings.iter().any(|found: &Finding| found.setting == setting), "{findings:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g1_a_stream_that_confirms_before_it_keeps_is_refused() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    letters(&server, |config| {
        config.persist_mode = Some(PersistenceMode::Async);
        config.allow_direct = true;
    })
    .await;
    refused(&server, "persist_mode", "Async").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g9_a_stream_that_keeps_letters_under_other_subjects_is_refused() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    letters(&server, |config| {
        let (source, destination) = ("dlq.>".to_owned(), "archive.>".to_owned());
        config.subject_transform = Some(SubjectTransform { source, destination });
    })
    .await;
    refused(&server, "subject_transform", "dlq.> to archive.>").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn buckets_that_would_forget_are_refused() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    type Change = fn(&mut Config);
    let changes: [(&str, &str, Change); 3] = [
        ("late", "`persist_mode` is Async", |config| {
            config.persist_mode = Some(PersistenceMode::Async);
        }),
        ("few", "`max_msgs` is 10", |config| {
            config.max_messages = 10;
            config.discard = stream::DiscardPolicy::Old;
        }),
        ("full", "", |config| config.max_messages = 10),
    ];
    for (bucket, why, change) in changes {
        let config = kv::Config { bucket: bucket.to_owned(), ..kv::Config::default() };
        let made = server.context.create_key_value(config).await.unwrap();
        let mut config = made.stream.cached_info().config.clone();
        server.context.delete_key_value(bucket).await.unwrap();
        config.max_age = Duration::ZERO;
        change(&mut config);
        server.context.create_stream(config).await.unwrap();
        let opened = NatsCrashMarks::open(&server.client, bucket, 1).await;
        let text = opened.map_or_else(|error| error.to_string(), |_| String::new());
        assert!(text.contains(why) && text.is_empty() == why.is_empty(), "{bucket}: {text}");
        let mut deployment = Deployment::default();
        deployment.buckets = vec![bucket.to_owned()];
        let findings = deployment.check(&server.client).await.unwrap();
        let setting = why.split('`').nth(1);
        let named = |found: &Finding| Some(found.setting.as_str()) == setting;
        assert_eq!(findings.iter().any(named), setting.is_some(), "{bucket}: {findings:#?}");
    }
}
