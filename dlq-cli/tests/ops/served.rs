//! A store that is served.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use dlq_core::DeadLetter;
use dlq_core::store::Sink as _;
use dlq_sql::sqlite::SqliteStore;

use crate::common::dlq;
use crate::page::Page;
use crate::process::Process;

/// Time in which a condition must come true.
const DEADLINE: Duration = Duration::from_secs(60);

/// A file, whoever writes to it, and `dlq serve` on it.
pub(crate) struct Served {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) process: Process,
    pub(crate) address: String,
}

impl Served {
    /// Serves a new store of these letters, which is looked at so often.
    pub(crate) async fn with(letters: Vec<DeadLetter>, every: &str) -> (Self, SqliteStore) {
        let folder = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(folder.path().join("dlq.db")).await.unwrap();
        store.put(letters).await.unwrap();
        (Self::start(folder, every), store)
    }

    /// Serves `dlq.db` in this folder, whether it is there or not.
    pub(crate) fn start(folder: tempfile::TempDir, every: &str) -> Self {
        Self::start_with(folder, every, &[])
    }

    /// The same with more arguments.
    pub(crate) fn start_with(folder: tempfile::TempDir, every: &str, more: &[&str]) -> Self {
        let url = url(&folder);
        let args = ["serve", "--metrics", "127.0.0.1:0", "--every", every, "--from", &url];
        let mut process = Process::start(dlq(&[&args, more].concat()));
        let line = process.line().unwrap();
        let address = line.split("http://").nth(1).and_then(|rest| rest.split('/').next());
        let address = address.unwrap_or_else(|| panic!("{line}")).to_owned();
        Self { folder, process, address }
    }

    /// Starts another one on the same store.
    pub(crate) fn another(&self, more: &[&str]) -> Process {
        let url = self.url();
        let mut process =
            Process::start(dlq(
                &[&["serve", "--metrics", "127.0.0.1:0", "--from", &url], more].concat()
            ));
        process.says("is served at");
        process
    }

    /// Stops it in an orderly way; the store stays.
    pub(crate) fn stop(self) -> tempfile::TempDir {
        self.process.signal("-TERM");
        self.process.end().ok();
        self.folder
    }

    pub(crate) fn url(&self) -> String {
        url(&self.folder)
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("dlq.db")
    }

    /// Sends these bytes, and returns everything that comes back until the other side closes.
    pub(crate) fn send(&self, request: &[u8]) -> String {
        let mut stream = self.connect();
        stream.write_all(request).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        stream
    }

    /// The status and the body at a path.
    pub(crate) fn get(&self, path: &str) -> (u16, String) {
        let answer = self.send(format!("GET {path} HTTP/1.1\r\nHost: test\r\n\r\n").as_bytes());
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }

    pub(crate) fn scrape(&self) -> Page {
        let (status, body) = self.get("/metrics");
        assert_eq!(status, 200, "{body}");
        Page(body)
    }

    /// Scrapes until it is so.
    #[track_caller]
    pub(crate) fn until(&self, what: &str, is_so: impl Fn(&Page) -> bool) -> Page {
        let began = Instant::now();
        loop {
            let page = self.scrape();
            if is_so(&page) {
                return page;
            }
            assert!(began.elapsed() < DEADLINE, "{what} never was: {}", page.0);
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn url(folder: &tempfile::TempDir) -> String {
    format!("sqlite://{}", folder.path().join("dlq.db").display())
}
