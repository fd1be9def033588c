//! Routers beside three servers.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_nats::jetstream::consumer::{PullConsumer, pull};
use async_nats::jetstream::{self, AckKind, Context, stream};
use async_nats::{Client, ConnectOptions};
use dlq_core::{DeadLetter, Filter, Position};
use dlq_nats::router::EventRouterBuilder;
use dlq_nats::{AdvisoryStream, DlqStream, EventRouter, NatsLetters};
use dlq_services::{Cluster, NatsCluster, Service, or_skip};
use futures_util::StreamExt as _;
use tokio::time::{sleep, timeout};

use super::{Routing, SECOND};
use crate::fixture::{STREAM, published, read};

const PATIENCE: Duration = Duration::from_secs(240);
const ADVISORIES: &str = "DLQ_ADVISORY";

/// A connection to that server alone.
async fn at(cluster: &Cluster, node: usize) -> Client {
    let options =
        ConnectOptions::new().ignore_discovered_servers().reconnect_delay_callback(|_| SECOND / 10);
    options.connect(cluster.nodes()[node].url()).await.unwrap()
}

fn router(client: Client) -> EventRouterBuilder {
    EventRouter::builder(client)
        .letters(DlqStream::new().replicas(3))
        .advisories(AdvisoryStream::new().replicas(3))
        .sweep_every(SECOND / 4)
        .lease(SECOND * 5)
}

/// The server that leads a stream.
async fn leader(context: &Context, stream: &str) -> usize {
    let leader = async {
        loop {
            let leads = async {
                let name = context.get_stream(stream).await.ok()?.cached_info().cluster.clone();
                name?.leader?.strip_prefix('n')?.parse::<usize>().ok()
            };
            match leads.await {
                Some(leader) => return leader - 1,
                None => sleep(SECOND / 10).await,
            }
        }
    };
    timeout(PATIENCE, leader).await.expect("it has a leader")
}

/// Letters by the sequences of their messages, once there are so many messages with one.
async fn letters(client: &Client, messages: usize) -> BTreeMap<u64, Vec<DeadLetter>> {
    let letters = NatsLetters::new(client, DlqStream::new().replicas(3));
    let read = async {
        loop {
            let mut found = BTreeMap::<u64, Vec<DeadLetter>>::new();
            // A leader may have been killed a moment ago.
            for stored in read(&letters, &Filter::new()).await.unwrap_or_default() {
                let &Position::Offset(sequence) = stored.letter.origin.position() else { panic!() };
                found.entry(sequence).or_default().push(stored.letter);
            }
            if found.len() >= messages {
                return found;
            }
            sleep(SECOND / 10).await;
        }
    };
    timeout(PATIENCE, read).await.expect("every message has a letter")
}

/// A consumer with all of its messages in flight.
async fn in_flight(
    context: &Context,
    config: stream::Config,
    messages: usize,
) -> (PullConsumer, Vec<jetstream::Message>) {
    let subject = config.subjects[0].replace('>', "a");
    let stream = context.create_stream(config).await.unwrap();
    let config = pull::Config {
        durable_name: Some("theirs".to_owned()),
        max_deliver: 1,
        ack_wait: PATIENCE,
        ..pull::Config::default()
    };
    let consumer: PullConsumer = stream.create_consumer(config).await.unwrap();
    for number in 1..=messages {
        published(context, &subject, &number.to_string()).await;
    }
    let fetch = async {
        let mut held = Vec::new();
        while held.len() < messages {
            let batch = consumer.batch().max_messages(messages - held.len()).expires(PATIENCE);
            // A consumer that was made a moment ago may have no leader yet.
            let Ok(mut batch) = batch.messages().await else { continue };
            while let Some(Ok(message)) = batch.next().await {
                held.push(message);
            }
            sleep(SECOND / 10).await;
        }
        held
    };
    let held = timeout(PATIENCE, fetch).await.expect("all are handed out");
    (consumer, held)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g1_what_is_said_while_nobody_keeps_advisories_is_heard_at_another_server() {
    const MESSAGES: usize = 50;
    let started = tokio::task::block_in_place(|| NatsCluster::builder().ours().start_cluster());
    let Ok(mut cluster) = or_skip(Service::Nats, started) else { return };
    drop(router(at(&cluster, 0).await).open().await.unwrap());
    let leads = leader(&jetstream::new(at(&cluster, 0).await), ADVISORIES).await;
    let (stays, other) = ((leads + 1) % 3, (leads + 2) % 3);
    let elsewhere = at(&cluster, stays).await;
    let context = jetstream::new(elsewhere.clone());
    // On one server alone, which lives.
    let config = stream::Config {
        name: STREAM.to_owned(),
        subjects: vec!["orders.>".to_owned()],
        ..stream::Config::default()
    };
    context.create_stream(config.clone()).await.unwrap();
    while leader(&context, STREAM).await == leads {
        context.delete_stream(STREAM).await.unwrap();
        context.create_stream(config.clone()).await.unwrap();
    }
    let (consumer, held) = in_flight(&context, config, MESSAGES + 1).await;
    // The router is connected to the server that dies, and comes back late.
    let nodes = [leads, stays].map(|node| cluster.nodes()[node].url().to_owned());
    let options = ConnectOptions::new().retain_servers_order().ignore_discovered_servers();
    let options = options.reconnect_delay_callback(|_| SECOND * 3);
    let main = options.connect(nodes.to_vec()).await.unwrap();
    let ear = at(&cluster, other).await;
    let routing = Routing::with(router(main).also_heard_by(ear.clone())).await;
    let give_up = async |messages: &[jetstream::Message]| {
        for message in messages {
            message.ack_with(AckKind::Nak(None)).await.unwrap();
        }
        elsewhere.flush().await.unwrap();
        // A pull, at which a server notices.
        let mut none = consumer.fetch().max_messages(1).messages().await.unwrap();
        assert!(none.next().await.is_none());
    };
    // The other ear may listen a moment later, and what was said before that it has not heard.
    let mut said = 0;
    while ear.statistics().in_messages.load(Ordering::Relaxed) == 0 {
        assert!(said < MESSAGES, "the other ear does not listen");
        give_up(&held[said..=said]).await;
        said += 1;
        sleep(SECOND).await;
    }
    tokio::task::block_in_place(|| cluster.kill(leads)).unwrap();
    give_up(&held[said..]).await;
    let letters = letters(&elsewhere, MESSAGES + 1).await;
    assert!(letters.values().all(|of_one| of_one.len() == 1), "{letters:?}");
    println!("{}", routing.stop().await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g2_what_is_terminated_in_a_replicated_work_queue_has_one_letter() {
    const MESSAGES: usize = 40;
    let started = tokio::task::block_in_place(|| NatsCluster::builder().ours().start_cluster());
    let Ok(cluster) = or_skip(Service::Nats, started) else { return };
    let client = at(&cluster, 0).await;
    let context = jetstream::new(client.clone());
    let config = stream::Config {
        name: "JOBS".to_owned(),
        subjects: vec!["jobs.>".to_owned()],
        retention: stream::RetentionPolicy::WorkQueue,
        num_replicas: 3,
        ..stream::Config::default()
    };
    let (_, held) = in_flight(&context, config, MESSAGES).await;
    let one = Routing::with(router(at(&cluster, 1).await)).await;
    let two = Routing::with(router(at(&cluster, 2).await)).await;
    for message in held {
        message.ack_with(AckKind::Term).await.unwrap();
    }
    client.flush().await.unwrap();
    let kept: stream::Stream = context.get_stream(ADVISORIES).await.unwrap();
    let acknowledged = async || {
        let durable = kept.consumer_info("dlq-router").await;
        durable.map_or(0, |durable| durable.ack_floor.stream_sequence)
    };
    let settled = async {
        while acknowledged().await < MESSAGES as u64 {
            sleep(SECOND / 10).await;
        }
    };
    timeout(PATIENCE, settled).await.expect("the advisories are acknowledged");
    let letters = letters(&client, MESSAGES).await;
    let (one, two) = (one.stop().await, two.stop().await);
    for (sequence, letters) in letters {
        assert_eq!(letters.len(), 1, "message {sequence}: {letters:?} ({one}; {two})");
    }
    println!("{one}; {two}");
}
