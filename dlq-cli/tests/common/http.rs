//! Asking a console.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::process::Process;

/// Time in which a condition must come true.
const DEADLINE: Duration = Duration::from_secs(120);

/// Status and body of what is said to an address.
pub(crate) fn ask(address: &str, request: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok());
    let status = status.unwrap_or_else(|| panic!("{answer}"));
    (status, answer.split_once("\r\n\r\n").unwrap().1.to_owned())
}

/// Asks for a path, with more lines of the head.
pub(crate) fn get(address: &str, path: &str, headers: &str) -> (u16, String) {
    let head =
        format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n{headers}\r\n");
    tokio::task::block_in_place(|| ask(address, &head))
}

/// Sends a form.
pub(crate) fn post(address: &str, path: &str, headers: &str, body: &str) -> (u16, String) {
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Type: application/x-www-form-urlencoded\r\n\
         Content-Length: {}\r\n{headers}\r\n{body}",
        body.len()
    );
    tokio::task::block_in_place(|| ask(address, &head))
}

/// The document at a path.
#[track_caller]
pub(crate) fn document(address: &str, path: &str) -> Value {
    let (status, body) = get(address, path, "");
    assert_eq!(status, 200, "{path}: {body}");
    serde_json::from_str(&body).unwrap()
}

/// The document at a path, as soon as it is so.
#[track_caller]
pub(crate) fn until(address: &str, path: &str, is_so: impl Fn(&Value) -> bool) -> Value {
    let began = Instant::now();
    loop {
        let found = document(address, path);
        if is_so(&found) {
            return found;
        }
        assert!(began.elapsed() < DEADLINE, "{path}: {found}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The latest replay of the log of a console, as soon as it has this state.
#[track_caller]
pub(crate) fn latest_replay(address: &str, state: &str) -> Value {
    let found = tokio::task::block_in_place(|| {
        until(address, "/api/v1/default/latest-replay", |found| {
            let found = &found["replay"]["state"];
            assert!(found == state || found == "running" || found == "stopping", "{found}");
            found == state
        })
    });
    found["replay"].clone()
}

/// A console that runs: the process, its address, and what it says about the console.
pub(crate) fn console(command: std::process::Command) -> (Process, String, String) {
    let mut process = Process::start(command);
    let line = process.line().unwrap();
    let address = line.split("http://").nth(1).and_then(|rest| rest.split('/').next());
    let address = address.unwrap_or_else(|| panic!("{line}")).to_owned();
    let said = process.line().unwrap();
    (process, address, said)
}
