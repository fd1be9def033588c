//! A receiver of alerts.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, Uri};
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Time in which a condition must come true.
const DEADLINE: Duration = Duration::from_secs(60);

/// A server that keeps what is posted to it.
pub(crate) struct Receiver {
    /// `http://HOST:PORT`
    pub(crate) url: String,
    status: Arc<AtomicU16>,
    posted: mpsc::UnboundedReceiver<(String, Value)>,
    _task: JoinSet<()>,
}

#[derive(Clone)]
struct Inbox(mpsc::UnboundedSender<(String, Value)>, Arc<AtomicU16>);

async fn take(State(Inbox(posts, status)): State<Inbox>, uri: Uri, body: String) -> StatusCode {
    // Before the test knows of the message, and has others answered otherwise.
    let status = StatusCode::from_u16(status.load(Ordering::Relaxed)).unwrap();
    let _ = posts.send((uri.to_string(), serde_json::from_str(&body).unwrap()));
    status
}

impl Receiver {
    /// Starts one that answers with this status.
    pub(crate) async fn start(status: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (posts, posted) = mpsc::unbounded_channel();
        let status = Arc::new(AtomicU16::new(status));
        let router = Router::new().fallback(take).with_state(Inbox(posts, Arc::clone(&status)));
        let mut task = JoinSet::new();
        task.spawn(async { axum::serve(listener, router).await.unwrap() });
        Self { url, status, posted, _task: task }
    }

    /// Answers with this status from now on.
    pub(crate) fn answer(&self, status: u16) {
        self.status.store(status, Ordering::Relaxed);
    }

    /// The next message, with the path that it was posted to.
    pub(crate) async fn next(&mut self) -> (String, Value) {
        timeout(DEADLINE, self.posted.recv()).await.expect("something is posted").unwrap()
    }

    /// The kinds and groups of alerts, until there is one about this group.
    pub(crate) async fn told_until(&mut self, group: &str) -> Vec<(String, String)> {
        let mut told = Vec::new();
        while told.iter().all(|(_, it)| it != group) {
            told.extend(alerts(&self.next().await.1));
        }
        told
    }

    /// The messages that came already.
    pub(crate) fn rest(&mut self) -> Vec<Value> {
        std::iter::from_fn(|| self.posted.try_recv().ok()).map(|(_, body)| body).collect()
    }
}

/// The kinds and groups of the alerts in a message.
pub(crate) fn alerts(message: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let alerts = message["alerts"].as_array().unwrap().iter();
    alerts.map(|alert| (text(&alert["alert"]), text(&alert["group"]))).collect()
}
