//! Three servers, of which the leader is killed.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_nats::jetstream::consumer::pull;
use async_nats::jetstream::{self, stream};
use async_nats::{Client, ConnectOptions};
use dlq_core::{
    Delivery, Disposition, ErrorClass, Filter, Settle as _, Source as _, StoreErrorKind,
};
use dlq_nats::admin::{ConsumerPlan, Deployment, Severity};
use dlq_nats::{DlqStream, NatsLetters, NatsSink, NatsTransport, RetryStream};
use dlq_services::{Cluster, NatsCluster, Service, or_skip};
use dlq_tower::consumer::Consumer;
use dlq_tower::handler::handler;
use tokio::time::{sleep, timeout};

use crate::fixture::{LEASE, STREAM, next, number, published, read};

const MESSAGES: u32 = 300;
const KILLS: u32 = 3;
const PATIENCE: Duration = Duration::from_secs(240);

#[derive(Debug, thiserror::Error)]
#[error("never")]
struct Never;

/// The index of the server that leads the consumer `billing`.
async fn leader(context: &jetstream::Context) -> usize {
    loop {
        let leader = async {
            let stream = context.get_stream(STREAM).await.ok()?;
            let info = stream.consumer_info("billing").await.ok()?;
            let name = info.cluster?.leader?;
            name.strip_prefix('n')?.parse::<usize>().ok()
        };
        match leader.await {
            Some(leader) => return leader - 1,
            None => sleep(Duration::from_millis(100)).await,
        }
    }
}

/// A request goes to the leader alone, and a frozen one says nothing; the connection, to another server, stays.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_nobody_heard_is_made_again() {
    let started = tokio::task::block_in_place(|| NatsCluster::builder().ours().start_cluster());
    let Ok(mut cluster) = or_skip(Service::Nats, started) else { return };
    let client = connect(&cluster).await;
    let context = jetstream::new(client.clone());
    context.create_stream(replicated()).await.unwrap();
    let consumer = NatsTransport::new(STREAM).name("billing").lease(LEASE * 2);
    drop(consumer.source(&client).await.unwrap());
    let leads = leader(&context).await;
    let other = cluster.nodes()[(leads + 1) % 3].url().to_owned();
    let options = ConnectOptions::new().ignore_discovered_servers();
    let elsewhere = options.connect(other).await.unwrap();
    let mut source = consumer.source(&elsewhere).await.unwrap();
    published(&context, "orders.created", "1").await;
    tokio::task::block_in_place(|| cluster.pause(leads)).unwrap();
    let heard = async {
        loop {
            // While there is no leader it may say so.
            if let Ok(next) = source.next().await {
                return next;
            }
        }
    };
    let heard = timeout(PATIENCE, heard).await.expect("it asks again");
    assert_eq!(number(&heard.unwrap().0), 1);
    let connects = elsewhere.statistics().connects.load(std::sync::atomic::Ordering::Relaxed);
    assert_eq!(connects, 1, "the connection stayed");
}

/// Without a leader nobody hears that a lease is to begin anew; it is said until there is one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_is_extended_across_a_time_without_a_leader() {
    let started = tokio::task::block_in_place(|| NatsCluster::builder().ours().start_cluster());
    let Ok(mut cluster) = or_skip(Service::Nats, started) else { return };
    let client = connect(&cluster).await;
    let context = jetstream::new(client.clone());
    context.create_stream(replicated()).await.unwrap();
    let consumer = NatsTransport::new(STREAM).name("billing").lease(PATIENCE);
    drop(consumer.source(&client).await.unwrap());
    let leads = leader(&context).await;
    let gone = [leads, (leads + 1) % 3];
    let stays = cluster.nodes()[(leads + 2) % 3].url().to_owned();
    let options = ConnectOptions::new().ignore_discovered_servers();
    let mut source = consumer.source(&options.connect(stays).await.unwrap()).await.unwrap();
    published(&context, "orders.created", "1").await;
    // The consumer may be without a leader for a moment, which is an error that passes.
    let (_, mut settle) = next(&mut source).await;
    settle.extend().await.expect("there is a leader");
    // One server of three leads nothing.
    tokio::task::block_in_place(|| gone.map(|node| cluster.kill(node).unwrap()));
    let restarted = tokio::task::spawn_blocking(move || {
        for node in gone {
            cluster.restart(node).unwrap();
        }
        cluster
    });
    let (extended, cluster) = tokio::join!(timeout(PATIENCE, settle.extend()), restarted);
    let _cluster = cluster.unwrap();
    extended.expect("there is a leader again").expect("it was said until somebody heard it");
    settle.settle(Disposition::Succeeded).await.unwrap();
}

/// A consumer that one server alone keeps, of a stream that three keep, is found.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_on_one_server_alone_is_found() {
    let started = tokio::task::block_in_place(|| NatsCluster::builder().ours().start_cluster());
    let Ok(cluster) = or_skip(Service::Nats, started) else { return };
    let client = connect(&cluster).await;
    let context = jetstream::new(client.clone());
    let stream = context.create_stream(replicated()).await.unwrap();
    let alone = |name: &str, replicas| pull::Config {
        durable_name: Some(name.to_owned()),
        num_replicas: replicas,
        ..pull::Config::default()
    };
    stream.create_consumer(alone("billing", 1)).await.unwrap();
    stream.create_consumer(alone("mail", 0)).await.unwrap();
    let mut deployment = Deployment::default();
    deployment.consumers.push(ConsumerPlan::new(STREAM, "billing"));
    deployment.consumers.push(ConsumerPlan::new(STREAM, "mail"));
    let findings = deployment.check(&client).await.unwrap();
    let found: Vec<_> = findings
        .iter()
        .filter(|found| found.setting == "num_replicas" && found.subject.starts_with("consumer"))
        .map(|found| (&*found.subject, found.severity, &*found.found))
        .collect();
    let billing = "consumer `billing` of stream `ORDERS`";
    assert_eq!(found, [(billing, Severity::Warning, "1")], "{findings:#?}");
}

pub(crate) async fn connect(cluster: &Cluster) -> Client {
    let options = ConnectOptions::new()
        .reconnect_delay_callback(|_| Duration::from_millis(100))
        .connection_timeout(Duration::from_secs(2));
    let urls: Vec<String> = cluster.nodes().iter().map(|node| node.url().to_owned()).collect();
    options.connect(urls).await.unwrap()
}

fn replicated() -> stream::Config {
    stream::Config {
        name: STREAM.to_owned(),
        subjects: vec!["orders.>".to_owned()],
        num_replicas: 3,
        ..stream::Config::default()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g1_leaders_change_and_nothing_is_lost() {
    let started = tokio::task::block_in_place(|| NatsCluster::builder().ours().start_cluster());
    let Ok(mut cluster) = or_skip(Service::Nats, started) else { return };
    let client = connect(&cluster).await;
    let context = jetstream::new(client.clone());
    context.create_stream(replicated()).await.unwrap();
    let dead = DlqStream::new().replicas(3);
    let consumer = NatsTransport::new(STREAM)
        .name("billing")
        .lease(LEASE * 2)
        .retry_stream(RetryStream::new().replicas(3));
    let sink = NatsSink::open(&client, dead.clone()).await.unwrap();

    let handled = Arc::new(Mutex::new(BTreeSet::new()));
    let told = Arc::clone(&handled);
    let stack = handler("billing", move |delivery: Delivery| {
        let number = number(&delivery);
        let good = !number.is_multiple_of(5);
        if good {
            told.lock().unwrap_or_else(PoisonError::into_inner).insert(number);
        }
        async move { if good { Ok(()) } else { Err(Never) } }
    })
    .classify(|_: &Never| ErrorClass::Permanent)
    .build()
    .unwrap();
    let running = Consumer::builder(consumer.source(&client).await.unwrap())
        .handler(stack)
        .retry_queue(consumer.retry_queue(&client).await.unwrap())
        .sink(sink)
        .build()
        .unwrap();
    let stop = running.handle();

    let publishing = async {
        for number in 1..=MESSAGES {
            // What was not confirmed is sent again; the server knows it by its id.
            let message = || {
                jetstream::message::PublishMessage::build()
                    .payload(number.to_string().into())
                    .message_id(number.to_string())
            };
            loop {
                let sent = context.send_publish("orders.created", message()).await;
                if let Ok(sent) = sent
                    && sent.await.is_ok()
                {
                    break;
                }
                sleep(Duration::from_millis(100)).await;
            }
            sleep(Duration::from_millis(30)).await;
        }
    };
    let killing = async {
        for _ in 0..KILLS {
            let leader = leader(&context).await;
            // On a thread of its own: everything else goes on meanwhile.
            let killed = tokio::task::spawn_blocking(move || {
                cluster.kill(leader).unwrap();
                cluster.await_formed().unwrap();
                cluster.restart(leader).unwrap();
                cluster
            });
            cluster = killed.await.unwrap();
        }
        let starts: u32 = cluster.nodes().iter().map(|node| node.starts()).sum();
        assert_eq!(starts, 3 + KILLS, "the leaders were really killed");
        cluster
    };
    let idle = async {
        let ((), cluster) = tokio::join!(publishing, killing);
        loop {
            let left = async {
                let stream = context.get_stream(STREAM).await.ok()?;
                let info = stream.consumer_info("billing").await.ok()?;
                Some(info.num_pending + info.num_ack_pending as u64)
            };
            if left.await == Some(0) {
                return cluster;
            }
            sleep(Duration::from_millis(100)).await;
        }
    };
    let watched = async {
        let done = timeout(PATIENCE, idle).await;
        stop.stop();
        done
    };
    let (_, done) = tokio::join!(running.run(std::future::pending()), watched);
    let _cluster = done.expect("everything is settled in the end");

    let (lost, saved): (BTreeSet<u32>, BTreeSet<u32>) =
        (1..=MESSAGES).partition(|number| number.is_multiple_of(5));
    assert_eq!(*handled.lock().unwrap(), saved, "the handled");
    let letters = NatsLetters::new(&client, dead);
    let read = async {
        loop {
            match read(&letters, &Filter::new()).await {
                Ok(read) => return read,
                // The last leader may have been killed a moment ago.
                Err(error) => assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}"),
            }
            sleep(Duration::from_millis(100)).await;
        }
    };
    let letters = timeout(PATIENCE, read).await.expect("they can be read in the end");
    let dead: Vec<u32> = letters
        .iter()
        .map(|stored| {
            let payload = stored.letter.message.payload().unwrap();
            std::str::from_utf8(payload).unwrap().parse().unwrap()
        })
        .collect();
    assert_eq!(dead.len(), lost.len(), "one letter per death (G2)");
    assert_eq!(dead.into_iter().collect::<BTreeSet<_>>(), lost, "the dead");
}
