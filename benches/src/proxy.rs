//! A way to a server that takes longer: every byte arrives a fixed time after it was sent, in both directions, and as
//! many as come at once.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

/// Number of bytes that are read at once.
const PIECE: usize = 64 * 1024;

/// Listens until it is dropped, on a thread of its own, so that it takes no turns of those who are measured.
#[derive(Debug)]
pub(crate) struct Proxy {
    address: SocketAddr,
    target: Arc<OnceLock<SocketAddr>>,
    // Its end is the thread's.
    _stop: oneshot::Sender<()>,
}

impl Proxy {
    /// A way to `target` that takes `delay` there and `delay` back.
    #[cfg(any(feature = "nats", feature = "redis"))]
    pub(crate) fn start(target: SocketAddr, delay: Duration) -> io::Result<Self> {
        let proxy = Self::waiting(delay)?;
        proxy.leads_to(target);
        Ok(proxy)
    }

    /// A way whose end is not known yet.
    pub(crate) fn waiting(delay: Duration) -> io::Result<Self> {
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let (stop, stopped) = oneshot::channel();
        let target = Arc::new(OnceLock::new());
        let known = Arc::clone(&target);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        std::thread::spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    ended = listen(listener, known, delay) => {
                        eprintln!("the delaying proxy has ended: {ended:?}");
                    }
                    _ = stopped => {}
                }
            });
        });
        Ok(Self { address, target, _stop: stop })
    }

    /// Says where it leads. Who comes before is turned away.
    pub(crate) fn leads_to(&self, target: SocketAddr) {
        let _ = self.target.set(target);
    }

    #[cfg(any(feature = "kafka", feature = "redis"))]
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    #[cfg(feature = "nats")]
    pub(crate) fn url(&self) -> String {
        format!("nats://{}", self.address)
    }
}

async fn listen(
    listener: std::net::TcpListener,
    target: Arc<OnceLock<SocketAddr>>,
    delay: Duration,
) -> io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    let mut ways = JoinSet::new();
    loop {
        let (near, _) = listener.accept().await?;
        // A server that has gone is the client's to notice.
        let Some(target) = target.get() else { continue };
        let Ok(far) = TcpStream::connect(target).await else { continue };
        near.set_nodelay(true)?;
        far.set_nodelay(true)?;
        let (near_read, near_write) = near.into_split();
        let (far_read, far_write) = far.into_split();
        for (from, to) in [(near_read, far_write), (far_read, near_write)] {
            let (sender, receiver) = mpsc::unbounded_channel();
            ways.spawn(receive(from, sender, delay));
            ways.spawn(send(receiver, to));
        }
        while ways.try_join_next().is_some() {}
    }
}

async fn receive(
    mut from: OwnedReadHalf,
    queue: mpsc::UnboundedSender<(Instant, Bytes)>,
    delay: Duration,
) -> io::Result<()> {
    let mut buffer = BytesMut::new();
    loop {
        buffer.reserve(PIECE);
        if from.read_buf(&mut buffer).await? == 0 {
            return Ok(());
        }
        if queue.send((Instant::now() + delay, buffer.split().freeze())).is_err() {
            return Ok(());
        }
    }
}

async fn send(
    mut queue: mpsc::UnboundedReceiver<(Instant, Bytes)>,
    mut to: OwnedWriteHalf,
) -> io::Result<()> {
    while let Some((due, piece)) = queue.recv().await {
        sleep_until(due).await;
        to.write_all(&piece).await?;
    }
    to.shutdown().await
}
