//! Answers to requests that carried an `Idempotency-Key`, so that a request which is made again is answered, and not
//! carried out, again.

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::sync::{Mutex, PoisonError};

use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use bytes::Bytes;

use crate::refusal::Refusal;

/// Number of answers that are kept. The oldest goes first.
// With the largest answers they take some 64 MiB.
pub(crate) const MOST: usize = 1_000;
/// Length of an answer that is kept, in bytes.
const LARGEST: usize = 64 * 1024;
/// Length of a key.
pub(crate) const LONGEST: usize = 200;

/// Identity of a request: by whom, where, and under which key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    pub(crate) who: String,
    pub(crate) path: String,
    pub(crate) key: String,
}

#[derive(Debug)]
enum Known {
    Running(blake3::Hash),
    Done(blake3::Hash, StatusCode, HeaderMap, Bytes),
}

/// The latest answers.
#[derive(Debug, Default)]
pub(crate) struct Answers(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    by_key: HashMap<Key, Known>,
    order: VecDeque<Key>,
}

impl Answers {
    /// Carries a request out, unless one of the same key was: then its answer is returned.
    ///
    /// `asks` is a hash of what is asked for. A request that was not answered, or whose answer was an error of the server, is
    /// carried out again.
    pub(crate) async fn once(
        &self,
        key: Key,
        asks: blake3::Hash,
        run: impl Future<Output = Result<Response, Refusal>>,
    ) -> Result<Response, Refusal> {
        if let Some(known) = self.begin(&key, asks)? {
            return Ok(known);
        }
        // Dropped with the request when the client goes away.
        let running = Running { answers: self, key: &key };
        // A refusal leaves through the guard, which forgets the key: what was refused may be mended and sent again under
        // it.
        let response = run.await?;
        let (parts, body) = response.into_parts();
        let body = to_bytes(body, usize::MAX).await.map_err(|_| {
            Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "the answer could not be written")
        })?;
        // A longer answer holds a letter that was edited, and the same edit made again finds nothing to change.
        if body.len() <= LARGEST {
            let done = Known::Done(asks, parts.status, parts.headers.clone(), body.clone());
            // The key may have been pushed out meanwhile. Then it is not put back, or the order would not know of it.
            if let Some(known) = self.lock().by_key.get_mut(&key) {
                *known = done;
            }
            // The guard would forget the answer that was just kept.
            std::mem::forget(running);
        }
        Ok(Response::from_parts(parts, Body::from(body)))
    }

    fn begin(&self, key: &Key, asks: blake3::Hash) -> Result<Option<Response>, Refusal> {
        let mut kept = self.lock();
        match kept.by_key.get(key) {
            // To answer a different request with the former answer would make a client believe that it was carried out.
            Some(Known::Running(before) | Known::Done(before, ..)) if *before != asks => {
                Err(Refusal::refused(
                    "another request was made with this idempotency key; give each request a key of its own",
                ))
            }
            // The second request does not wait for the first, since it would hold its connection for as long.
            Some(Known::Running(_)) => {
                Err(Refusal::conflict("the request of this idempotency key is being carried out"))
            }
            Some(Known::Done(_, status, headers, body)) => {
                let mut response = Response::new(Body::from(body.clone()));
                *response.status_mut() = *status;
                *response.headers_mut() = headers.clone();
                Ok(Some(response))
            }
            None => {
                // The lock is held from the look-up to the insertion, so that of two requests at once only one begins.
                if kept.order.len() >= MOST
                    && let Some(oldest) = kept.order.pop_front()
                {
                    kept.by_key.remove(&oldest);
                }
                kept.order.push_back(key.clone());
                kept.by_key.insert(key.clone(), Known::Running(asks));
                Ok(None)
            }
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Forgets a request that has no answer.
struct Running<'a> {
    answers: &'a Answers,
    key: &'a Key,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let mut kept = self.answers.lock();
        kept.by_key.remove(self.key);
        kept.order.retain(|key| key != self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &str) -> Key {
        Key { who: "ana".to_owned(), path: "/replay".to_owned(), key: text.to_owned() }
    }

    async fn ask(
        answers: &Answers,
        text: &str,
        asks: &str,
        says: &str,
    ) -> Result<String, StatusCode> {
        let run = async { Ok(Response::new(Body::from(says.to_owned()))) };
        let done = answers.once(key(text), blake3::hash(asks.as_bytes()), run).await;
        let body =
            to_bytes(done.map_err(|refusal| refusal.status)?.into_body(), 100).await.unwrap();
        Ok(String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn a_request_that_is_made_again_has_the_first_answer() {
        let answers = Answers::default();
        assert_eq!(ask(&answers, "a", "x", "1").await.unwrap(), "1");
        assert_eq!(ask(&answers, "a", "x", "2").await.unwrap(), "1");
        assert_eq!(ask(&answers, "a", "y", "2").await, Err(StatusCode::UNPROCESSABLE_ENTITY));
        assert_eq!(ask(&answers, "b", "x", "2").await.unwrap(), "2");
    }

    #[tokio::test]
    async fn what_has_no_answer_is_carried_out_again() {
        let answers = Answers::default();
        let hash = blake3::hash(b"x");
        let failed = answers.once(key("a"), hash, async { Err(Refusal::conflict("no")) }).await;
        assert!(failed.is_err());
        {
            let never = answers.once(key("a"), hash, std::future::pending());
            let mut never = std::pin::pin!(never);
            let short = std::time::Duration::from_millis(1);
            assert!(tokio::time::timeout(short, &mut never).await.is_err());
            assert_eq!(ask(&answers, "a", "x", "1").await, Err(StatusCode::CONFLICT));
        }
        assert_eq!(ask(&answers, "a", "x", "1").await.unwrap(), "1");
    }

    #[tokio::test]
    async fn no_more_are_kept_than_the_bound() {
        let answers = Answers::default();
        for n in 0..=MOST {
            ask(&answers, &n.to_string(), "x", "1").await.unwrap();
        }
        assert_eq!(answers.lock().by_key.len(), MOST);
        assert_eq!(ask(&answers, "0", "x", "2").await.unwrap(), "2", "the oldest is forgotten");
    }
}
