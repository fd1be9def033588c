//! A consumer is on any server that keeps its stream, which may be behind the leader.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_nats::jetstream::{self, Context};
use async_nats::{Client, Message};
use dlq_core::log::{Entries as _, Log as _};
use dlq_core::{Filter, StoreErrorKind};
use dlq_nats::{DlqStream, NatsLetters};
use futures_util::StreamExt as _;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::{bury, dead};
use crate::fixture::{PATIENCE, Server, available, read};

/// Stands before a server. So many answers are those of one that is behind: its consumers have nothing more.
struct Behind {
    answers: Arc<AtomicUsize>,
    context: Context,
    _task: JoinSet<()>,
}

impl Behind {
    async fn of(server: &Server) -> Self {
        let answers = Arc::new(AtomicUsize::new(0));
        let mut asked = server.client.subscribe("behind.API.>").await.unwrap();
        server.client.flush().await.unwrap();
        let mut task = JoinSet::new();
        let (client, left) = (server.client.clone(), Arc::clone(&answers));
        task.spawn(async move {
            let mut all = JoinSet::new();
            while let Some(message) = asked.next().await {
                all.spawn(forward(client.clone(), message, Arc::clone(&left)));
            }
        });
        let context = jetstream::with_prefix(server.client.clone(), "behind.API");
        Self { answers, context, _task: task }
    }
}

async fn forward(client: Client, asked: Message, left: Arc<AtomicUsize>) {
    let verb = asked.subject.strip_prefix("behind.API.").unwrap();
    let (subject, reply) = (format!("$JS.API.{verb}"), asked.reply.unwrap());
    if verb.starts_with("CONSUMER.MSG.NEXT.") {
        while left.load(Ordering::Relaxed) > 0 {
            sleep(Duration::from_millis(10)).await;
        }
    }
    if verb.starts_with("CONSUMER.CREATE.") || verb.starts_with("CONSUMER.INFO.") {
        let answer = client.request(subject, asked.payload).await.unwrap();
        let mut answer: serde_json::Value = serde_json::from_slice(&answer.payload).unwrap();
        let is_behind = |left: usize| left.checked_sub(1);
        if left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, is_behind).is_ok() {
            answer["num_pending"] = 0.into();
        }
        client.publish(reply, answer.to_string().into()).await.unwrap();
    } else {
        client.publish_with_reply(subject, reply, asked.payload).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_server_that_is_behind_does_not_have_is_read_when_it_has_it() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    bury(&server, DlqStream::new(), dead(0..7)).await;
    let behind = Behind::of(&server).await;
    let letters = NatsLetters::new(&behind.context, DlqStream::new());
    behind.answers.store(3, Ordering::Relaxed);
    let read = timeout(PATIENCE, read(&letters, &Filter::new())).await.expect("it ends").unwrap();
    assert_eq!((read.len(), behind.answers.load(Ordering::Relaxed)), (7, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_stays_behind_is_an_error_and_not_an_empty_list() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    bury(&server, DlqStream::new(), dead(0..7)).await;
    let behind = Behind::of(&server).await;
    let letters = NatsLetters::new(&behind.context, DlqStream::new());
    behind.answers.store(usize::MAX, Ordering::Relaxed);
    let read = timeout(PATIENCE, read(&letters, &Filter::new())).await.expect("it gives up");
    let error = read.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable);
    let text = error.to_string();
    assert!(text.contains("`DLQ` up to sequence 0 only, and its leader has 7"), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_feed_does_not_end_where_a_server_that_is_behind_does() {
    if !available() {
        return;
    }
    let server = Server::start().await;
    bury(&server, DlqStream::new(), dead(0..7)).await;
    let behind = Behind::of(&server).await;
    let letters = NatsLetters::new(&behind.context, DlqStream::new()).until_end();
    let mut feed = letters.follow("shop".to_owned(), PATIENCE).await.unwrap();
    behind.answers.store(2, Ordering::Relaxed);
    let mut read = 0;
    loop {
        let fed = timeout(PATIENCE, feed.next(10)).await.expect("it goes on or ends").unwrap();
        if fed.is_empty() {
            break;
        }
        read += fed.len();
        feed.confirm().await.unwrap();
    }
    assert_eq!((read, behind.answers.load(Ordering::Relaxed)), (7, 0));
}
