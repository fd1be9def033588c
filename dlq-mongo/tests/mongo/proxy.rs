//! A network before a server that loses a command or its answer, that dies for good, or that swallows what is sent.

use std::future::pending;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinSet;

/// Fate of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// The connection breaks before the server hears of it.
    Lost,
    /// The server carries it out, and the connection breaks before the answer is there.
    Unanswered,
    /// As [`Lost`](Self::Lost), and nothing comes through any more: to the server, the process has died.
    DiesBefore,
    /// As [`Unanswered`](Self::Unanswered), and nothing comes through any more.
    DiesAfter,
    /// Nothing comes through any more, and all connections stay open.
    Silence,
    /// The server hears of it once it may [go on](Proxy::go_on).
    Waits,
}

#[derive(Debug, Default)]
struct State {
    /// Commands that came, handshakes and pings apart.
    commands: AtomicUsize,
    at: Mutex<Option<(usize, Trouble)>>,
    is_dead: AtomicBool,
    is_silent: AtomicBool,
    goes_on: Notify,
}

/// Stands before a server on this machine.
#[derive(Debug)]
pub(crate) struct Proxy {
    /// The server's, through this.
    pub(crate) url: String,
    state: Arc<State>,
    _carriers: JoinSet<()>,
}

impl Proxy {
    pub(crate) async fn before(url: &str) -> Self {
        let server = url.strip_prefix("mongodb://").unwrap().trim_end_matches('/').to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!(
            "mongodb://{}/?directConnection=true&serverSelectionTimeoutMS=1000",
            listener.local_addr().unwrap()
        );
        let state = Arc::<State>::default();
        let mut carriers = JoinSet::new();
        carriers.spawn(accept(listener, server, Arc::clone(&state)));
        Self { url, state, _carriers: carriers }
    }

    /// Troubles the command that comes after `count` others from now on, and no other.
    pub(crate) fn trouble_after(&self, count: usize, trouble: Trouble) {
        let at = self.commands() + count;
        *self.state.at.lock().unwrap_or_else(PoisonError::into_inner) = Some((at, trouble));
    }

    /// Returns true if that command has not come yet.
    pub(crate) fn is_troubling(&self) -> bool {
        self.state.at.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Lets the command go on that waits.
    pub(crate) fn go_on(&self) {
        self.state.goes_on.notify_one();
    }

    pub(crate) fn commands(&self) -> usize {
        self.state.commands.load(Ordering::SeqCst)
    }

    /// Lets everything through again. Connections that lost something never come back.
    pub(crate) fn heal(&self) {
        self.state.is_dead.store(false, Ordering::SeqCst);
        self.state.is_silent.store(false, Ordering::SeqCst);
        *self.state.at.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

impl State {
    fn next(&self) -> Option<Trouble> {
        let mut at = self.at.lock().unwrap_or_else(PoisonError::into_inner);
        let number = self.commands.fetch_add(1, Ordering::SeqCst);
        let trouble = at.take_if(|(at, _)| *at == number).map(|(_, trouble)| trouble);
        match trouble {
            Some(Trouble::DiesBefore | Trouble::DiesAfter) => {
                self.is_dead.store(true, Ordering::SeqCst);
            }
            Some(Trouble::Silence) => self.is_silent.store(true, Ordering::SeqCst),
            _ => {}
        }
        trouble
    }
}

async fn accept(listener: TcpListener, server: String, state: Arc<State>) {
    let mut carriers = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        while carriers.try_join_next().is_some() {}
        carriers.spawn(carry(client, server.clone(), Arc::clone(&state)));
    }
}

/// Passes one message after another on, and its answer back.
async fn carry(mut client: TcpStream, server: String, state: Arc<State>) -> io::Result<()> {
    let mut server = TcpStream::connect(server).await?;
    loop {
        let asked = message(&mut client).await?;
        if state.is_dead.load(Ordering::SeqCst) {
            return Ok(());
        }
        if state.is_silent.load(Ordering::SeqCst) {
            return pending().await;
        }
        let trouble = if is_command(&asked) { state.next() } else { None };
        match trouble {
            Some(Trouble::Lost | Trouble::DiesBefore) => return Ok(()),
            Some(Trouble::Silence) => return pending().await,
            Some(Trouble::Waits) => state.goes_on.notified().await,
            None | Some(Trouble::Unanswered | Trouble::DiesAfter) => {}
        }
        server.write_all(&asked).await?;
        let said = message(&mut server).await?;
        let is_lost = matches!(trouble, Some(Trouble::Unanswered | Trouble::DiesAfter));
        if is_lost || state.is_dead.load(Ordering::SeqCst) {
            return Ok(());
        }
        client.write_all(&said).await?;
    }
}

async fn message(from: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    from.read_exact(&mut length).await?;
    let mut message = length.to_vec();
    message.resize(u32::from_le_bytes(length) as usize, 0);
    from.read_exact(&mut message[4..]).await?;
    Ok(message)
}

/// Returns true unless it is a handshake or a ping, which drivers send by themselves.
fn is_command(message: &[u8]) -> bool {
    let start = &message[..message.len().min(64)];
    let is = |name: &[u8]| start.windows(name.len()).any(|part| part.eq_ignore_ascii_case(name));
    !is(b"ismaster\0") && !is(b"hello\0") && !is(b"endSessions\0")
}
