//! Processes that race for one key while the server is killed and restarted: never two of them have it.

use std::fs::File;
use std::io::Write as _;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use dlq_core::idempotency::{Idempotency as _, IdempotencyClaim, Release};
use tokio::time::{Instant, sleep};

use crate::fixture::{PATIENCE, Version, open, own};

/// Variables that make this binary another process of the test below.
const URL: &str = "DLQ_REDIS_TEST_ONE_KEY_URL";
const LOG: &str = "DLQ_REDIS_TEST_ONE_KEY_LOG";

/// Times that each process has the key.
const TURNS: u32 = 60;
/// Long enough that nobody who has the key is overtaken, short enough to wait for where an answer was lost for good.
const LEASE: Duration = Duration::from_secs(5);

/// Takes the key again and again. Before and after it has it, it says so in one log, whose order is that of the system.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn as_another_process() {
    let Ok(url) = std::env::var(URL) else { return };
    let path = std::env::var(LOG).unwrap();
    let mut log = File::options().append(true).open(path).unwrap();
    let mut say = |what: &str, fence: u64| {
        log.write_all(format!("{what} {fence}\n").as_bytes()).unwrap();
    };
    let keys = open(&url).await;
    let mut turns = 0;
    while turns < TURNS {
        let token = match keys.claim("billing".into(), "the key".into(), LEASE).await {
            Ok(IdempotencyClaim::New { token, .. }) => token,
            Ok(_) => {
                sleep(Duration::from_millis(1)).await;
                continue;
            }
            Err(error) => {
                assert!(error.is_transient(), "{error}");
                sleep(Duration::from_millis(5)).await;
                continue;
            }
        };
        say("takes", token.fence);
        turns += 1;
        sleep(Duration::from_millis(2)).await;
        say("gives", token.fence);
        while let Err(error) = keys.release(token.clone(), Release::Failed).await {
            assert!(error.is_transient(), "{error}");
            sleep(Duration::from_millis(5)).await;
        }
    }
}

fn start(url: &str, log: &std::path::Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "one_key::as_another_process"])
        .env(URL, url)
        .env(LOG, log)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_is_with_one_process_at_a_time_while_the_server_restarts() {
    let Some(mut server) = own(Version::Usual) else { return };
    let log = tempfile::NamedTempFile::new().unwrap();
    let children = [(); 2].map(|()| start(server.url(), log.path()));
    let waiting = tokio::task::spawn_blocking(move || {
        children.map(|child| child.wait_with_output().unwrap())
    });
    let deadline = Instant::now() + 3 * PATIENCE;
    while !waiting.is_finished() {
        assert!(Instant::now() < deadline, "they end");
        sleep(Duration::from_millis(100)).await;
        server.kill().unwrap();
        server.restart().unwrap();
    }
    for output in waiting.await.unwrap() {
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    }
    let text = std::fs::read_to_string(log.path()).unwrap();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len() as u32, 2 * 2 * TURNS);
    let mut last = 0;
    for pair in lines.chunks(2) {
        let fence = |line: &str, what: &str| line.strip_prefix(what)?.trim().parse::<u64>().ok();
        let (takes, gives) = (fence(pair[0], "takes"), fence(pair[1], "gives"));
        assert!(takes.is_some() && takes == gives, "two have it at once: {pair:?}");
        assert!(takes.unwrap() > last, "fences grow: {last}, then {pair:?}");
        last = takes.unwrap();
    }
    // Every turn is counted, and once, whatever answers were lost.
    let keys = open(server.url()).await;
    let IdempotencyClaim::New { attempts, crashes, .. } =
        crate::fixture::until_claimed(&keys, "the key").await
    else {
        panic!("it was given back");
    };
    assert_eq!(attempts, 2 * TURNS);
    assert!(server.starts() > 2, "the server really died: {}", server.starts());
    println!(
        "{attempts} turns, {} starts of the server, {crashes} claims never heard of",
        server.starts()
    );
}
