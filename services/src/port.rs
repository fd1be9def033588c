use std::collections::BTreeSet;
use std::net::TcpListener;
use std::sync::{Mutex, PoisonError};

/// A loopback port that nobody listens on, and that was not given out before by this process.
///
/// Between this call and the server's start another process may take it; whoever starts a server tries again then.
pub(crate) fn free_port() -> std::io::Result<u16> {
    static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());
    let mut given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
    // Listeners are kept until the end, so that the system does not offer the same port again.
    let mut tried = Vec::new();
    loop {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let port = listener.local_addr()?.port();
        if given.insert(port) {
            return Ok(port);
        }
        tried.push(listener);
    }
}
