//! Sessions of people who have logged in, in memory and bounded.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::access::Role;
use crate::random;

/// Number of sessions at a time. The oldest one ends when another begins.
// Only a right token begins a session, so the bound guards against a program that logs in again and again.
const MOST: usize = 1_000;
/// Length of a session.
const LIFE: Duration = Duration::from_secs(12 * 3600);

/// Somebody who has logged in.
#[derive(Clone, Debug)]
pub(crate) struct Session {
    pub(crate) name: String,
    pub(crate) role: Role,
    since: Instant,
}

/// Sessions by the hash of their ids, so that looking one up tells nothing about the ids of others.
#[derive(Debug, Default)]
pub(crate) struct Sessions(Mutex<HashMap<blake3::Hash, Session>>);

impl Sessions {
    /// Begins a session, and returns its id.
    pub(crate) fn begin(&self, name: &str, role: Role) -> std::io::Result<String> {
        // The random bytes are drawn before the lock is taken, so that a slow source does not hold up every request.
        let id = random::text()?;
        let mut sessions = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Sessions that are over are removed here alone, which is enough as only this adds any.
        sessions.retain(|_, session| session.since.elapsed() < LIFE);
        if sessions.len() >= MOST {
            let oldest = sessions.iter().min_by_key(|(_, session)| session.since);
            if let Some(oldest) = oldest.map(|(hash, _)| *hash) {
                sessions.remove(&oldest);
            }
        }
        let session = Session { name: name.to_owned(), role, since: Instant::now() };
        sessions.insert(blake3::hash(id.as_bytes()), session);
        Ok(id)
    }

    /// Returns the session of this id, unless it is over.
    pub(crate) fn get(&self, id: &str) -> Option<Session> {
        let sessions = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let session = sessions.get(&blake3::hash(id.as_bytes()))?;
        // The time of the login counts and not that of the latest request, so that a stolen cookie ends too.
        (session.since.elapsed() < LIFE).then(|| session.clone())
    }

    /// Ends a session.
    pub(crate) fn end(&self, id: &str) {
        let mut sessions = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        sessions.remove(&blake3::hash(id.as_bytes()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_no_more_sessions_than_the_bound() {
        let sessions = Sessions::default();
        let first = sessions.begin("ana", Role::Admin).unwrap();
        let ids: Vec<_> = (0..MOST).map(|_| sessions.begin("bo", Role::Read).unwrap()).collect();
        assert!(sessions.get(&first).is_none(), "the oldest one ended");
        assert!(ids.iter().all(|id| sessions.get(id).is_some_and(|one| one.name == "bo")));
        sessions.end(&ids[3]);
        assert!(sessions.get(&ids[3]).is_none() && sessions.get("").is_none());
    }
}
