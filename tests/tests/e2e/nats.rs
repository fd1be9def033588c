//! `kill -9` of a consumer on NATS, and of servers: every message succeeded or has exactly one letter.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::Path;
use std::time::Duration;

use dlq_nats::async_nats::{self, ConnectOptions, jetstream};
use dlq_nats::{DlqStream, NatsLetters};
use dlq_tests::nats::{CONSUMER, Kind, STREAM, kind};
use dlq_tests::{JOURNAL, Journal};
use dlq_tower::core::{Filter, Position, Reason};

use crate::random::{Random, number};
use crate::servers::Servers;
use crate::victim::{Deaths, Victim};

/// The servers, and the messages on them.
struct World {
    servers: Servers,
    client: async_nats::Client,
    messages: u64,
}

impl World {
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
        let mut unconfirmed = VecDeque::new();
        for n in 0..messages {
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

    fn victim(&self, folder: &Path) -> Victim {
        let mut args = vec![self.servers.replicas().to_string()];
        args.extend(self.servers.urls());
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        Victim::of(env!("CARGO_BIN_EXE_nats-victim"), folder, &args)
    }

    /// Lets it come to its end; it still kills itself now and then.
    fn finish(&self, folder: &Path, deaths: &mut Deaths) {
        for _ in 0..20 {
            let (_, status) = self.victim(folder).end();
            deaths.count(status);
            if status.success() {
                return;
            }
        }
        panic!("it does not come to its end");
    }

    /// Checks G1 and G2, and says what was found.
    async fn check(&self, folder: &Path) -> String {
        let (mut runs, mut succeeded) = (0, BTreeMap::<u64, u64>::new());
        for entry in Journal::read(&folder.join(JOURNAL)).unwrap() {
            match entry.what.as_str() {
                "run" => runs += 1,
                "ok" => *succeeded.entry(entry.message).or_default() += 1,
                _ => {}
            }
        }
        let letters = NatsLetters::new(&self.client, DlqStream::new());
        let letters = letters.read(&Filter::new()).await.unwrap();
        let mut dead = BTreeSet::new();
        for letter in letters.iter().map(|stored| &stored.letter) {
            let Position::Offset(sequence) = letter.origin.position() else { panic!("{letter:?}") };
            let n = sequence - 1;
            assert!(dead.insert(n), "message {n} has two letters");
            let reason = match kind(n) {
                Kind::Poison => Reason::Permanent,
                Kind::Kills => Reason::MaxCrashes,
                other => panic!("message {n}, {other:?}, has a letter: {letter:?}"),
            };
            assert_eq!((letter.reason, letter.consumer.as_str()), (reason, CONSUMER), "{n}");
            assert_eq!(letter.message.payload().unwrap(), n.to_string().as_bytes());
        }
        for n in 0..self.messages {
            let is_good = matches!(kind(n), Kind::Good | Kind::Flaky);
            assert_eq!(succeeded.contains_key(&n), is_good, "message {n}");
            assert_eq!(dead.contains(&n), !is_good, "message {n} is lost");
        }
        let twice = succeeded.values().filter(|times| **times > 1).count();
        let (messages, good, dead) = (self.messages, succeeded.len(), dead.len());
        format!(
            "{messages} messages, {runs} runs: {good} succeeded, {twice} of them more than once, {dead} have one letter, none lost"
        )
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g1_on_nats_a_killed_consumer_loses_nothing() {
    let servers = tokio::task::block_in_place(Servers::one);
    let Some(world) = World::new(servers).await else { return };
    let (mut random, mut deaths) = (Random::new(), Deaths::default());
    let folder = tempfile::tempdir().unwrap();
    let kills = number("DLQ_NATS_KILLS", 50);
    // Two lines for a message; so most of them die in the middle of the work.
    let most = 3 * world.messages / kills.max(1);
    tokio::task::block_in_place(|| {
        for _ in 0..kills {
            let victim = world.victim(folder.path());
            victim.progress(1 + random.below(most));
            deaths.count(victim.kill());
        }
        world.finish(folder.path(), &mut deaths);
    });
    assert!(deaths.killed * 2 > kills, "most of the kills missed: {deaths}");
    let found = world.check(folder.path()).await;
    println!("{deaths}; {found}");
}

/// Kills servers while a consumer works; says what was found.
async fn kill_servers(mut world: World) -> String {
    let folder = tempfile::tempdir().unwrap();
    let kills = number("DLQ_NATS_SERVER_KILLS", 5);
    let mut deaths = Deaths::default();
    let before = world.servers.starts();
    tokio::task::block_in_place(|| {
        let lines = usize::try_from(world.messages / kills.max(1)).unwrap();
        let mut victim = world.victim(folder.path());
        for turn in 0..kills {
            let is_over = victim.progress(lines) < lines;
            world.servers.restart(turn);
            if is_over {
                deaths.count(victim.end().1);
                victim = world.victim(folder.path());
            }
        }
        deaths.count(victim.end().1);
        world.finish(folder.path(), &mut deaths);
    });
    assert_eq!(u64::from(world.servers.starts() - before), kills, "they were really killed");
    let found = world.check(folder.path()).await;
    format!("{kills} kills, {deaths}; {found}")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g1_on_nats_a_killed_server_loses_nothing() {
    let servers = tokio::task::block_in_place(Servers::one);
    let Some(world) = World::new(servers).await else { return };
    println!("one server: {}", kill_servers(world).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g1_on_nats_a_killed_server_of_three_loses_nothing() {
    let servers = tokio::task::block_in_place(Servers::three);
    let Some(world) = World::new(servers).await else { return };
    println!("one server of three: {}", kill_servers(world).await);
}
