//! A network that swallows what is sent, so that connections stay open and nothing comes through them any more; or that
//! fails in the moment of a COMMIT.

use std::future::pending;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// What happens to the next COMMIT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// The connection breaks before the server hears of it.
    Lost,
    /// The server carries it out, and the connection breaks before the answer is there.
    Unanswered,
    /// It is held back until the server has had enough of waiting.
    Late,
}

/// Stands before a server on this machine.
#[derive(Debug)]
pub(crate) struct Proxy {
    /// The server's, through this.
    pub(crate) url: String,
    swallows: watch::Sender<bool>,
    next: Next,
    _carriers: JoinSet<()>,
}

type Next = Arc<Mutex<Option<Trouble>>>;

impl Proxy {
    pub(crate) async fn before(url: &str) -> Self {
        let (start, rest) = url.split_once('@').unwrap();
        let (server, path) = rest.split_once('/').unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("{start}@{}/{path}", listener.local_addr().unwrap());
        let (swallows, next) = (watch::Sender::new(false), Next::default());
        let mut carriers = JoinSet::new();
        carriers.spawn(accept(listener, server.to_owned(), swallows.clone(), Arc::clone(&next)));
        Self { url, swallows, next, _carriers: carriers }
    }

    /// Whether what is sent is swallowed from now on. A connection that lost something never comes back.
    pub(crate) fn swallow(&self, is_on: bool) {
        self.swallows.send_replace(is_on);
    }

    /// Troubles the next COMMIT of any connection, and no other.
    pub(crate) fn trouble(&self, trouble: Trouble) {
        *self.next.lock().unwrap_or_else(PoisonError::into_inner) = Some(trouble);
    }

    /// Whether that has not come yet.
    pub(crate) fn is_troubling(&self) -> bool {
        self.next.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }
}

async fn accept(listener: TcpListener, server: String, swallows: watch::Sender<bool>, next: Next) {
    let mut carriers = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        while carriers.try_join_next().is_some() {}
        carriers.spawn(carry(client, server.clone(), swallows.subscribe(), Arc::clone(&next)));
    }
}

async fn carry(
    mut client: TcpStream,
    server: String,
    mut swallows: watch::Receiver<bool>,
    next: Next,
) -> io::Result<()> {
    let mut server = TcpStream::connect(server).await?;
    tokio::select! {
        biased;
        // Neither side hears of the other's end.
        () = async { _ = swallows.wait_for(|swallows| *swallows).await } => pending().await,
        done = pass(&mut client, &mut server, next) => done,
    }
}

/// Passes on what each side says, until one of them has ended.
async fn pass(client: &mut TcpStream, server: &mut TcpStream, next: Next) -> io::Result<()> {
    let (mut asked, mut said) = (vec![0; 65_536], vec![0; 65_536]);
    loop {
        tokio::select! {
            length = client.read(&mut asked) => {
                let asked = &asked[..length?];
                if asked.is_empty() {
                    return Ok(());
                }
                let is_commit = asked.windows(7).any(|word| word == b"COMMIT\0");
                let trouble = is_commit
                    .then(|| next.lock().unwrap_or_else(PoisonError::into_inner).take())
                    .flatten();
                match trouble {
                    None => server.write_all(asked).await?,
                    Some(Trouble::Lost) => return Ok(()),
                    Some(Trouble::Unanswered) => {
                        server.write_all(asked).await?;
                        let answer = server.read(&mut said).await?;
                        assert!(answer > 0, "the server answers");
                        return Ok(());
                    }
                    Some(Trouble::Late) => {
                        let length = server.read(&mut said).await?;
                        return client.write_all(&said[..length]).await;
                    }
                }
            }
            length = server.read(&mut said) => {
                let said = &said[..length?];
                if said.is_empty() {
                    return Ok(());
                }
                client.write_all(said).await?;
            }
        }
    }
}
