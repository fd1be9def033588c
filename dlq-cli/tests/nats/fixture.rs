//! One server for all tests that run at the same time, and a stream of dead letters for each.

use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use dlq_core::{DeadLetter, Sink as _};
use dlq_nats::async_nats::jetstream::{self, Context};
use dlq_nats::async_nats::{self, Client};
use dlq_nats::{DlqStream, NatsSink};
use dlq_services::{Running, Service, ensure_installed, or_skip};

use crate::common::{Ran, dlq};
use crate::process::Process;

/// How long a test waits for what must come.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The server, which ends with the last test that uses it.
fn server() -> Option<Arc<Running>> {
    static SERVER: Mutex<Weak<Running>> = Mutex::new(Weak::new());
    or_skip(Service::Nats, ensure_installed(Service::Nats)).ok()?;
    let mut there = SERVER.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(running) = there.upgrade() {
        return Some(running);
    }
    let running = Arc::new(Service::Nats.builder().ours().start().unwrap());
    *there = Arc::downgrade(&running);
    Some(running)
}

/// A server for one test alone.
pub(crate) fn server_in(setting: &str, value: &str) -> Option<Running> {
    or_skip(Service::Nats, ensure_installed(Service::Nats)).ok()?;
    Some(Service::Nats.builder().ours().setting(setting, value).start().unwrap())
}

/// A server for one test alone, with users; who does not say who he is, is `guest`.
pub(crate) fn server_with(setting: &str, value: &str) -> Option<Running> {
    or_skip(Service::Nats, ensure_installed(Service::Nats)).ok()?;
    let builder = Service::Nats.builder().ours().setting(setting, value);
    Some(builder.setting("no_auth_user", "guest").start().unwrap())
}

/// A stream of dead letters, and the command on it.
pub(crate) struct Bench {
    server: Arc<Running>,
    pub(crate) client: Client,
    pub(crate) context: Context,
    pub(crate) name: String,
    pub(crate) stream: DlqStream,
    pub(crate) folder: tempfile::TempDir,
}

impl Bench {
    /// One of this name; `None` where there is no server to be had.
    pub(crate) async fn new(name: &str) -> Option<Self> {
        let server = tokio::task::block_in_place(server)?;
        let client = async_nats::connect(server.url()).await.unwrap();
        let context = jetstream::new(client.clone());
        let stream = DlqStream::new()
            .name(format!("DLQ_{name}"))
            .prefix(format!("dlq-{name}"))
            .max_age(Duration::from_secs(3600));
        let folder = tempfile::tempdir().unwrap();
        Some(Self { server, client, context, name: format!("DLQ_{name}"), stream, folder })
    }

    pub(crate) async fn with(name: &str, letters: Vec<DeadLetter>) -> Option<Self> {
        let bench = Self::new(name).await?;
        bench.put(letters).await;
        Some(bench)
    }

    pub(crate) async fn put(&self, letters: Vec<DeadLetter>) {
        let sink = NatsSink::open(&self.client, self.stream.clone()).await.unwrap();
        sink.put(letters).await.unwrap();
    }

    /// Where the server is, without a stream.
    pub(crate) fn host(&self) -> &str {
        self.server.url().trim_end_matches('/')
    }

    pub(crate) fn url(&self) -> String {
        format!("{}/{}", self.host(), self.name)
    }

    pub(crate) fn file(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    pub(crate) fn store_url(&self) -> String {
        format!("sqlite://{}", self.file("dlq.db"))
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = dlq(args);
        command.env("DLQ_FROM", self.url());
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> Ran {
        tokio::task::block_in_place(|| self.command(args).output().unwrap().into())
    }

    pub(crate) fn start(&self, args: &[&str]) -> Process {
        Process::start(self.command(args))
    }
}
