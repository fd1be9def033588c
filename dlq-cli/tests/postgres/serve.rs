use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use dlq_core::store::Sink as _;
use dlq_services::{Service, ensure_installed, or_skip};
use dlq_testkit::fixtures::letter;

use crate::fixture::command;
use crate::process::Process;
use crate::schema::Schema;

/// How long anything may take.
const DEADLINE: Duration = Duration::from_secs(60);

/// The answer at a path, as soon as it is so.
#[track_caller]
fn until(address: &str, path: &str, is_so: impl Fn(&str) -> bool) -> String {
    let began = Instant::now();
    loop {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: test\r\n\r\n").as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        if is_so(&answer) {
            return answer;
        }
        assert!(began.elapsed() < DEADLINE, "{answer}");
        std::thread::yield_now();
    }
}

/// Letters are counted, a server that stops is said to be down, and one that comes back is found again.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_goes_and_comes_back_is_served_again() {
    if or_skip(Service::Postgres, ensure_installed(Service::Postgres)).is_err() {
        return;
    }
    let mut server =
        tokio::task::block_in_place(|| Service::Postgres.builder().ours().start().unwrap());
    let schema = Schema::at(server.url(), "served");
    let store = schema.store().await;
    store.put((0..3).map(letter).collect()).await.unwrap();
    let args = ["serve", "--metrics", "127.0.0.1:0", "--every", "100ms"];
    let url = schema.url_of("postgres:s3cret");
    let mut process = Process::start(command(&url, &args));
    let line = process.line().unwrap();
    let address = line.split("http://").nth(1).and_then(|rest| rest.split('/').next()).unwrap();
    tokio::task::block_in_place(|| {
        let has = |text: &'static str| move |page: &str| page.lines().any(|line| line == text);
        until(address, "/metrics", has("dlq_letters{status=\"pending\"} 3"));
        until(address, "/health", |page| page.starts_with("HTTP/1.1 200"));
        server.stop().unwrap();
        process.says("it is not reached");
        until(address, "/metrics", has("dlq_store_up 0"));
        let health = until(address, "/health", |page| page.starts_with("HTTP/1.1 503"));
        assert!(!health.contains("s3cret"), "{health}");
        server.restart().unwrap();
        process.says("it answers again");
        until(address, "/metrics", has("dlq_store_up 1"));
        until(address, "/metrics", has("dlq_letters{status=\"pending\"} 3"));
    });
    process.signal("-TERM");
    let ran = process.end();
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(!ran.err.contains("s3cret"), "{}", ran.err);
}
