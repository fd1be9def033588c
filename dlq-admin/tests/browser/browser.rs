//! The `chromedriver` that tests share, and the few browsers that they take in turn.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use dlq_services::require_chromium;
use dlq_services::tools::Chromium;
use fantoccini::{Client, ClientBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use serde_json::{Map, Value, json};
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Mutex as AsyncMutex, MutexGuard};
use tokio::time::timeout;

/// Time after which a test gives up what must come.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// Number of browsers. More of them only wait for the same cores.
const BROWSERS: usize = 2;

/// Browsers, until the last test that runs has ended.
#[derive(Debug)]
pub(crate) struct Browsers {
    pub(crate) runtime: Runtime,
    driver: Child,
    port: u16,
    program: Chromium,
    /// Each is started when it is first needed.
    clients: [AsyncMutex<Option<Client>>; BROWSERS],
    profiles: TempDir,
}

impl Browsers {
    /// Returns the browsers that other tests use now, or starts some. `None` where none is to be had, which was said aloud.
    pub(crate) fn get() -> Option<Arc<Self>> {
        static SHARED: Mutex<Weak<Browsers>> = Mutex::new(Weak::new());
        let mut shared = SHARED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(browsers) = shared.upgrade() {
            return Some(browsers);
        }
        let browsers = Arc::new(Self::start(require_chromium().ok()?));
        *shared = Arc::downgrade(&browsers);
        Some(browsers)
    }

    fn start(program: Chromium) -> Self {
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let (driver, port) = start_driver(&program).recv_timeout(PATIENCE).unwrap();
        let clients = Default::default();
        Self { runtime, driver, port, program, clients, profiles: tempfile::tempdir().unwrap() }
    }

    /// Waits for a browser that no other test uses.
    pub(crate) async fn take(&self) -> MutexGuard<'_, Option<Client>> {
        let [one, other] = &self.clients;
        let (mut client, number) = tokio::select! {
            biased;
            client = one.lock() => (client, 1),
            client = other.lock() => (client, 2),
        };
        if client.is_none() {
            *client = Some(timeout(PATIENCE, self.open(number)).await.unwrap());
        }
        client
    }

    async fn open(&self, number: usize) -> Client {
        let profile = self.profiles.path().join(number.to_string());
        let profile = format!("--user-data-dir={}", profile.display());
        let arguments = [
            "--headless=new",
            // The sandbox does not work for root, and pages here are ours.
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-background-networking",
            "--disable-component-update",
            "--no-first-run",
            "--force-prefers-reduced-motion",
            // The browser ends with its driver, however that ends.
            "--remote-debugging-pipe",
            &profile,
        ];
        let options = json!({ "binary": self.program.browser, "args": arguments });
        let mut capabilities = Map::<String, Value>::new();
        capabilities.insert("goog:chromeOptions".to_owned(), options);
        let mut builder = ClientBuilder::new(HttpConnector::new());
        let url = format!("http://127.0.0.1:{}", self.port);
        builder.capabilities(capabilities).connect(&url).await.unwrap()
    }
}

impl Drop for Browsers {
    fn drop(&mut self) {
        let clients = self.clients.iter_mut().filter_map(|client| client.get_mut().take());
        for client in clients {
            // What it leaves is killed with its driver.
            let close = async { timeout(Duration::from_secs(10), client.close()).await };
            let _ = self.runtime.block_on(close);
        }
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}

/// Starts the driver in a thread of its own, since its death is tied to that of the thread that starts it.
fn start_driver(program: &Chromium) -> Receiver<(Child, u16)> {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(&program.driver).arg("--port=0");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let (sender, receiver) = sync_channel(1);
    std::thread::spawn(move || {
        let mut driver = command.spawn().unwrap();
        let mut lines = BufReader::new(driver.stdout.take().unwrap()).lines().map_while(Result::ok);
        // ChromeDriver was started successfully on port 12345.
        let port = lines.find_map(|line| {
            line.split_once("successfully on port ")?.1.trim_end_matches('.').parse::<u16>().ok()
        });
        sender.send((driver, port.unwrap())).unwrap();
        lines.for_each(drop);
    });
    receiver
}
