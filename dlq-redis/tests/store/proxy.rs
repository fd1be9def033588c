//! A network that loses the answer to a script that writes, once.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// Fate of the next call whose arguments contain the mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// The connection breaks before the server hears of it.
    Lost,
    /// The server carries it out, and the connection breaks before the answer is there.
    Unanswered,
    /// The server answers, and the connection breaks once the answer has passed.
    Severed,
}

/// Stands before a server on this machine.
#[derive(Debug)]
pub(crate) struct Proxy {
    /// The server's, through this.
    pub(crate) url: String,
    next: Arc<Next>,
    _carriers: JoinSet<()>,
}

#[derive(Debug, Default)]
struct Next {
    is_lost: AtomicBool,
    is_unanswered: AtomicBool,
    is_severed: AtomicBool,
}

impl Proxy {
    pub(crate) async fn before(url: &str) -> Self {
        let server = url.trim_start_matches("redis://").trim_end_matches('/').to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("redis://{}", listener.local_addr().unwrap());
        let next = Arc::new(Next::default());
        let mut carriers = JoinSet::new();
        let of_all = Arc::clone(&next);
        carriers.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                while connections.try_join_next().is_some() {}
                connections.spawn(carry(client, server.clone(), Arc::clone(&of_all)));
            }
        });
        Self { url, next, _carriers: carriers }
    }

    /// Troubles the next commit of any connection, and no other.
    pub(crate) fn trouble(&self, trouble: Trouble) {
        match trouble {
            Trouble::Lost => &self.next.is_lost,
            Trouble::Unanswered => &self.next.is_unanswered,
            Trouble::Severed => &self.next.is_severed,
        }
        .store(true, Ordering::SeqCst);
    }

    /// Returns true if that call has not come yet.
    pub(crate) fn is_troubling(&self) -> bool {
        let Next { is_lost, is_unanswered, is_severed } = &*self.next;
        [is_lost, is_unanswered, is_severed].iter().any(|is_next| is_next.load(Ordering::SeqCst))
    }
}

/// The argument that only a commit has: the life of its token.
const COMMIT: &[u8] = b"\r\n3600000\r\n";

async fn carry(mut client: TcpStream, server: String, next: Arc<Next>) -> io::Result<()> {
    let mut server = TcpStream::connect(server).await?;
    let (mut asked, mut said) = (vec![0; 1 << 20], vec![0; 1 << 20]);
    loop {
        tokio::select! {
            length = client.read(&mut asked) => {
                let asked = &asked[..length?];
                if asked.is_empty() {
                    return Ok(());
                }
                let is_commit = asked.windows(COMMIT.len()).any(|part| part == COMMIT);
                if is_commit && next.is_lost.swap(false, Ordering::SeqCst) {
                    return Ok(());
                }
                server.write_all(asked).await?;
                if is_commit && next.is_unanswered.swap(false, Ordering::SeqCst) {
                    let answer = server.read(&mut said).await?;
                    assert!(answer > 0, "the server answers");
                    return Ok(());
                }
                if is_commit && next.is_severed.swap(false, Ordering::SeqCst) {
                    let answer = server.read(&mut said).await?;
                    client.write_all(&said[..answer]).await?;
                    return Ok(());
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
