//! What is read of the stream is what a store says of the same letters.

use std::future::ready;
use std::time::Duration;

use async_nats::Subscriber;
use dlq_core::store::{Group, Letters, Stats};
use dlq_core::{
    Cause, DeadLetter, ErrorClass, Filter, LetterId, LetterSummary, Order, PageRequest, Reason,
    Sink, Status, Timestamp,
};
use dlq_letters::memory::MemoryStore;
use dlq_nats::{DlqStream, NatsLetters, NatsSink};
use dlq_testkit::fixtures::{ManualClock, died_again, letter, varied};
use futures_util::{StreamExt, TryStreamExt};
use tokio::time::{sleep, timeout};

use super::{bury, dead};
use crate::fixture::{PATIENCE, Server, available};
use crate::warnings::Warnings;

const MANY: u64 = 40;

/// The same letters, in the same order, in the stream and in a store in memory.
async fn both(server: &Server) -> (NatsLetters, MemoryStore) {
    let sink = NatsSink::open(&server.client, DlqStream::new()).await.unwrap();
    let clock = ManualClock::new();
    let store = MemoryStore::new().with_clock(clock.shared());
    let mut letters: Vec<DeadLetter> = (0..MANY).map(varied).collect();
    letters.extend([died_again(&varied(3)), died_again(&varied(7)), varied(5)]);
    let mut other = varied(9);
    other.message = other.message.with_payload(Some("other".into()));
    letters.extend([other, died_again(&varied(3))]);
    for letter in letters {
        sink.put(vec![letter.clone()]).await.unwrap();
        store.put(vec![letter]).await.unwrap();
        clock.advance(Duration::from_secs(1));
    }
    (NatsLetters::new(&server.client, DlqStream::new()), store)
}

/// Without the times, which are those of two clocks.
fn timeless(mut summary: LetterSummary) -> LetterSummary {
    summary.state.created_at = Timestamp::EPOCH;
    summary.state.updated_at = Timestamp::EPOCH;
    summary
}

async fn listed(letters: &impl Letters, filter: &Filter, order: Order) -> Vec<LetterSummary> {
    let mut page = PageRequest::new().with_order(order).with_limit(7);
    let mut all = Vec::new();
    loop {
        let found = letters.list(filter.clone(), page).await.unwrap();
        assert!(found.letters.len() <= 7);
        all.extend(found.letters);
        if found.next.is_none() {
            return all;
        }
        page = page.with_after(found.next);
    }
}

fn groups_timeless(groups: Vec<Group>) -> Vec<Group> {
    let timeless = |group: Group| Group {
        first_seen: Timestamp::EPOCH,
        last_seen: Timestamp::EPOCH,
        sample: timeless(group.sample),
        ..group
    };
    groups.into_iter().map(timeless).collect()
}

fn stats_timeless(stats: Stats) -> Stats {
    assert_eq!(stats.oldest.is_some(), stats.total > 0);
    Stats { oldest: None, newest: None, oldest_unresolved: None, ..stats }
}

fn filters() -> Vec<Filter> {
    let some = varied(4);
    let (mut at_least, mut at_most) = (Filter::new(), Filter::new());
    at_least.min_attempts = Some(2);
    at_most.max_attempts = Some(1);
    vec![
        Filter::new(),
        Filter::new().with_id(some.id).with_id(varied(6).id),
        Filter::new().with_message_id("evt-3".to_owned()),
        Filter::new().with_subject("orders.*".parse().unwrap()),
        Filter::new().with_subject(some.message.subject().parse().unwrap()),
        Filter::new().with_consumer(some.consumer.clone()),
        Filter::new().with_status(Status::Pending),
        Filter::new().with_status(Status::Sent),
        Filter::new().with_reason(Reason::Permanent),
        Filter::new().with_cause(Cause::Timeout).with_cause(Cause::Panic),
        Filter::new().with_class(ErrorClass::Transient),
        Filter::new().with_fingerprint(some.fingerprint),
        Filter::new().with_error("TIME"),
        Filter::new().with_attribute("tenant", "t0"),
        Filter::new().with_class(ErrorClass::Permanent).with_error("e"),
        at_least,
        at_most,
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_answers_as_a_store_does() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let (letters, store) = both(&server).await;
    let mut matched = 0;
    for filter in filters() {
        let count = store.count(filter.clone()).await.unwrap();
        matched += u32::from(count > 0);
        assert_eq!(letters.count(filter.clone()).await.unwrap(), count, "{filter:?}");
        for order in [Order::NewestFirst, Order::OldestFirst] {
            let wanted = listed(&store, &filter, order).await;
            let found = listed(&letters, &filter, order).await;
            assert_eq!(wanted.len() as u64, count);
            let timeless =
                |all: Vec<LetterSummary>| all.into_iter().map(timeless).collect::<Vec<_>>();
            assert_eq!(timeless(found), timeless(wanted), "{filter:?}");
        }
        for limit in [2, 100] {
            let wanted = store.groups(filter.clone(), limit).await.unwrap();
            let found = letters.groups(filter.clone(), limit).await.unwrap();
            assert_eq!(groups_timeless(found), groups_timeless(wanted), "{filter:?}");
        }
        let wanted = store.stats(filter.clone()).await.unwrap();
        let found = letters.stats(filter.clone()).await.unwrap();
        assert_eq!(stats_timeless(found), stats_timeless(wanted), "{filter:?}");
    }
    assert!(matched > 10, "the filters mean something");
    // By time: the one that is listed n-th bounds the same letters.
    let theirs = listed(&store, &Filter::new(), Order::OldestFirst).await;
    let ours = listed(&letters, &Filter::new(), Order::OldestFirst).await;
    for n in [0, 1, 17, theirs.len() - 1] {
        let since = |all: &[LetterSummary]| Filter::new().with_since(all[n].state.created_at);
        let until = |all: &[LetterSummary]| Filter::new().with_until(all[n].state.created_at);
        assert_eq!(letters.count(since(&ours)).await.unwrap(), (ours.len() - n) as u64);
        assert_eq!(store.count(since(&theirs)).await.unwrap(), (theirs.len() - n) as u64);
        assert_eq!(letters.count(until(&ours)).await.unwrap(), n as u64);
    }
    for summary in &theirs {
        let wanted = store.get(summary.id).await.unwrap().unwrap();
        let found = letters.get(summary.id).await.unwrap().unwrap();
        assert_eq!(DeadLetter { state: wanted.state.clone(), ..found }, wanted, "byte for byte");
        let digits = summary.id.to_string();
        for digits in [&digits[..1], &digits[..4], &digits.to_uppercase(), &digits] {
            let wanted = store.with_prefix(digits.to_owned(), 5).await.unwrap();
            assert!(!wanted.is_empty());
            assert_eq!(letters.with_prefix(digits.to_owned(), 5).await.unwrap(), wanted);
        }
    }
    for odd in ["g", "0x", &"0".repeat(33)] {
        assert!(letters.with_prefix(odd.to_owned(), 5).await.unwrap().is_empty());
    }
    assert_eq!(letters.get(LetterId::from_bytes([7; 16])).await.unwrap(), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_comes_and_goes_is_seen() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let sink = NatsSink::open(&server.client, DlqStream::new()).await.unwrap();
    let letters = NatsLetters::new(&server.client, DlqStream::new());
    assert_eq!(letters.count(Filter::new()).await.unwrap(), 0);
    for n in 1..=3 {
        sink.put(vec![letter(n)]).await.unwrap();
        assert_eq!(letters.count(Filter::new()).await.unwrap(), n);
    }
    let stream = server.context.get_stream("DLQ").await.unwrap();
    stream.delete_message(2).await.unwrap();
    assert_eq!(letters.count(Filter::new()).await.unwrap(), 2);
    assert_eq!(letters.get(letter(2).id).await.unwrap(), None);
    // Another stream with as many letters under the same name.
    server.context.delete_stream("DLQ").await.unwrap();
    sink.put(vec![letter(8)]).await.unwrap();
    sink.put(vec![letter(9)]).await.unwrap();
    sink.put(vec![letter(10)]).await.unwrap();
    server.context.get_stream("DLQ").await.unwrap().delete_message(2).await.unwrap();
    assert!(letters.get(letter(8).id).await.unwrap().is_some());
    assert_eq!(letters.get(letter(1).id).await.unwrap(), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_no_letter_is_passed_over() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let sink = NatsSink::open(&server.client, DlqStream::new()).await.unwrap();
    sink.put(vec![letter(1)]).await.unwrap();
    let stored = server.stored("DLQ").await.remove(0);
    let mut headers = stored.headers.clone();
    headers.insert("Nats-Msg-Id", "another");
    let publish = |subject: &'static str, headers: async_nats::HeaderMap, payload: &'static str| {
        let context = server.context.clone();
        async move {
            context
                .publish_with_headers(subject, headers, payload.into())
                .await
                .unwrap()
                .await
                .unwrap()
        }
    };
    // Foreign, without its identity, with other bytes, with another identity, with parts that are no sequences.
    publish("dlq.foreign", async_nats::HeaderMap::new(), "{}").await;
    publish("dlq.orders.created", headers.clone(), "tampered").await;
    let mut renamed = headers.clone();
    renamed.insert("Nats-Msg-Id", "third");
    renamed.insert("dlq.id", letter(3).id.to_string().as_str());
    publish("dlq.orders.created", renamed, "tampered").await;
    let mut torn = headers.clone();
    torn.insert("Nats-Msg-Id", "fourth");
    torn.insert("dlq.nats.rest", "{\"half\":");
    publish("dlq.orders.created", torn, "x").await;
    sink.put(vec![letter(2)]).await.unwrap();
    assert_eq!(server.count("DLQ").await, 6);
    let warnings = Warnings::default();
    let hears = tracing::subscriber::set_default(warnings.clone());
    let letters = NatsLetters::new(&server.client, DlqStream::new());
    let found = listed(&letters, &Filter::new(), Order::OldestFirst).await;
    let ids: Vec<LetterId> = found.iter().map(|found| found.id).collect();
    assert_eq!(ids, [letter(1).id, letter(2).id]);
    drop(hears);
    let told = warnings.with("something else than a letter");
    assert!(told.len() == 1, "one line for all: {told:?}");
    assert!(told[0].contains("messages=4") && told[0].contains("first_sequence=2"), "{told:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn letters_are_seen_as_they_arrive() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let sink = NatsSink::open(&server.client, DlqStream::new()).await.unwrap();
    sink.put(vec![letter(1)]).await.unwrap();
    sink.put(vec![letter(2)]).await.unwrap();
    sink.put(vec![died_again(&letter(1))]).await.unwrap();
    let letters = NatsLetters::new(&server.client, DlqStream::new());
    let mut scan = letters.scan_from(2).await.unwrap();
    let mut seen = Vec::new();
    while let Some(stored) = scan.next().await.unwrap() {
        seen.push((stored.sequence, stored.letter.death()));
    }
    assert_eq!(seen, [(2, letter(2).death()), (3, died_again(&letter(1)).death())], "no collapse");
    let mut after = letters.scan_from(4).await.unwrap();
    assert!(after.next().await.unwrap().is_none(), "nothing was written from there on");
    let mut follow = letters.follow(3).await.unwrap();
    assert_eq!(follow.next().await.unwrap().unwrap().sequence, 3);
    // Waiting that is given up loses nothing.
    assert!(timeout(Duration::from_millis(20), follow.next()).await.is_err());
    sink.put(vec![letter(4)]).await.unwrap();
    let next = timeout(PATIENCE, follow.next()).await.unwrap().unwrap().unwrap();
    assert_eq!((next.sequence, next.letter.message), (4, letter(4).message));
    // Its consumer is forgotten by a server that is killed.
    server.kill_and_restart().await;
    sink.put(vec![letter(5)]).await.unwrap();
    let next = async {
        loop {
            if let Ok(next) = follow.next().await {
                return next.unwrap();
            }
        }
    };
    assert_eq!(timeout(PATIENCE, next).await.unwrap().sequence, 5);
}

/// The consumer of the stream of dead letters by which somebody reads it.
async fn reader(server: &Server) -> String {
    let stream = server.context.get_stream("DLQ").await.unwrap();
    let names: Vec<String> = stream.consumer_names().try_collect().await.unwrap();
    let [reader] = &names[..] else { panic!("one reads: {names:?}") };
    reader.clone()
}

/// Asks the server to hand what a reader would be handed next to somebody else, as it does to a connection that is lost.
async fn divert(server: &Server, reader: &str, asked: serde_json::Value) -> Subscriber {
    let inbox = server.client.new_inbox();
    let lost = server.client.subscribe(inbox.clone()).await.unwrap();
    let subject = format!("$JS.API.CONSUMER.MSG.NEXT.DLQ.{reader}");
    let asked = asked.to_string().into();
    server.client.publish_with_reply(subject, inbox, asked).await.unwrap();
    lost
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_handed_to_a_lost_connection_is_read_again() {
    const MANY: u32 = 3_300;
    /// So many the reader asks for before it has read two.
    const ASKED: usize = 2_000;
    if !available() {
        return;
    }
    let server = Server::start().await;
    let letters = bury(&server, DlqStream::new(), dead(0..MANY)).await;
    // What comes before others, and all that is left.
    for lost in [300, MANY as usize - ASKED] {
        let mut scan = letters.scan_from(1).await.unwrap();
        let mut read = vec![scan.next().await.unwrap().unwrap().sequence];
        let reader = reader(&server).await;
        let asked = serde_json::json!({ "batch": lost, "no_wait": true });
        let mut diverted = divert(&server, &reader, asked).await;
        for _ in 0..lost {
            let message = timeout(PATIENCE, diverted.next()).await.expect("it is handed out");
            assert!(message.unwrap().status.is_none());
        }
        while let Some(stored) = scan.next().await.unwrap() {
            read.push(stored.sequence);
        }
        assert_eq!(read, (1..=u64::from(MANY)).collect::<Vec<_>>());
        let stream = server.context.get_stream("DLQ").await.unwrap();
        let names: Vec<String> = stream.consumer_names().try_collect().await.unwrap();
        for name in names {
            stream.delete_consumer(&name).await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_follows_misses_nothing_of_one_request() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let letters = bury(&server, DlqStream::new(), dead(0..3)).await;
    let mut scan = letters.follow(1).await.unwrap();
    let reading = async {
        let mut read = Vec::new();
        while read.len() < 23 {
            read.push(scan.next().await.unwrap().expect("it never ends").sequence);
        }
        read
    };
    let losing = async {
        let stream = server.context.get_stream("DLQ").await.unwrap();
        let waiting = async |requests: usize| loop {
            let names: Vec<String> = stream.consumer_names().try_collect().await.unwrap();
            if let Some(reader) = names.first()
                && stream.consumer_info(reader).await.unwrap().num_waiting == requests
            {
                return reader.clone();
            }
            sleep(Duration::from_millis(10)).await;
        };
        // Both wait for what comes, and are served in turn.
        let reader = waiting(1).await;
        let asked = serde_json::json!({ "batch": 5, "expires": PATIENCE.as_nanos() });
        let diverted = divert(&server, &reader, asked).await;
        waiting(2).await;
        bury(&server, DlqStream::new(), dead(3..23)).await;
        let served = diverted.filter(|message| ready(message.status.is_none())).take(5);
        assert_eq!(timeout(PATIENCE, served.count()).await.expect("it was served"), 5);
    };
    let both = async { tokio::join!(reading, losing).0 };
    let read = timeout(PATIENCE, both).await.expect("all come");
    assert_eq!(read, (1..=23).collect::<Vec<_>>());
}
