//! The listener: axum behind hyper, with everything bounded.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::map_response;
use axum::response::Response;
use axum::routing::get;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{Sleep, sleep, timeout};
use tower::ServiceExt as _;

use super::look::Page;
use dlq_core::store::HealthState;

/// Maximum number of connections at once; further ones wait to be accepted.
// Each connection is a file, of which a process has 1,024 by default on many systems, and shares them with the store.
const MOST: usize = 128;
/// The longest head of a request, in bytes.
const HEAD: usize = 8 * 1024;
/// Time limit for the head of a request to arrive.
const ARRIVAL: Duration = Duration::from_secs(5);
/// Time for which a client may read nothing of its answer, and that it waits for the first look.
const DEPARTURE: Duration = Duration::from_secs(20);
/// Bytes of a request's rest that are read and dropped, and the time limit of that, so that the answer is not lost with
/// it.
const REST: (u64, Duration) = (64 * 1024, Duration::from_secs(1));
/// The pause after a connection could not be accepted, as when files have run out.
const PAUSE: Duration = Duration::from_millis(100);

pub(super) type Pages = watch::Receiver<Option<Arc<Page>>>;

const TEXT: &str = "text/plain; charset=utf-8";
const INDEX: &str = "dlq: /metrics for Prometheus, /health for probes\n";

/// Accepts and answers until it is dropped, and with it everything that it answers. The console, where there is one, has
/// every path but `/metrics` and `/health`.
pub(super) async fn answer(listener: TcpListener, pages: Pages, console: Option<Router>) {
    // A console keeps connections for its next page. Others ask once and leave.
    let (room, keeps) = (Arc::new(Semaphore::new(MOST)), console.is_some());
    let router = router(pages, console);
    let mut answering = JoinSet::new();
    // The loop ends only with its own task, since the semaphore is never closed.
    loop {
        // Tasks that have ended are taken out, or the set would grow with every request.
        while answering.try_join_next().is_some() {}
        // A place is taken before a connection is accepted: those that wait do so in the kernel, where they cost this
        // process nothing.
        let Ok(place) = Arc::clone(&room).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, peer)) => {
                let router = router.clone();
                answering.spawn(async move {
                    one(stream, Some(peer), router, keeps).await;
                    drop(place);
                });
            }
            // An error here is most often a shortage of files, by which a loop without a pause would take a whole core.
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                sleep(PAUSE).await;
            }
        }
    }
}

/// Returns what is answered.
fn router(pages: Pages, console: Option<Router>) -> Router {
    let own = Router::new().route("/metrics", get(metrics)).route("/health", get(health));
    let own = match console {
        None => own
            .route("/", get(async || reply(StatusCode::OK, TEXT, INDEX.to_owned())))
            .fallback(async || {
                let text = "there is nothing here; try /metrics or /health\n";
                reply(StatusCode::NOT_FOUND, TEXT, text.to_owned())
            }),
        // Merged, the two paths of metrics come before the console, and ask for no login there either: probes have none.
        Some(console) => own.merge(console.with_state(())),
    };
    own.with_state(pages).layer(map_response(plain))
}

/// Completes an answer that axum gives by itself.
async fn plain(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    if response.status() == StatusCode::METHOD_NOT_ALLOWED {
        let allow = response.headers().get(header::ALLOW).cloned();
        let text = "this method is not answered here\n".to_owned();
        // axum answers this one without a body, which says nothing to whoever tries by hand.
        response = reply(StatusCode::METHOD_NOT_ALLOWED, TEXT, text);
        if let Some(allow) = allow {
            response.headers_mut().insert(header::ALLOW, allow);
        }
    }
    response
}

async fn metrics(State(pages): State<Pages>) -> Response {
    match latest(pages).await {
        Ok(page) => {
            let kind = "text/plain; version=0.0.4; charset=utf-8";
            reply(StatusCode::OK, kind, page.metrics.clone())
        }
        Err(refused) => refused,
    }
}

async fn health(State(pages): State<Pages>) -> Response {
    match latest(pages).await {
        Ok(page) => {
            // A backlog is no reason for an orchestrator to restart this process, so `degraded` is 200.
            let is_ill = page.health.state == HealthState::Unhealthy;
            let status = if is_ill { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK };
            reply(status, "application/json", serde_json::json!(page.health).to_string() + "\n")
        }
        Err(refused) => refused,
    }
}

/// Returns the latest page. Only before the first look is there anything to wait for.
async fn latest(mut pages: Pages) -> Result<Arc<Page>, Response> {
    // A scrape right after the start waits instead of being a gap in the graph.
    let seen = timeout(DEPARTURE, pages.wait_for(Option::is_some)).await;
    let page = seen.ok().and_then(Result::ok).and_then(|page| page.clone());
    let text = "there is no look yet, or it is ending\n";
    page.ok_or_else(|| reply(StatusCode::SERVICE_UNAVAILABLE, TEXT, text.to_owned()))
}

fn reply(status: StatusCode, kind: &'static str, body: String) -> Response {
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// Answers the requests of one connection. Nobody is told when the client has gone.
async fn one(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    peer: Option<SocketAddr>,
    router: Router,
    keeps: bool,
) {
    let service = service_fn(move |request: hyper::Request<hyper::body::Incoming>| {
        let router = router.clone();
        Box::pin(async move {
            let mut request: Request = request.map(Body::new);
            if let Some(peer) = peer {
                request.extensions_mut().insert(ConnectInfo(peer));
            }
            let response: Result<Response, Infallible> = router.oneshot(request).await;
            response
        })
    });
    // hyper bounds the reading of a head alone; a client that reads nothing of its answer is the stream's to notice.
    let io = TokioIo::new(Stalling { stream, stalled: None });
    let mut connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(ARRIVAL)
        .max_buf_size(HEAD)
        .keep_alive(keeps)
        .serve_connection(io, service);
    // Without the shutdown of hyper the stream comes back, to answer a late client and to read what it still sends.
    let ended = std::future::poll_fn(|context| connection.poll_without_shutdown(context)).await;
    let mut stream = connection.into_parts().io.into_inner();
    let is_late = ended.as_ref().is_err_and(hyper::Error::is_timeout);
    if let Err(error) = ended {
        // One that reads nothing, or has gone, is left.
        if !error.is_timeout() && !error.is_parse() {
            return;
        }
    }
    if is_late {
        // hyper closes a connection that is late without an answer, so that one is written here.
        let text = "the request took too long\n";
        let head = format!(
            "HTTP/1.1 408 Request Timeout\r\nContent-Type: {TEXT}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
            text.len()
        );
        if stream.write_all((head + text).as_bytes()).await.is_err() {
            return;
        }
    }
    // A close with unread bytes sends a reset, by which the client may lose the answer that it was sent.
    if stream.shutdown().await.is_ok() {
        let mut nowhere = tokio::io::sink();
        let _ = timeout(REST.1, tokio::io::copy(&mut stream.take(REST.0), &mut nowhere)).await;
    }
}

/// Stream whose writes fail once the other side has read nothing for too long.
struct Stalling<S> {
    stream: S,
    /// Ends when a write has waited too long.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl<S: Unpin> Stalling<S> {
    fn watch<T>(
        &mut self,
        context: &mut Context<'_>,
        write: impl FnOnce(Pin<&mut S>, &mut Context<'_>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        // Every write that succeeds begins the time anew: a client may be slow, and must not stand still.
        if let Poll::Ready(done) = write(Pin::new(&mut self.stream), context) {
            self.stalled = None;
            return Poll::Ready(done);
        }
        // The timer is kept from poll to poll. A new one each time would never end.
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(DEPARTURE)));
        ready!(stalled.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Stalling<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Stalling<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.watch(context, |stream, context| stream.poll_write(context, bytes))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.watch(context, |stream, context| stream.poll_flush(context))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.watch(context, |stream, context| stream.poll_shutdown(context))
    }
}

#[cfg(test)]
#[path = "http_tests.rs"]
mod tests;
