use std::collections::BTreeSet;
use std::fs;
use std::hash::{BuildHasher as _, RandomState};
use std::net::TcpListener;
use std::sync::{Mutex, PoisonError};

/// Distance of the two ports of a node in a cluster of Redis.
const BUS: u16 = 10_000;

/// The ports of one node. Not every server uses all of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ports {
    /// For clients.
    pub(crate) client: u16,
    /// For the other nodes of a cluster.
    pub(crate) peer: u16,
    /// For monitoring.
    pub(crate) monitor: u16,
}

impl Ports {
    pub(crate) fn free() -> std::io::Result<Self> {
        Ok(Self { client: free_port()?, peer: free_port()?, monitor: free_port()? })
    }

    /// The same with the port for other nodes above that for clients by [`BUS`]: nodes of Redis look for one another
    /// there, and not every version can be told another place.
    pub(crate) fn free_with_bus() -> std::io::Result<Self> {
        for _ in 0..200 {
            let client = free_port_below(first_outgoing_port().saturating_sub(BUS))?;
            let Some(peer) = client.checked_add(BUS) else { continue };
            if TcpListener::bind(("127.0.0.1", peer)).is_ok() {
                return Ok(Self { client, peer, monitor: free_port()? });
            }
        }
        Err(std::io::Error::other("no pair of free ports in 200 tries"))
    }
}

/// A loopback port that nobody listens on, and that this process did not give out before.
///
/// It lies below the range from which the system takes ports for outgoing connections. Inside that
/// range a client that reconnects while its server is down may be given the server's own port: it
/// then talks to itself, and the server cannot come back.
///
/// Until the server listens another process may take it; whoever starts a server tries again then.
fn free_port() -> std::io::Result<u16> {
    free_port_below(first_outgoing_port())
}

fn free_port_below(end: u16) -> std::io::Result<u16> {
    static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());
    const LOWEST: u16 = 10_240;
    let mut given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
    let width = end.saturating_sub(LOWEST);
    let random = RandomState::new();
    for attempt in 0..200_u64 {
        // Where the range is unknown or leaves nothing below it, the system chooses.
        let wanted = if width < 1000 {
            0
        } else {
            LOWEST + (random.hash_one(attempt) % u64::from(width)) as u16
        };
        let Ok(listener) = TcpListener::bind(("127.0.0.1", wanted)) else { continue };
        let port = listener.local_addr()?.port();
        if given.insert(port) {
            return Ok(port);
        }
    }
    Err(std::io::Error::other("no free port in 200 tries"))
}

fn first_outgoing_port() -> u16 {
    let range = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    range.split_whitespace().next().and_then(|first| first.parse().ok()).unwrap_or(0)
}
