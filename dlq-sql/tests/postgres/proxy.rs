//! A network that swallows what is sent: connections stay open, and nothing comes through them any more.

use std::future::pending;
use std::io;

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Stands before a server on this machine.
#[derive(Debug)]
pub(crate) struct Proxy {
    /// The server's, through this.
    pub(crate) url: String,
    swallows: watch::Sender<bool>,
    _carriers: JoinSet<()>,
}

impl Proxy {
    pub(crate) async fn before(url: &str) -> Self {
        let (start, rest) = url.split_once('@').unwrap();
        let (server, path) = rest.split_once('/').unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("{start}@{}/{path}", listener.local_addr().unwrap());
        let swallows = watch::Sender::new(false);
        let mut carriers = JoinSet::new();
        carriers.spawn(accept(listener, server.to_owned(), swallows.clone()));
        Self { url, swallows, _carriers: carriers }
    }

    /// Whether what is sent is swallowed from now on. A connection that lost something never comes back.
    pub(crate) fn swallow(&self, is_on: bool) {
        self.swallows.send_replace(is_on);
    }
}

async fn accept(listener: TcpListener, server: String, swallows: watch::Sender<bool>) {
    let mut carriers = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        while carriers.try_join_next().is_some() {}
        carriers.spawn(carry(client, server.clone(), swallows.subscribe()));
    }
}

async fn carry(
    mut client: TcpStream,
    server: String,
    mut swallows: watch::Receiver<bool>,
) -> io::Result<()> {
    let mut server = TcpStream::connect(server).await?;
    let carried = copy_bidirectional(&mut client, &mut server);
    tokio::select! {
        biased;
        // Neither side hears of the other's end.
        () = async { _ = swallows.wait_for(|swallows| *swallows).await } => pending().await,
        _ = carried => Ok(()),
    }
}
