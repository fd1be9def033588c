//! Messages and retry records on their way in: what is believed of their headers (G2), and what deliveries they become.

use std::sync::Arc;

use dlq_core::memory::MemoryBroker;
use dlq_core::protocol::{
    Incoming, RetryRecord, names, of_replay, on_death, on_delayed_retry, on_replay, split,
};
use dlq_core::{
    Addressee, BindingKey, DeadLetter, Death, DelayedRetry, DeliveredFrom, Delivery, Headers,
    LetterId, Message, Origin, Position, Recipients, Source as _, Timestamp,
};

use crate::{letter, replay};

const CONSUMER: &str = "payments.charge";
const ABSURD: u32 = Death::MAX_GENERATION;

fn incoming() -> Incoming {
    Incoming {
        id_header: Some("id".into()),
        event_header: Some("type".into()),
        ..Incoming::new(Addressee::new(CONSUMER.into()))
    }
}

/// A letter that was born in partition 3 and has died three times.
fn dead() -> DeadLetter {
    let at = Timestamp::from_millis(1_790_000_000_000);
    letter(Message::new("orders", "payload").with_key("k").with_published_at(at), "e", 2)
}

/// The place where a message is read, which is not where it was born.
fn stands() -> Origin {
    Origin::new("memory", "orders", Position::Offset(99)).with_partition(1)
}

fn read_by(incoming: &Incoming, message: Message) -> Delivery {
    incoming.message(message, stands(), split)
}

fn read(headers: Headers) -> Delivery {
    read_by(&incoming(), dead().message.with_headers(headers))
}

fn with(name: &'static str, value: impl Into<String>) -> Headers {
    let mut headers = on_replay(&dead(), &replay());
    headers.set(name, value.into());
    headers
}

fn without(name: &str) -> Headers {
    let mut headers = on_replay(&dead(), &replay());
    headers.remove(name);
    headers
}

/// True if it is the next delivery of the letter.
fn is_known(delivery: &Delivery) -> bool {
    let is_known = delivery.generation() > 0;
    if is_known {
        let letter = dead();
        assert_eq!(delivery.death(CONSUMER), letter.death().next());
        assert_eq!((delivery.origin(), delivery.message()), (&letter.origin, &letter.message));
    } else {
        let id = LetterId::of(&stands(), delivery.message().published_at(), CONSUMER);
        assert_eq!(delivery.death(CONSUMER), Death { letter: id, generation: 0 });
        assert_eq!((delivery.origin(), delivery.replays()), (&stands(), 0));
    }
    assert_eq!((delivery.delivered_from(), delivery.consumer()), (DeliveredFrom::Main, CONSUMER));
    is_known
}

#[test]
fn g2_an_identity_is_believed_where_everything_beside_it_fits() {
    let sent_back = read(on_replay(&dead(), &replay()));
    assert!(is_known(&sent_back));
    assert_eq!(sent_back.replays(), 1);
    assert!(is_known(&read(on_death(&dead()))), "handlers may publish a letter as it stands");
    assert!(is_known(&read(without(names::VERSION))));
    assert!(is_known(&read(without(names::REPLAY_COUNT))));
    for (headers, why) in [
        (with(names::ORIGINAL_TOPIC, "nosuch"), "another topic"),
        (with(names::ORIGINAL_TOPIC, ""), "no topic"),
        (without(names::ORIGINAL_TOPIC), "no topic at all"),
        (with(names::ORIGINAL_PARTITION, "4"), "another partition"),
        (without(names::ORIGINAL_PARTITION), "no partition"),
        (with(names::ORIGINAL_OFFSET, "8"), "another offset"),
        (without(names::ORIGINAL_OFFSET), "no offset"),
        (with(names::ORIGINAL_TIMESTAMP, "2026-09-21T00:00:00Z"), "another time"),
        (with(names::DLQ_ID, "0".repeat(32)), "another letter"),
        (with(names::DLQ_ID, "mine"), "no letter"),
        (without(names::DLQ_ID), "no letter at all"),
        (with(names::DLQ_BINDING, "0".repeat(32)), "another binding"),
        (without(names::DLQ_BINDING), "no binding"),
        (with(names::DLQ_CONSUMER, "somebody.else"), "another consumer"),
        (without(names::DLQ_CONSUMER), "no consumer"),
        (without(names::DLQ_GENERATION), "no generation"),
        (with(names::DLQ_GENERATION, "-1"), "no number"),
        (with(names::DLQ_GENERATION, ABSURD.to_string()), "an absurd generation"),
        (with(names::DLQ_GENERATION, u32::MAX.to_string()), "the highest generation"),
        (with(names::DLQ_GENERATION, "4294967296"), "a generation beyond numbers"),
    ] {
        assert!(!is_known(&read(headers)), "{why}");
    }
    let most = read(with(names::DLQ_GENERATION, (ABSURD - 1).to_string()));
    assert_eq!(most.generation(), ABSURD);
}

#[test]
fn g2_an_identity_copied_onto_another_message_is_not_believed() {
    let letter = dead();
    let headers = || on_replay(&letter, &replay());
    for (other, why) in [
        (letter.message.clone().with_payload(Some("other".into())), "another payload"),
        (letter.message.clone().with_payload(None), "no payload"),
        (letter.message.clone().with_key("l"), "another key"),
        (Message::new("orders", "payload"), "no key"),
    ] {
        let copied = read_by(&incoming(), other.clone().with_headers(headers()));
        assert!(!is_known(&copied), "{why}");
        assert_eq!(copied.message(), &other.with_headers(headers()), "{why}");
    }
    // Nor the same bytes at another broker.
    for elsewhere in
        [stands().with_cluster("b"), Origin::new("kafka", "orders", stands().position().clone())]
    {
        let message = letter.message.clone().with_headers(headers());
        assert_eq!(incoming().message(message, elsewhere, split).generation(), 0);
    }
}

#[test]
fn g2_a_secret_is_asked_for_where_there_is_one() {
    let key = BindingKey::new("a secret");
    let sent = |key| of_replay(&dead(), &replay()).bound_by(key, &dead()).onto(&Headers::new());
    let believes = |key: Option<&BindingKey>, headers: &Headers| {
        let incoming = Incoming { key: key.cloned(), ..incoming() };
        is_known(&read_by(&incoming, dead().message.with_headers(headers.clone())))
    };
    let bound = sent(Some(&key));
    assert!(believes(Some(&key), &bound));
    assert!(believes(None, &bound), "who has no secret goes by the other binding");
    assert!(!believes(Some(&BindingKey::new("another")), &bound));
    assert!(!believes(Some(&key), &sent(None)), "it is not bound by one");
    for (name, value) in [(names::DLQ_GENERATION, "9"), (names::ORIGINAL_TOPIC, "nosuch")] {
        let mut forged = bound.clone();
        forged.set(name, value);
        assert!(!believes(Some(&key), &forged), "{name}");
    }
}

/// A router with these handlers.
#[derive(Debug)]
struct Router(Vec<Arc<str>>);

impl Recipients for Router {
    fn names(&self) -> Vec<Arc<str>> {
        self.0.clone()
    }

    fn is_own(&self, name: &str, _: &Delivery) -> bool {
        self.0.iter().any(|known| **known == *name)
    }
}

#[test]
fn g2_a_letter_is_known_by_the_name_of_its_handler() {
    let known = |consumer: &str, handlers: &[&str]| {
        let mut letter = dead();
        letter.consumer = consumer.to_owned();
        letter.id = LetterId::of(&letter.origin, letter.message.published_at(), consumer);
        let mut incoming = incoming();
        if !handlers.is_empty() {
            let router = Router(handlers.iter().map(|name| Arc::from(*name)).collect());
            incoming.addressee = incoming.addressee.with_recipients(Arc::new(router));
        }
        let headers = on_replay(&letter, &replay());
        let delivery = read_by(&incoming, letter.message.clone().with_headers(headers));
        delivery.death(consumer) == letter.death().next()
    };
    for (consumer, handlers, is_known) in [
        (CONSUMER, &[][..], true),
        ("shop.created", &[], false),
        ("shop.created", &["shop"], false),
        ("shop.created", &["shop", "shop.created"], true),
        (CONSUMER, &["shop"], true),
        ("", &["shop"], false),
    ] {
        assert_eq!(known(consumer, handlers), is_known, "{consumer} for {handlers:?}");
    }
}

#[test]
fn names_are_those_of_the_producer() {
    let mut letter = dead();
    let plain = read_by(&incoming(), letter.message.clone());
    assert_eq!((plain.message().id(), plain.message().event()), (None, None));
    let named = letter.message.clone().with_header("id", "evt-1").with_header("type", "created");
    let plain = read_by(&incoming(), named.clone());
    assert_eq!(plain.message(), &named.clone().with_id("evt-1").with_event("created"));
    // A broker or another producer has written another id beside the replay.
    letter.message = named.with_id("evt-1").with_event("created");
    let mut headers = on_replay(&letter, &replay());
    headers.append("id", "of the replay");
    let split = |headers: &Headers| {
        let mut own = headers.clone();
        own.retain(|header| header.value.as_deref() != Some(b"of the replay"));
        split(&own)
    };
    let message = letter.message.clone().with_headers(headers);
    assert_eq!(incoming().message(message, stands(), split).message(), &letter.message);
}

#[tokio::test]
async fn g2_a_letter_that_was_sent_back_is_known_in_memory() {
    let broker = MemoryBroker::new().stream("orders");
    let mut source = broker.source("shop");
    let position = broker.publish(dead().message.with_id("evt-1").with_event("created"));
    let first = source.next().await.unwrap().unwrap().0;
    let mut letter = dead();
    letter.message = first.message().clone();
    letter.origin = Origin::new("memory", "orders", position);
    letter.id = first.death(CONSUMER).letter;
    let send = |letter: &DeadLetter| {
        broker.publish(letter.message.clone().with_headers(on_replay(letter, &replay())))
    };
    send(&letter);
    let unknown = source.next().await.unwrap().unwrap().0;
    assert_eq!(unknown.generation(), 0, "nobody here is called that");
    source.bind(Arc::new(Router(vec![CONSUMER.into()])));
    send(&letter);
    let known = source.next().await.unwrap().unwrap().0;
    assert_eq!(known.death(CONSUMER), letter.death().next());
    assert_eq!((known.origin(), known.message()), (first.origin(), first.message()));
    assert_eq!((known.replays(), known.consumer()), (1, "shop"));
    let headers = on_replay(&letter, &replay());
    broker.publish(Message::new("orders", "other").with_headers(headers));
    assert_eq!(source.next().await.unwrap().unwrap().0.generation(), 0, "it was copied");
}

fn put_off(delivery: Delivery) -> Headers {
    let (history, consumer) = (dead().history, "shop.created".into());
    on_delayed_retry(&DelayedRetry {
        delivery,
        consumer,
        due: Timestamp::EPOCH,
        history,
        attempts: 2,
    })
}

/// The retry record with these headers, as transports read it.
fn retried(headers: &Headers) -> Delivery {
    let (producers, decoded) = split(headers);
    let message = dead().message.with_headers(producers);
    let (origin, death) = (dead().origin, decoded.death().map(Death::next));
    let stage = "orders.retry.1h".into();
    incoming().record(RetryRecord { message, decoded, origin, death, stage }, stands)
}

#[test]
fn a_retry_record_goes_on_where_the_attempt_before_has_ended() {
    let letter = dead();
    let first =
        Delivery::new(letter.message.clone(), letter.origin.clone()).with_delayed_retries(3);
    let again = retried(&put_off(first.clone()));
    assert_eq!((again.message(), again.origin()), (first.message(), first.origin()));
    assert_eq!(
        (again.delivered_from(), again.previous()),
        (DeliveredFrom::Retry, "orders.retry.1h")
    );
    assert_eq!(
        (again.attempt(), again.delayed_retries(), again.history()),
        (3, 4, &letter.history)
    );
    assert_eq!(again.consumer(), "shop.created", "the handler that failed");
    assert_eq!(again.death("shop.created"), first.death("shop.created"));
    let sent_back = first.with_death(letter.death().next()).with_replays(2);
    let again = retried(&put_off(sent_back.clone()));
    assert_eq!((again.death("shop.created"), again.replays()), (letter.death().next(), 2));
    // Headers that are not there say what they say of a first record.
    let bare = retried(&Headers::new());
    assert_eq!((bare.attempt(), bare.delayed_retries(), bare.replays()), (1, 1, 0));
    assert_eq!((bare.consumer(), bare.generation()), (CONSUMER, 0));
}

#[test]
fn g2_an_absurd_retry_record_is_a_message_of_its_own() {
    let letter = dead();
    let at = |generation| {
        let death = Death { letter: letter.id, generation };
        let delivery = Delivery::new(letter.message.clone(), letter.origin.clone());
        retried(&put_off(delivery.with_death(death)))
    };
    for generation in [ABSURD + 1, u32::MAX] {
        let own = at(generation);
        assert_eq!((own.origin(), own.generation()), (&stands(), 0));
        assert_ne!(own.death("shop.created").letter, letter.id);
        assert_eq!((own.message(), own.attempt()), (&letter.message, 3));
    }
    let most = at(ABSURD);
    assert_eq!(most.death(CONSUMER), Death { letter: letter.id, generation: ABSURD });
    assert_eq!(most.origin(), &letter.origin);
}
