//! Every server is installed, starts, answers, and survives what the other tests will do to it.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod clusters;
mod command;
mod given;
mod redis;
mod single;

use std::time::{Duration, Instant};

/// For one question to a server, on a machine that is busy or whose disk stands still.
const PATIENCE: Duration = Duration::from_secs(60);

/// For a question that is asked again: a cluster that elects answers some of them never.
const A_TRY: Duration = Duration::from_secs(3);

/// Asks until the answer is there; fails with the last one when it does not come.
#[track_caller]
fn until<T, E: std::fmt::Display>(mut ask: impl FnMut() -> Result<T, E>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match ask() {
            Ok(answer) => return answer,
            Err(error) if Instant::now() >= deadline => panic!("not within 60 s: {error}"),
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}
