//! Answers that are lost after the server has carried out what was asked.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use dlq_core::idempotency::{Idempotency as _, IdempotencyClaim, Release};
use dlq_redis::{IdempotencyConfig, RedisIdempotency};

use crate::fixture::{HOUR, Version, claim, client, fresh_prefix, is_done, new};

/// A proxy between a client and its server. Once armed it lets the next script pass and keeps its answer.
#[derive(Default)]
struct Cut {
    armed: AtomicBool,
    cuts: AtomicU32,
}

impl Cut {
    /// Starts it before the server at `url`, and returns its own URL.
    fn start(url: &str) -> (Arc<Self>, String) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let own = format!("redis://{}", listener.local_addr().unwrap());
        let server = url.trim_start_matches("redis://").to_owned();
        let cut = Arc::new(Self::default());
        let shared = Arc::clone(&cut);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = TcpStream::connect(&server) else { return };
                let is_next = Arc::new(AtomicBool::new(false));
                let pass = |mut from: TcpStream, mut to: TcpStream, answers: bool| {
                    let (cut, is_next) = (Arc::clone(&shared), Arc::clone(&is_next));
                    std::thread::spawn(move || {
                        let mut chunk = [0; 65_536];
                        while let Ok(read @ 1..) = from.read(&mut chunk) {
                            let chunk = &chunk[..read];
                            let is_script = chunk.windows(7).any(|word| word == b"EVALSHA");
                            if !answers && is_script && cut.armed.swap(false, Ordering::SeqCst) {
                                is_next.store(true, Ordering::SeqCst);
                            }
                            if answers && is_next.load(Ordering::SeqCst) {
                                cut.cuts.fetch_add(1, Ordering::SeqCst);
                                break;
                            }
                            if to.write_all(chunk).is_err() {
                                break;
                            }
                        }
                        let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
                    });
                };
                pass(client.try_clone().unwrap(), server.try_clone().unwrap(), false);
                pass(server, client, true);
            }
        });
        (cut, own)
    }

    fn arm(&self) {
        self.armed.store(true, Ordering::SeqCst);
    }

    fn cuts(&self) -> u32 {
        self.cuts.load(Ordering::SeqCst)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_whose_answer_was_lost_is_taken_once() {
    for version in Version::ALL {
        if version.program().is_none() {
            continue;
        }
        let (cut, url) = Cut::start(version.url());
        let config = IdempotencyConfig::new().prefix(fresh_prefix());
        let keys = RedisIdempotency::open(&client(&url).await, config).await.unwrap();
        // The server knows the scripts from then on.
        let (token, ..) = new(claim(&keys, "other").await);
        assert!(keys.release(token, Release::Unused).await.unwrap());

        cut.arm();
        let (token, attempts, crashes) = new(claim(&keys, "a").await);
        assert_eq!((attempts, crashes, cut.cuts()), (0, 0, 1));
        let found = claim(&keys, "a").await;
        assert!(matches!(found, IdempotencyClaim::InFlight { .. }), "another claim: {found:?}");

        cut.arm();
        assert!(keys.release(token, Release::Failed).await.unwrap());
        let (token, attempts, crashes) = new(claim(&keys, "a").await);
        assert_eq!((attempts, crashes, cut.cuts()), (1, 0, 2), "counted once");

        // The counts of a crash are told again as they were told first.
        assert!(keys.extend(token, Duration::ZERO).await.unwrap());
        tokio::time::sleep(Duration::from_millis(2)).await;
        cut.arm();
        let (token, attempts, crashes) = new(claim(&keys, "a").await);
        assert_eq!((attempts, crashes, cut.cuts()), (1, 1, 3));

        cut.arm();
        assert!(keys.complete(token.clone(), HOUR).await.unwrap());
        is_done(&claim(&keys, "a").await);
        cut.arm();
        assert!(!keys.release(token, Release::Failed).await.unwrap());
        assert_eq!(cut.cuts(), 5);
    }
}
