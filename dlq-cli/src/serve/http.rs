//! As much of HTTP as answering needs: GET and HEAD of three paths, one request a connection, everything bounded.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::look::Page;
use dlq_core::store::HealthState;

/// Maximum number of requests that are answered at once; further ones wait to be accepted.
const MOST: usize = 128;
/// The longest head of a request, in bytes.
const HEAD: usize = 8 * 1024;
/// Time limit for a request to arrive.
const ARRIVAL: Duration = Duration::from_secs(5);
/// Time limit for an answer to leave, the wait for the first look included.
const DEPARTURE: Duration = Duration::from_secs(20);
/// Bytes of a request's rest that are read and dropped, and the time limit of that, so that the answer is not lost with
/// it.
const REST: (u64, Duration) = (64 * 1024, Duration::from_secs(1));
/// The pause after a connection could not be accepted, as when files have run out.
const PAUSE: Duration = Duration::from_millis(100);

pub(super) type Pages = watch::Receiver<Option<Arc<Page>>>;

const TEXT: &str = "text/plain; charset=utf-8";
const INDEX: &str = "dlq: /metrics for Prometheus, /health for probes\n";

/// Accepts and answers until it is dropped, and with it everything that it answers.
pub(super) async fn answer(listener: TcpListener, pages: Pages) {
    let room = Arc::new(Semaphore::new(MOST));
    let mut answering = JoinSet::new();
    loop {
        // Tasks that have ended are taken out, or the set would grow with every request.
        while answering.try_join_next().is_some() {}
        let Ok(place) = Arc::clone(&room).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let pages = pages.clone();
                answering.spawn(async move {
                    one(stream, pages).await;
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                sleep(PAUSE).await;
            }
        }
    }
}

/// Answers one request. Nobody is told when the client has gone.
async fn one(mut stream: impl AsyncRead + AsyncWrite + Unpin, mut pages: Pages) {
    let head = timeout(ARRIVAL, head(&mut stream)).await;
    let reply = match head {
        Err(_) => Reply::new(408, "the request took too long\n"),
        Ok(None) => return,
        Ok(Some(head)) => match Request::parse(&head) {
            Ok(request) => {
                let answered = async {
                    let reply = request.reply(&mut pages).await;
                    send(&mut stream, &reply, request.is_head).await;
                };
                let _ = timeout(DEPARTURE, answered).await;
                return;
            }
            Err(reply) => reply,
        },
    };
    let _ = timeout(DEPARTURE, send(&mut stream, &reply, false)).await;
}

async fn send(stream: &mut (impl AsyncRead + AsyncWrite + Unpin), reply: &Reply, is_head: bool) {
    let head = format!(
        "HTTP/1.1 {} {}\r\nContent-Type: {}\r\nContent-Length: {}\r\n{}X-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n",
        reply.status,
        reason(reply.status),
        reply.kind,
        reply.body.len(),
        if reply.status == 405 { "Allow: GET, HEAD\r\n" } else { "" },
    );
    let body = if is_head { "" } else { &reply.body };
    let sent = async {
        stream.write_all(head.as_bytes()).await?;
        stream.write_all(body.as_bytes()).await?;
        stream.shutdown().await
    };
    if sent.await.is_ok() {
        let mut nowhere = tokio::io::sink();
        let _ = timeout(REST.1, tokio::io::copy(&mut stream.take(REST.0), &mut nowhere)).await;
    }
}

/// Everything up to the empty line, or as much of it as is read at most; `None` when the client left before.
async fn head(stream: &mut (impl AsyncRead + Unpin)) -> Option<Vec<u8>> {
    let mut head = Vec::with_capacity(1024);
    let mut stream = stream.take(HEAD as u64);
    loop {
        match stream.read_buf(&mut head).await {
            // A read of no bytes means that the client has gone, or that the head is as long as it may be.
            Ok(0) if head.len() < HEAD => return None,
            Ok(0) => return Some(head),
            Ok(_) if head.windows(4).any(|end| end == b"\r\n\r\n") => return Some(head),
            Ok(_) => {}
            Err(_) => return None,
        }
    }
}

struct Request {
    path: String,
    is_head: bool,
}

impl Request {
    fn parse(head: &[u8]) -> Result<Self, Reply> {
        if !head.windows(4).any(|end| end == b"\r\n\r\n") {
            return Err(Reply::new(431, "the head of the request is too long\n"));
        }
        let line = head.split(|byte| *byte == b'\r').next().unwrap_or_default();
        let line = std::str::from_utf8(line).unwrap_or_default();
        let mut words = line.split(' ');
        let (method, target, version) = (words.next(), words.next(), words.next());
        let (Some(method), Some(target), Some("HTTP/1.1" | "HTTP/1.0"), None) =
            (method, target, version, words.next())
        else {
            return Err(Reply::new(400, "this is not a request of HTTP/1\n"));
        };
        let is_head = method == "HEAD";
        if !is_head && method != "GET" {
            return Err(Reply::new(405, "only GET and HEAD are answered\n"));
        }
        let path = target.split(['?', '#']).next().unwrap_or_default().to_owned();
        Ok(Self { path, is_head })
    }

    async fn reply(&self, pages: &mut Pages) -> Reply {
        if self.path == "/" {
            return Reply::new(200, INDEX);
        }
        if !matches!(&*self.path, "/metrics" | "/health") {
            return Reply::new(404, "there is nothing here; try /metrics or /health\n");
        }
        // Only before the first look is there anything to wait for.
        let page = pages.wait_for(Option::is_some).await.ok().and_then(|page| page.clone());
        let Some(page) = page else { return Reply::new(503, "it is ending\n") };
        if self.path == "/metrics" {
            let kind = "text/plain; version=0.0.4; charset=utf-8";
            return Reply { status: 200, kind, body: page.metrics.clone() };
        }
        let status = if page.health.state == HealthState::Unhealthy { 503 } else { 200 };
        let body = serde_json::json!(page.health).to_string() + "\n";
        Reply { status, kind: "application/json", body }
    }
}

struct Reply {
    status: u16,
    kind: &'static str,
    body: String,
}

impl Reply {
    fn new(status: u16, body: &str) -> Self {
        Self { status, kind: TEXT, body: body.to_owned() }
    }
}

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        400 => "Bad Request",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        431 => "Request Header Fields Too Large",
        _ => "Service Unavailable",
    }
}

#[cfg(test)]
#[path = "http_tests.rs"]
mod tests;
