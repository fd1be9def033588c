//! A consumer in another language, which is killed again and again, and so is the router.

use std::path::{Path, PathBuf};
use std::process::Command;

use dlq_core::{Position, Reason};
use tokio::time::{sleep, timeout};

use super::{Letter, Routing, SECOND};
use crate::fixture::{PATIENCE, STREAM, Server, available};

/// Built once; skipped aloud where there is no Go.
fn foreign() -> Option<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/foreign");
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("foreign");
    let mut build = Command::new("go");
    build.arg("build").arg("-o").arg(&program).arg(".").current_dir(source);
    match build.status() {
        Ok(status) => {
            assert!(status.success(), "the foreign consumer does not build");
            Some(program)
        }
        Err(error) => {
            let required = std::env::var("DLQ_TEST_REQUIRE").is_ok_and(|all| all.contains("nats"));
            assert!(!required, "go cannot be run: {error}");
            println!("skipped: go cannot be run: {error}");
            None
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g1_every_message_of_a_foreign_consumer_succeeds_or_has_exactly_one_letter() {
    const MESSAGES: u64 = 200;
    if !available() {
        return;
    }
    let Some(program) = tokio::task::block_in_place(foreign) else { return };
    let server = Server::start().await;
    let kind = |n: u64| match n {
        40 | 80 | 120 => "die",
        n if n % 10 == 3 => "fail",
        n if n % 10 == 7 => "term",
        _ => "ok",
    };
    for n in 0..MESSAGES {
        let payload = format!("{} {n}", kind(n));
        server.context.publish("orders.created", payload.into()).await.unwrap().await.unwrap();
    }
    let url = server.running().url().to_owned();
    let mut router = Routing::start(&server).await;
    let (mut succeeded, mut runs, mut kills) = (Vec::new(), 0, 0);
    loop {
        let (program, url) = (program.clone(), url.clone());
        let run = move || Command::new(program).args([&url, STREAM, "foreign"]).output().unwrap();
        let run = tokio::task::spawn_blocking(run);
        if runs % 3 == 1 {
            // The router dies while the consumer works.
            sleep(SECOND / 20).await;
            router.kill().await;
            kills += 1;
            router = Routing::start(&server).await;
        }
        let output = timeout(PATIENCE, run).await.expect("it ends").unwrap();
        runs += 1;
        succeeded.extend(String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned));
        if output.status.success() {
            break;
        }
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(error.is_empty() && runs < 40, "run {runs}: {error}");
    }
    let dead = (0..MESSAGES).filter(|n| kind(*n) != "ok").count() as u64;
    Letter::until(&server, dead).await;
    let report = router.stop().await;
    let letters = Letter::all(&server).await;
    for n in 0..MESSAGES {
        let payload = format!("{} {n}", kind(n));
        let letter = letters.get(&payload);
        if kind(n) == "ok" {
            assert!(succeeded.contains(&payload) && letter.is_none(), "{payload}");
            continue;
        }
        assert!(!succeeded.contains(&payload), "{payload}");
        let letter = letter.unwrap_or_else(|| panic!("`{payload}` has no letter"));
        assert_eq!(letter.subject, "dlq.orders.created");
        assert_eq!(letter.says.original.offset, Some(Position::Offset(n + 1)), "{payload}");
        let reason = if kind(n) == "term" { Reason::Permanent } else { Reason::MaxDeliveries };
        assert_eq!(letter.says.reason, Some(reason), "{payload}");
        assert_eq!(letter.deliveries, if kind(n) == "term" { 1 } else { 3 }, "{payload}");
    }
    assert_eq!(letters.len() as u64, dead);
    println!(
        "{MESSAGES} messages, {runs} runs of the consumer, {kills} kills of the router: {} succeeded, {} letters ({report})",
        succeeded.len(),
        letters.len()
    );
}
