//! A user who may not do something is told what, of which topic, and what to allow.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use dlq_core::log::{Content, Entries as _, Entry};
use dlq_core::{
    Filter, OperationId, PageRequest, Sink as _, Status, StoreErrorKind, Timestamp,
    TransportErrorKind,
};
use dlq_kafka::admin::Severity::{Error, Note};
use dlq_kafka::rdkafka::ClientConfig;
use dlq_kafka::rdkafka::producer::{FutureProducer, FutureRecord};
use dlq_kafka::{DlqTopic, KafkaLag, KafkaLetters, KafkaReplay, KafkaSink, KafkaTarget};
use dlq_services::Running;
use dlq_testkit::fixtures::letter;
use tokio::time::timeout;

use crate::fixture::start_with;
use crate::fixture_feed::follow;
use crate::fixture_reading::Look as _;
use crate::fixture_topics::{Operator, PATIENCE, available, is, one, ours};

pub(crate) const TOPIC: i8 = 2;
pub(crate) const GROUP: i8 = 3;
const CLUSTER: i8 = 4;
pub(crate) const READ: i8 = 3;
pub(crate) const WRITE: i8 = 4;
pub(crate) const DESCRIBE: i8 = 8;
const ALTER: i8 = 7;
const CLUSTER_ACTION: i8 = 9;
/// Which does not come with `Describe`, as others do.
pub(crate) const DESCRIBE_CONFIGS: i8 = 10;

/// A broker that allows what no rule is about. Who does not say who they are is `User:ANONYMOUS`.
pub(crate) fn guarded() -> Running {
    let authorizer = "org.apache.kafka.metadata.authorizer.StandardAuthorizer";
    start_with(&[("authorizer.class.name", authorizer), ("allow.everyone.if.no.acl.found", "true")])
}

fn text(to: &mut Vec<u8>, text: &str) {
    to.extend_from_slice(&(text.len() as i16).to_be_bytes());
    to.extend_from_slice(text.as_bytes());
}

/// Allows us one operation on something, and by that no other.
pub(crate) fn allow_only(broker: &Running, kind: i8, name: &str, operation: i8) {
    allow_these(broker, kind, name, &[operation]);
}

/// The same of several.
fn allow_these(broker: &Running, kind: i8, name: &str, operations: &[i8]) {
    rule(broker, kind, name, operations, 3);
}

/// Forbids us these operations on a topic, whatever else allows them.
fn forbid(broker: &Running, topic: &str, operations: &[i8]) {
    rule(broker, TOPIC, topic, operations, 2);
}

/// The client has no request for it.
fn rule(broker: &Running, kind: i8, name: &str, operations: &[i8], permission: i8) {
    let mut body = Vec::new();
    // `CreateAcls`, version 1, with a number and without a name of the client; a rule for each.
    body.extend_from_slice(&30_i16.to_be_bytes());
    body.extend_from_slice(&1_i16.to_be_bytes());
    body.extend_from_slice(&7_i32.to_be_bytes());
    body.extend_from_slice(&(-1_i16).to_be_bytes());
    body.extend_from_slice(&(operations.len() as i32).to_be_bytes());
    for operation in operations {
        body.push(kind.cast_unsigned());
        text(&mut body, name);
        body.push(3); // the name is literal
        text(&mut body, "User:ANONYMOUS");
        text(&mut body, "*");
        body.extend_from_slice(&[*operation, permission].map(i8::cast_unsigned));
    }
    let mut stream = TcpStream::connect(broker.url()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(&(body.len() as i32).to_be_bytes()).unwrap();
    stream.write_all(&body).unwrap();
    // Length, number, throttling, how many results, and the first's error.
    let mut answer = [0; 18];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!((&answer[4..8], &answer[16..]), (&[0, 0, 0, 7][..], &[0, 0][..]), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_user_may_not_do_is_told_with_what_to_allow() {
    if !available() {
        return;
    }
    let broker = guarded();
    let operator = Operator::at(broker.url());
    operator.create("seen", 1, &[]).await;
    operator.create("hidden", 1, &[]).await;
    // Only to be seen, neither created nor its settings read; not to be seen; a group whose offsets are not to be seen.
    allow_only(&broker, TOPIC, "seen.dlq", DESCRIBE);
    allow_only(&broker, TOPIC, "hidden", DESCRIBE_CONFIGS);
    allow_only(&broker, GROUP, "secret", READ);
    let hidden = async {
        loop {
            let findings = operator.check(&ours("hidden")).await;
            if findings.iter().any(|found| found.found == "unknown") {
                break findings;
            }
        }
    };
    let findings = timeout(PATIENCE, hidden).await.unwrap();
    let found = one(&findings, "topic `hidden`", "existence");
    is(found, Error, "unknown", "there");
    assert!(found.advice.contains("allow `Describe` on it"), "{found}");
    let error = ours("hidden").create(&operator.brokers).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::InvalidConfig, "{error}");
    assert!(error.to_string().contains("topic `hidden`: the user may not see it"), "{error}");
    let lag = |group, topic| KafkaLag::new(operator.brokers.clone(), group, [topic]);
    let error = lag("billing", "hidden").read().await.unwrap_err();
    assert!(error.to_string().contains("topic `hidden`: the user may not see it"), "{error}");
    // A group that may only be read says nothing of others: `Describe` comes with `Read`.
    lag("secret", "seen").read().await.unwrap();
    allow_only(&broker, GROUP, "closed", DESCRIBE_CONFIGS);
    let closed = async {
        loop {
            if let Err(error) = lag("closed", "seen").read().await {
                break error;
            }
        }
    };
    let error = timeout(PATIENCE, closed).await.unwrap();
    assert_eq!(error.kind(), TransportErrorKind::InvalidConfig, "{error}");
    assert!(error.to_string().contains("allow `Describe` on the group"), "{error}");

    // Whoever may create in the cluster may create every topic.
    allow_only(&broker, CLUSTER, "kafka-cluster", CLUSTER_ACTION);
    // The settings of brokers are of the cluster.
    let unknown = async {
        loop {
            let findings = operator.check(&ours("seen")).await;
            if let Some(found) = findings.into_iter().find(|found| found.found == "unknown") {
                break found;
            }
        }
    };
    let found = timeout(PATIENCE, unknown).await.unwrap();
    is(&found, Note, "unknown", "4096 or more");
    assert_eq!(found.setting, "offset.metadata.max.bytes");
    let error = ours("seen").create(&operator.brokers).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::InvalidConfig, "{error}");
    let said = error.to_string();
    assert!(
        said.contains("create topic `seen.") && said.contains("allow `Create` on it"),
        "{said}"
    );
    println!("{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_that_may_not_be_read_keep_nobody_from_starting() {
    if !available() {
        return;
    }
    let broker = guarded();
    let operator = Operator::at(broker.url());
    operator.create("plain", 1, &[]).await;
    let deployment = ours("plain");
    deployment.create(&operator.brokers).await.unwrap();
    allow_only(&broker, TOPIC, "plain.dlq", DESCRIBE);
    let known = async {
        loop {
            let findings = operator.check(&deployment).await;
            if let Some(found) = findings.into_iter().find(|found| found.setting == "settings") {
                break found;
            }
        }
    };
    let found = timeout(PATIENCE, known).await.unwrap();
    is(&found, Note, "unknown", "readable");
    assert_eq!(found.subject, "topic `plain.dlq`");
    let done = deployment.create(&operator.brokers).await.unwrap();
    assert_eq!((done.created.len(), done.differs), (0, vec![found]));
}

#[tokio::test(flavor = "multi_thread")]
async fn who_may_write_nothing_at_first_writes_once_it_is_allowed() {
    if !available() {
        return;
    }
    let broker = guarded();
    let operator = Operator::at(broker.url());
    let of = ["first".to_owned()];
    operator.create("first", 1, &[]).await;
    operator.create("first.dlq", 1, &[]).await;
    let open = || KafkaSink::open(&operator.brokers, DlqTopic::new().name("first.dlq"), &of);
    // A producer has to be allowed something by which it gets its number. The broker is of the same user, and we go on
    // with rules.
    allow_only(&broker, TOPIC, "*", DESCRIBE);
    allow_these(&broker, CLUSTER, "kafka-cluster", &[ALTER, CLUSTER_ACTION]);
    let refused = async {
        loop {
            let sink = open().await.unwrap();
            // One that the topic alone refuses writes by the client that it has: the rule of the cluster is not in force.
            if let Err(error) = sink.put(vec![letter(1)]).await
                && error.to_string().contains("nor any other")
            {
                break (sink, error);
            }
        }
    };
    let (sink, error) = timeout(PATIENCE, refused).await.unwrap();
    println!("{error}");
    assert_eq!(error.kind(), StoreErrorKind::InvalidConfig, "{error}");
    let said = error.to_string();
    assert!(said.contains("topic `first.dlq`") && said.contains("allow `Write`"), "{said}");

    allow_only(&broker, TOPIC, "first.dlq", WRITE);
    let allowed = async {
        while let Err(error) = sink.put(vec![letter(2)]).await {
            assert!(error.to_string().contains("topic `first.dlq`"), "{error}");
        }
    };
    timeout(PATIENCE, allowed).await.expect("the same sink writes");
}

/// Brokers say the same of a topic that is not there.
#[tokio::test(flavor = "multi_thread")]
async fn who_may_not_see_what_was_sent_back_reads_letters_and_is_told_so() {
    if !available() {
        return;
    }
    let broker = guarded();
    let operator = Operator::at(broker.url());
    operator.create("orders.dlq", 1, &[]).await;
    let producer: FutureProducer =
        ClientConfig::new().set("bootstrap.servers", broker.url()).create().unwrap();
    let record = FutureRecord::<[u8], [u8]>::to("orders.dlq").payload(b"letter");
    producer.send(record, PATIENCE).await.unwrap();
    allow_only(&broker, TOPIC, "orders.dlq.replays", DESCRIBE_CONFIGS);
    let hidden = async {
        loop {
            // Until the broker goes by the rule, it says that there is none.
            let letters = KafkaLetters::new(&operator.brokers, "orders.dlq");
            let page = letters.list(Filter::new(), PageRequest::new()).await.unwrap();
            let letter = letters.get(page.letters[0].id).await.unwrap().unwrap();
            if let Some(why) = letter.attributes.get("replays.unclear") {
                break (letters, why.clone());
            }
        }
    };
    let (letters, why) = timeout(PATIENCE, hidden).await.unwrap();
    assert!(why.contains("orders.dlq.replays") && why.contains("allow `Describe`"), "{why}");
    operator.create("orders", 1, &[]).await;
    let id = OperationId::of("ana", Timestamp::EPOCH, 1);
    let to = KafkaTarget::Topic("orders".to_owned());
    let plan = KafkaReplay::new(&letters, Filter::new(), to, id).plan().await.unwrap();
    assert!(plan.notes.iter().any(|note| note.contains(&why)), "{:?}", plan.notes);
    // What goes into a store from the beginning without it would all be quarantined there.
    let mut feed = follow(&letters, "store", Duration::from_secs(10)).await.unwrap();
    for _ in 0..2 {
        let refused = timeout(PATIENCE, feed.next(10)).await.unwrap().unwrap_err();
        assert_eq!(refused.kind(), StoreErrorKind::InvalidConfig);
        assert!(refused.to_string().contains(&why), "{refused}");
    }
    allow_these(&broker, TOPIC, "orders.dlq.replays", &[DESCRIBE, READ]);
    operator.create("orders.dlq.replays", 1, &[]).await;
    let fed = async {
        loop {
            if let Ok(fed) = feed.next(10).await {
                break fed;
            }
        }
    };
    let status = |fed: &[Entry]| match &fed[0].content {
        Content::Letter(letter) => letter.state.status,
        other => panic!("{other:?}"),
    };
    let fed = timeout(PATIENCE, fed).await.expect("it goes on once it may");
    assert_eq!((fed.len(), status(&fed)), (1, Status::Pending));
    // Later on it waits for nobody.
    forbid(&broker, "orders.dlq.replays", &[DESCRIBE, READ]);
    let quarantined = async {
        loop {
            let record = FutureRecord::<[u8], [u8]>::to("orders.dlq").payload(b"letter");
            producer.send(record, PATIENCE).await.unwrap();
            if status(&feed.next(1).await.unwrap()) == Status::Quarantined {
                break;
            }
        }
    };
    timeout(PATIENCE, quarantined).await.expect("what is not known is not pending");
}
