//! A narrow way to the server: what takes long to send is waited for, as long as something arrives.

use std::future::pending;
use std::io;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use async_nats::Client;
use async_nats::jetstream;
use async_nats::jetstream::context::traits::TimeoutProvider as _;
use dlq_core::{DeadLetter, Sink as _};
use dlq_nats::{DlqStream, NatsLetters, NatsSink};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::fixture::{STREAM, Server, available};
use crate::letters::{dead, to_origin};

/// What comes through to the server in a second.
const RATE: usize = 2 * 1024 * 1024;
/// What comes back, where that is narrow too.
const BACK: usize = 16 * RATE;
const WIDE: usize = usize::MAX;
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
    async fn before(server: &Server, there: usize, back: usize) -> Self {
        let target = server.running().url().trim_start_matches("nats://").to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("nats://{}", listener.local_addr().unwrap());
        let accepting = async move {
            let mut ways = JoinSet::new();
            loop {
                let (near, _) = listener.accept().await?;
                let far = TcpStream::connect(&target).await?;
                ways.spawn(carry(near, far, there, back));
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

async fn carry(near: TcpStream, far: TcpStream, there: usize, back: usize) -> io::Result<()> {
    let ((from, to_near), (answers, to)) = (near.into_split(), far.into_split());
    tokio::select! {
        done = pass(from, to, there) => done,
        done = pass(answers, to_near, back) => done,
    }
}

async fn pass(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, rate: usize) -> io::Result<()> {
    let mut piece = vec![0; PIECE];
    loop {
        let length = from.read(&mut piece).await?;
        if length == 0 {
            return Ok(());
        }
        to.write_all(&piece[..length]).await?;
        if rate < WIDE {
            sleep(Duration::from_secs_f64(length as f64 / rate as f64)).await;
        }
    }
}

fn large(numbers: Range<u32>, size: usize) -> Vec<DeadLetter> {
    let mut large = dead(numbers);
    for letter in &mut large {
        letter.message = letter.message.clone().with_payload(Some(vec![b'x'; size].into()));
    }
    large
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn letters_that_take_long_to_write_are_confirmed() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    let way = Narrow::before(&server, RATE, WIDE).await;
    let sink = NatsSink::open(&way.client().await, DlqStream::new()).await.unwrap();
    let begun = Instant::now();
    let receipts = sink.put(large(0..LETTERS, SIZE)).await.expect("every letter is confirmed");
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
    sink.put(large(0..LETTERS, SIZE)).await.unwrap();
    let way = Narrow::before(&server, RATE, WIDE).await;
    let letters = NatsLetters::new(&way.client().await, DlqStream::new());
    let report = to_origin(&letters, 1).run(pending(), |_| {}).await.unwrap();
    assert_eq!((report.sent, report.is_complete()), (u64::from(LETTERS), true), "{report}");
    assert_eq!(server.count(STREAM).await, u64::from(LETTERS));
}

/// The server would give up a client for which all of them wait, and its confirmations wait behind them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn letters_that_take_long_to_read_are_sent_back() {
    const MANY: u32 = 1_024;
    if !available() {
        return;
    }
    let server = Server::start().await;
    let sink = NatsSink::open(&server.client, DlqStream::new()).await.unwrap();
    for first in (0..MANY).step_by(64) {
        sink.put(large(first..first + 64, 112 * 1024)).await.unwrap();
    }
    let way = Narrow::before(&server, WIDE, BACK).await;
    let client = async_nats::connect(&way.url).await.unwrap();
    let letters = NatsLetters::new(&client, DlqStream::new());
    let report = to_origin(&letters, 1).run(pending(), |_| {}).await.unwrap();
    let connected = client.statistics().connects.load(Ordering::Relaxed);
    assert_eq!((report.sent, connected), (u64::from(MANY), 1), "{report}");
}
