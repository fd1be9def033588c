//! Installs and starts the real brokers and databases that tests, benches and examples use.
//!
//! Servers come from ordinary package sources and run as child processes on free ports of the loopback interface, on
//! data of their own. They can be killed, paused, and restarted on the same data. They die with the process that
//! started them (on Linux with `setpriv`, also when it is killed).
//!
//! A URL in the environment replaces a server: `DLQ_TEST_NATS_URL`, `DLQ_TEST_KAFKA_URL`, `DLQ_TEST_POSTGRES_URL`,
//! `DLQ_TEST_REDIS_URL`, `DLQ_TEST_MONGO_URL`.
//!
//! ```no_run
//! use dlq_services::{Service, start};
//!
//! let mut nats = start(Service::Nats)?;
//! println!("{}", nats.url());
//! nats.kill()?;
//! nats.restart()?;
//! # Ok::<(), dlq_services::Error>(())
//! ```

mod cluster;
mod error;
mod folder;
mod install;
mod kafka;
mod nats;
mod port;
mod postgres;
mod process;
mod redis;
mod require;
mod running;
mod service;
mod wire;

pub use cluster::Cluster;
pub use error::{Error, ErrorKind};
pub use folder::cache;
pub use install::{KAFKA_VERSION, NATS_VERSION, ensure_installed, promtool};
pub use require::require;
pub use running::Running;
pub use service::Service;
pub use wire::{ping, postgres_query, redis_command};

/// How often a server is started on another port when it does not come up on the first.
const TRIES: usize = 3;

/// The server that the environment names, or one that is installed and started.
///
/// # Errors
///
/// When it cannot be installed, or does not become ready.
pub fn start(service: Service) -> Result<Running, Error> {
    if let Some(running) = Running::from_environment(service) {
        return Ok(running);
    }
    again(|| match service {
        Service::Nats => nats::start(),
        Service::Kafka => kafka::start(),
        Service::Postgres => postgres::start(),
        Service::Redis => redis::start(),
        Service::Mongo => Err(ensure_installed(service).err().unwrap_or_else(|| {
            Error::new(ErrorKind::Unsupported, service, "there is no recipe for it here")
        })),
    })
}

/// Three servers that are one: NATS or Kafka.
///
/// # Errors
///
/// `Unsupported` for other servers; otherwise when they cannot be installed or do not become ready.
pub fn start_cluster(service: Service) -> Result<Cluster, Error> {
    again(|| match service {
        Service::Nats => nats::cluster(),
        Service::Kafka => kafka::cluster(),
        _ => Err(Error::new(
            ErrorKind::Unsupported,
            service,
            "only nats and kafka are started as a cluster",
        )),
    })
}

/// Another process may take a port between our finding it and the server's opening it; then other ports are tried.
fn again<T>(start: impl Fn() -> Result<T, Error>) -> Result<T, Error> {
    let mut last = start();
    for _ in 1..TRIES {
        match &last {
            Err(error) if error.kind() == ErrorKind::NotReady => last = start(),
            _ => break,
        }
    }
    last
}
