//! Each wrong setting is made at the brokers, and found; a right deployment has no findings.

use std::time::Duration;

use dlq_core::{Clock as _, SystemClock};
use dlq_kafka::admin::Deployment;
use dlq_kafka::admin::Severity::{Error, Note, Warning};
use dlq_kafka::{DlqTopic, Ladder};
use dlq_services::{Service, or_skip};

use crate::fixture_topics::{Operator, available, is, of_topics, one, ours, shared};

#[tokio::test(flavor = "multi_thread")]
async fn wrong_settings_of_dead_letters_are_found() {
    if !available() {
        return;
    }
    let operator = Operator::at(&shared());
    operator.create("dead", 2, &[("max.message.bytes", "2000000")]).await;
    let wrong = [
        ("cleanup.policy", "compact,delete"),
        ("retention.ms", "604800000"),
        ("retention.bytes", "1000000"),
        ("max.message.bytes", "2000000"),
    ];
    operator.create("dead.dlq", 1, &wrong).await;
    let deployment = ours("dead");
    let findings = operator.check(&deployment).await;
    let found = |setting| one(&findings, "topic `dead.dlq`", setting);
    is(found("cleanup.policy"), Error, "compact,delete", "delete");
    is(found("retention.ms"), Error, "7d", "30d or more");
    is(found("retention.bytes"), Error, "1000000", "-1");
    is(found("max.message.bytes"), Warning, "2000000", "2065536 or more");
    is(found("partitions"), Note, "1", "2");
    assert!(found("cleanup.policy").advice.contains("only the newest is kept"));
    let missing = one(&findings, "topic `dead.billing.retry.5m`", "existence");
    is(missing, Error, "missing", "there");
    assert_eq!(of_topics(findings.clone()).len(), 8, "{findings:#?}");
    assert!(findings.is_sorted_by_key(|found| std::cmp::Reverse(found.severity)));
    let created = deployment.create(&operator.brokers).await.unwrap();
    assert_eq!((created.created.len(), created.differs.len()), (3, 5), "{created:?}");
    assert_eq!(operator.settings("dead.dlq").await["cleanup.policy"], "compact,delete");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_forgets_what_letters_point_to_is_found() {
    if !available() {
        return;
    }
    let operator = Operator::at(&shared());
    let forgets = [
        ("max.message.bytes", "2000000"),
        ("cleanup.policy", "compact,delete"),
        ("retention.ms", "3600000"),
        ("retention.bytes", "1000000"),
    ];
    operator.create("pointed", 1, &forgets).await;
    let of_source = async |deployment: &Deployment| {
        let findings = of_topics(operator.check(deployment).await);
        let of_source = findings.into_iter().filter(|found| found.subject == "topic `pointed`");
        of_source.collect::<Vec<_>>()
    };
    let mut deployment = ours("pointed");
    deployment.consumers[0].ladder = None;
    // Every letter fits into its topic, so that none points anywhere: the topic is as its owner likes it.
    deployment.create(&operator.brokers).await.unwrap();
    assert_eq!(of_source(&deployment).await, []);
    operator.create("pointed.narrow", 1, &[("retention.ms", "-1")]).await;
    deployment.letters = DlqTopic::new().name("pointed.narrow");
    let findings = of_source(&deployment).await;
    let found = |setting| one(&findings, "topic `pointed`", setting);
    is(found("cleanup.policy"), Warning, "compact,delete", "delete");
    is(found("retention.ms"), Warning, "1h", "-1");
    is(found("retention.bytes"), Warning, "1000000", "-1");
    let advice = &found("retention.ms").advice;
    for part in ["letters too large for topic `pointed.narrow`", "raise `max.message.bytes`"] {
        assert!(advice.contains(part), "{part}: {advice}");
    }
    // A topic that keeps what is pointed to for as long as the letters are kept.
    let month = ("retention.ms", "2592000000");
    operator.create("pointed-long", 1, &[("max.message.bytes", "2000000"), month]).await;
    operator.create("pointed-long.narrow", 1, &[month]).await;
    deployment.consumers[0].topic = "pointed-long".to_owned();
    deployment.letters = DlqTopic::new().name("pointed-long.narrow");
    let findings = of_topics(operator.check(&deployment).await);
    let [found] = &findings[..] else { panic!("{findings:#?}") };
    assert_eq!(
        (&*found.subject, &*found.setting),
        ("topic `pointed-long.narrow`", "max.message.bytes")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_settings_of_stages_are_found() {
    if !available() {
        return;
    }
    let operator = Operator::at(&shared());
    operator.create("late", 2, &[]).await;
    operator.create("late.billing.retry.30s", 2, &[("cleanup.policy", "compact")]).await;
    operator.create("late.billing.retry.5m", 2, &[("retention.ms", "3600000")]).await;
    operator.create("late.billing.retry.1h", 1, &[("retention.ms", "3600000")]).await;
    let deployment = ours("late");
    let findings = operator.check(&deployment).await;
    let found =
        |stage, setting| one(&findings, &format!("topic `late.billing.retry.{stage}`"), setting);
    is(found("30s", "cleanup.policy"), Error, "compact", "delete");
    is(found("1h", "retention.ms"), Error, "1h", "2d 1h or more");
    assert!(found("1h", "retention.ms").advice.contains("before they are due"));
    is(found("5m", "retention.ms"), Warning, "1h", "1d 5m or more");
    is(found("1h", "partitions"), Warning, "1", "2");
    is(found("1h", "max.message.bytes"), Warning, "1048588", "1114124 or more");
    let mut shorter = deployment;
    shorter.consumers[0].ladder = Some(Ladder::of([30, 300].map(Duration::from_secs)));
    let findings = operator.check(&shorter).await;
    let former = one(&findings, "topic `late.billing.retry.1h`", "ladder");
    is(former, Note, "no stage of it", "a stage of it, or no topic");
    assert!(findings.iter().filter(|finding| finding.setting == "ladder").count() == 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn letters_that_are_about_to_be_removed_are_found() {
    if !available() {
        return;
    }
    let operator = Operator::at(&shared());
    operator.create("aged", 2, &[]).await;
    let mut deployment = ours("aged");
    deployment.consumers[0].ladder = None;
    deployment.letters = DlqTopic::new().retention(Duration::from_secs(24 * 3600));
    deployment.create(&operator.brokers).await.unwrap();
    let hours_ago = |hours: u64| {
        let ago = Duration::from_secs(hours * 3600);
        Some(SystemClock.now().before(ago).as_millis())
    };
    operator.write("aged.dlq", 0, hours_ago(19)).await;
    assert_eq!(of_topics(operator.check(&deployment).await), [], "four fifths are 19 h 12 min");
    operator.write("aged.dlq", 1, hours_ago(20)).await;
    operator.write("aged.dlq", 1, hours_ago(20)).await;
    operator.write("aged.dlq", 1, None).await;
    let found = operator.found(&deployment, "topic `aged.dlq`", "retention.ms").await;
    let (was, want) = ("1d, and 2 letters are older than 19h 12m", "letters younger than 19h 12m");
    is(&found, Warning, was, want);
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_settings_of_brokers_are_found() {
    if !available() {
        return;
    }
    let operator = Operator::at(&shared());
    operator.create("broker", 1, &[]).await;
    let findings = operator.check(&ours("broker")).await;
    let found = |setting| one(&findings, "broker `1`", setting);
    is(found("auto.create.topics.enable"), Note, "true", "false");
    is(found("offsets.retention.minutes"), Warning, "60", "10080 or more");
    is(found("offset.metadata.max.bytes"), Warning, "1024", "4096 or more");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_right_deployment_has_no_findings() {
    if !available() {
        return;
    }
    let builder = Service::Kafka.builder().ours().setting("auto.create.topics.enable", "false");
    let cluster = tokio::task::block_in_place(|| builder.start_cluster());
    let Ok(mut cluster) = or_skip(Service::Kafka, cluster) else { return };
    let operator = Operator::at(&cluster.url());
    operator.create_on("right", 3, 3, &[]).await;
    let deployment = ours("right");
    deployment.create(&operator.brokers).await.unwrap();
    assert_eq!(operator.check(&deployment).await, []);

    // And each wrong one that needs more than one broker.
    let early = ("min.insync.replicas", "1");
    let unclean = ("unclean.leader.election.enable", "true");
    operator.create_on("wrong", 3, 3, &[early, unclean]).await;
    operator.create_on("wrong.dlq", 6, 1, &[("max.message.bytes", "2000000")]).await;
    operator.create_on("wrong.billing.retry.30s", 3, 3, &[("min.insync.replicas", "3")]).await;
    let findings = operator.check(&ours("wrong")).await;
    is(one(&findings, "topic `wrong`", early.0), Warning, "1", "2");
    is(one(&findings, "topic `wrong`", unclean.0), Warning, "true", "false");
    is(one(&findings, "topic `wrong.dlq`", "replication"), Warning, "1", "3");
    let stage = one(&findings, "topic `wrong.billing.retry.30s`", early.0);
    is(stage, Warning, "3", "2 or less");
    assert!(stage.advice.contains("nothing can be written"), "{stage}");

    // A broker that is away takes the leaders of what has one replica only, once the others miss it.
    tokio::task::block_in_place(|| {
        cluster.kill(2).unwrap();
        cluster.await_formed().unwrap();
    });
    let found = tokio::time::timeout(crate::fixture_topics::PATIENCE, async {
        loop {
            let findings = operator.check(&ours("wrong")).await;
            let leader = findings.iter().find(|found| found.setting == "leader");
            if let Some(found) = leader {
                break found.clone();
            }
        }
    });
    let found = found.await.unwrap();
    assert_eq!((found.severity, found.subject.as_str()), (Warning, "topic `wrong.dlq`"), "{found}");
}
