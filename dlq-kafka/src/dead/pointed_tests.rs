use rdkafka::mocking::MockCluster;

use super::*;
use crate::Brokers;

fn fetching(letters: KafkaLetters) -> Fetching<u32> {
    let topic = "orders".into();
    Fetching { letters, topic, parts: Vec::new(), open: None, found: VecDeque::new() }
}

fn wanted() -> Wanted<u32> {
    Wanted::from([((0, 7), vec![1]), ((3, 7), vec![2])])
}

impl Unread {
    pub(crate) fn new(is_passing: bool) -> Self {
        let kind = match is_passing {
            true => StoreErrorKind::Unavailable,
            false => StoreErrorKind::InvalidConfig,
        };
        Self { kind, why: "why".to_owned(), is_held: false }
    }
}

#[tokio::test]
async fn all_that_is_away_is_known_after_one_look() {
    let cluster = MockCluster::new(1).unwrap();
    for topic in ["orders", "bills", "orders.dlq"] {
        cluster.create_topic(topic, 1, 1).unwrap();
    }
    for topic in ["orders", "bills"] {
        cluster.partition_leader(topic, 0, None).unwrap();
    }
    let letters = KafkaLetters::new(&Brokers::at(cluster.bootstrap_servers()), "orders.dlq");
    let mut pointing: Vec<_> = (0..2).map(dlq_testkit::fixtures::letter).collect();
    for (letter, topic) in pointing.iter_mut().zip(["orders", "bills"]) {
        letter.attributes.insert(super::super::POINTER.to_owned(), format!("{topic}/0/0"));
    }
    let mut heard = Vec::new();
    let waits = |(topic, _): (&str, u32), why: Option<&Unread>| {
        heard.push((topic.to_owned(), why.is_some_and(Unread::is_passing)));
        true
    };
    let error = letters.complete(&mut pointing, waits, |_| false).await.unwrap_err();
    assert!(error.is_transient(), "{error}");
    assert_eq!(heard, [("bills".to_owned(), true), ("orders".to_owned(), true)]);
}

#[tokio::test]
async fn a_partition_of_which_something_is_away_is_away_whatever_else_comes_of_it() {
    let mut letters: Vec<_> = (0..5).map(dlq_testkit::fixtures::letter).collect();
    let mut missing: BTreeMap<_, _> = (0..5).map(|n| (n, "gone".to_owned())).collect();
    let record = |partition, offset| Record {
        topic: "orders".into(),
        partition,
        offset,
        timestamp: None,
        key: None,
        value: Some("found".into()),
        headers: dlq_core::Headers::new(),
        unreadable_headers: 0,
    };
    let found: [Result<Fetched<(usize, u32)>, StoreError>; 4] = [
        Ok(((0, 3), Ok(record(3, 10)))),
        Ok(((1, 3), Err(Unread::new(true)))),
        Ok(((2, 3), Ok(record(3, 700)))),
        Ok(((3, 4), Err(Unread::new(false)))),
    ];
    let Unfilled { away, .. } =
        filled(stream::iter(found), &mut letters, &mut missing).await.unwrap();
    assert_eq!(away.keys().collect::<Vec<_>>(), [&3]);
    assert_eq!(missing.keys().collect::<Vec<_>>(), [&1, &3, &4]);
    for (index, letter) in letters.iter().enumerate() {
        let is_found = letter.message.payload().is_some_and(|payload| payload == "found");
        assert_eq!(is_found, [0, 2].contains(&index), "{index}");
    }
}

#[tokio::test]
async fn what_has_gone_is_told_as_an_answer_of_its_partition() {
    let cluster = MockCluster::new(1).unwrap();
    for topic in ["orders", "orders.dlq"] {
        cluster.create_topic(topic, 1, 1).unwrap();
    }
    let letters = KafkaLetters::new(&Brokers::at(cluster.bootstrap_servers()), "orders.dlq");
    let mut pointing = [0, 1].map(dlq_testkit::fixtures::letter);
    for (n, letter) in pointing.iter_mut().enumerate() {
        let to = format!("orders/{}/{n}", n + 1);
        letter.attributes.insert(super::super::POINTER.to_owned(), to);
    }
    let mut heard = Vec::new();
    let waits = |(topic, partition): (&str, u32), why: Option<&Unread>| {
        heard.push((topic.to_owned(), partition, why.is_some()));
        false
    };
    let completed = letters.complete(&mut pointing, waits, |_| false).await.unwrap();
    assert_eq!(completed.missing.len(), 2);
    assert_eq!(heard, [("orders".to_owned(), 1, false), ("orders".to_owned(), 2, false)]);
}

#[tokio::test]
async fn a_cluster_answers_though_a_part_of_the_dead_letter_topic_is_away_too() {
    let cluster = MockCluster::new(1).unwrap();
    for topic in ["orders", "orders.dlq"] {
        cluster.create_topic(topic, 4, 1).unwrap();
    }
    cluster.partition_leader("orders.dlq", 1, None).unwrap();
    let letters = KafkaLetters::new(&Brokers::at(cluster.bootstrap_servers()), "orders.dlq");
    let mut fetching = fetching(letters);
    let error = SetupError::Unavailable("nothing came".to_owned(), None);
    fetching.failed(wanted(), error).await.unwrap();
    assert_eq!(fetching.found.len(), 2);
}

#[tokio::test]
async fn a_login_that_is_refused_is_no_matter_of_a_topic() {
    let mut fetching = fetching(KafkaLetters::new(&Brokers::at("127.0.0.1:1"), "orders.dlq"));
    let error = SetupError::Config("the password is wrong".to_owned());
    let error = fetching.failed(wanted(), error).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::InvalidConfig);
    assert!(error.to_string().contains("the password is wrong"), "{error}");
    assert!(fetching.found.is_empty());
    let error = SetupError::Forbidden("allow `Read`".to_owned());
    fetching.failed(wanted(), error).await.unwrap();
    assert_eq!(fetching.found.len(), 2);
}

#[tokio::test]
async fn a_cluster_that_lets_nobody_in_any_more_is_away_whatever_connections_stand() {
    let cluster = MockCluster::new(1).unwrap();
    for topic in ["orders", "orders.dlq"] {
        cluster.create_topic(topic, 4, 1).unwrap();
    }
    let away = || SetupError::Unavailable("nothing came".to_owned(), None);
    let brokers = Brokers::at(cluster.bootstrap_servers());
    let mut letters = KafkaLetters::new(&brokers, "orders.dlq");
    let mut here = fetching(letters.clone());
    here.failed(wanted(), away()).await.unwrap();
    assert_eq!((here.parts.len(), here.found.len()), (0, 2), "one broker has both");

    // Its client goes on by the connection that it has; others find nobody.
    letters.lookup.partitions(&"orders.dlq".into()).await.unwrap();
    letters.lookup.brokers = Brokers::at("127.0.0.1:1");
    letters.lookup.partitions(&"orders.dlq".into()).await.unwrap();
    let mut fetching = fetching(letters);
    let error = fetching.failed(wanted(), away()).await.unwrap_err();
    assert!(error.is_transient(), "{error}");
    assert!(fetching.found.is_empty());
}
