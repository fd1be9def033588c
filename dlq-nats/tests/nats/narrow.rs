//! A narrow way to the server: what takes long to send is waited for, as long as something arrives.

use std::future::pending;
use std::io;
use std::time::{Duration, Instant};

use async_nats::Client;
use async_nats::jetstream;
use async_nats::jetstream::context::traits::TimeoutProvider as _;
use dlq_core::{DeadLetter, Sink as _};
use dlq_nats::{DlqStream, NatsLetters, NatsSink};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::fixture::{STREAM, Server, available};
use crate::letters::{dead, to_origin};

/// What comes through in a second.
const RATE: usize = 2 * 1024 * 1024;
const PIECE: usize = 64 * 1024;
/// Letters that need ten seconds.
const LETTERS: u32 = 40;
const SIZE: usize = 512 * 1024;

/// Stands before a server.
struct Narrow {
    url: String,
    _ways: JoinSet<io::Result<()>>,
}

impl Narrow {
    async fn before(server: &Server) -> Self {
        let target = server.running().url().trim_start_matches("nats://").to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("nats://{}", listener.local_addr().unwrap());
        let accepting = async move {
            let mut ways = JoinSet::new();
            loop {
                let (near, _) = listener.accept().await?;
                let far = TcpStream::connect(&target).await?;
                ways.spawn(carry(near, far));
            }
        };
        Self { url, _ways: JoinSet::from_iter([accepting]) }
    }

    /// A client behind it, for which what is to come takes longer than it waits for one answer.
    async fn client(&self) -> Client {
        let client = async_nats::connect(&self.url).await.unwrap();
        let needs = Duration::from_secs((LETTERS as usize * SIZE / RATE) as u64);
        assert!(jetstream::new(client.clone()).timeout() < needs, "this would prove nothing");
        client
    }
}

async fn carry(near: TcpStream, far: TcpStream) -> io::Result<()> {
    let ((mut from, mut back), (mut answers, mut to)) = (near.into_split(), far.into_split());
    let there = async {
        let mut piece = vec![0; PIECE];
        loop {
            let length = from.read(&mut piece).await?;
            if length == 0 {
                return Ok(());
            }
            to.write_all(&piece[..length]).await?;
            sleep(Duration::from_secs_f64(length as f64 / RATE as f64)).await;
        }
    };
    tokio::select! {
        done = there => done,
        done = tokio::io::copy(&mut answers, &mut back) => done.map(drop),
    }
}

fn large() -> Vec<DeadLetter> {
    let mut large = dead(0..LETTERS);
    for letter in &mut large {
        letter.message = letter.message.clone().with_payload(Some(vec![b'x'; SIZE].into()));
    }
    large
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn letters_that_take_long_to_write_are_confirmed() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let way = Narrow::before(&server).await;
    let sink = NatsSink::open(&way.client().await, DlqStream::new()).await.unwrap();
    let begun = Instant::now();
    let receipts = sink.put(large()).await.expect("every letter is confirmed");
    assert_eq!(receipts.len(), LETTERS as usize);
    println!("{LETTERS} letters in {:?}", begun.elapsed());
    assert_eq!(server.count("DLQ").await, u64::from(LETTERS));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn letters_that_take_long_to_send_back_are_confirmed() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let sink = NatsSink::open(&server.client, DlqStream::new()).await.unwrap();
    sink.put(large()).await.unwrap();
    let way = Narrow::before(&server).await;
    let letters = NatsLetters::new(&way.client().await, DlqStream::new());
    let report = to_origin(&letters, 1).run(pending(), |_| {}).await.unwrap();
    assert_eq!((report.sent, report.is_complete()), (u64::from(LETTERS), true), "{report}");
    assert_eq!(server.count(STREAM).await, u64::from(LETTERS));
}
