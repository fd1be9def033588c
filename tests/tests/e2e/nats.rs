//! `kill -9` of a consumer on NATS, and of servers: every message succeeded or has exactly one letter.

use std::collections::VecDeque;
use std::path::Path;
use std::time::Duration;

use dlq_nats::async_nats::jetstream::context::PublishErrorKind;
use dlq_nats::async_nats::{self, ConnectOptions, jetstream};
use dlq_nats::{DlqStream, NatsLetters, Reading};
use dlq_services::Service;
use dlq_tests::STREAM;
use dlq_tower::core::log::Range;
use dlq_tower::core::{DeadLetter, Filter, Position};
use tokio::time::{sleep, timeout};

use crate::random::number;
use crate::servers::Servers;
use crate::victim::Victim;
use crate::world::{World, kill_consumer, kill_servers};

/// How long servers may take until letters can be read.
const PATIENCE: Duration = Duration::from_secs(60);

/// The servers, and the messages on them.
struct Nats {
    servers: Servers,
    client: async_nats::Client,
    messages: u64,
}

impl Nats {
    async fn new(servers: Option<Servers>) -> Option<Self> {
        let servers = servers?;
        let options = ConnectOptions::new().reconnect_delay_callback(|_| Duration::from_millis(50));
        let client = options.connect(servers.urls()).await.unwrap();
        let context = jetstream::new(client.clone());
        let config = jetstream::stream::Config {
            name: STREAM.to_owned(),
            subjects: vec!["work.>".to_owned()],
            num_replicas: servers.replicas(),
            ..jetstream::stream::Config::default()
        };
        context.create_stream(config).await.unwrap();
        let messages = number("DLQ_NATS_MESSAGES", 10_000);
        // Of a replicated stream just created not every server has heard.
        while let Err(error) = context.publish("work.a", "0".into()).await.unwrap().await {
            assert_eq!(error.kind(), PublishErrorKind::StreamNotFound, "{error}");
            sleep(Duration::from_millis(50)).await;
        }
        let mut unconfirmed = VecDeque::new();
        for n in 1..messages {
            unconfirmed.push_back(context.publish("work.a", n.to_string().into()).await.unwrap());
            // The client lets no more than 5,000 be unconfirmed.
            if unconfirmed.len() == 1_000 {
                unconfirmed.pop_front().unwrap().await.unwrap();
            }
        }
        for sent in unconfirmed {
            sent.await.unwrap();
        }
        Some(Self { servers, client, messages })
    }
}

impl World for Nats {
    fn servers(&mut self) -> &mut Servers {
        &mut self.servers
    }

    fn messages(&self) -> u64 {
        self.messages
    }

    fn victim(&self, folder: &Path) -> Victim {
        let mut args = vec![self.servers.replicas().to_string()];
        args.extend(self.servers.urls());
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        Victim::of(env!("CARGO_BIN_EXE_nats-victim"), folder, &args)
    }

    async fn letters(&self) -> Vec<(u64, DeadLetter)> {
        let letters = NatsLetters::new(&self.client, DlqStream::new());
        let read = async {
            loop {
                let read = async {
                    let reading = Reading::of(letters.clone(), Range::all()).await?;
                    reading.rows(&Filter::new()).await
                };
                match read.await {
                    Ok(read) => return read,
                    // A server may have been started again a moment ago.
                    Err(error) => assert!(error.is_transient(), "{error}"),
                }
                sleep(Duration::from_millis(100)).await;
            }
        };
        let letters = timeout(PATIENCE, read).await.expect("they can be read in the end");
        let numbered = letters.into_iter().map(|row| {
            let &Position::Offset(sequence) = row.letter.origin.position() else {
                panic!("{row:?}")
            };
            (sequence - 1, row.letter)
        });
        numbered.collect()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g1_on_nats_a_killed_consumer_loses_nothing() {
    let servers = tokio::task::block_in_place(|| Servers::one(Service::Nats, &[]));
    let Some(world) = Nats::new(servers).await else { return };
    println!("{}", kill_consumer(world, number("DLQ_NATS_KILLS", 50)).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g1_on_nats_a_killed_server_loses_nothing() {
    let servers = tokio::task::block_in_place(|| Servers::one(Service::Nats, &[]));
    let Some(world) = Nats::new(servers).await else { return };
    println!("one server: {}", kill_servers(world, kills()).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g1_on_nats_a_killed_server_of_three_loses_nothing() {
    let servers = tokio::task::block_in_place(|| Servers::three(Service::Nats, &[]));
    let Some(world) = Nats::new(servers).await else { return };
    println!("one server of three: {}", kill_servers(world, kills()).await);
}

fn kills() -> u64 {
    number("DLQ_NATS_SERVER_KILLS", 5)
}
