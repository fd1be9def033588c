//! Parts that the end-to-end tests share with the programs that they kill.

mod broker;
mod feed;
mod journal;
pub mod kafka;
pub mod redis;
pub mod work;

pub use broker::{FileBroker, FileSettle};
pub use feed::{KILLER, Kind, MESSAGES, kind, message};
pub use journal::{Entry, Journal};

/// The consumer's name.
pub const CONSUMER: &str = "tests.work";
/// A line of the journal: the broker has lost what was acknowledged and how often messages were handed out.
pub const FORGOTTEN: &str = "forgotten";
/// A line of the journal: a process begins.
pub const START: &str = "start";
/// The stream that the consumer on NATS reads.
pub const STREAM: &str = "WORK";
/// The file of the journal, in the folder of a test.
pub const JOURNAL: &str = "journal";
/// The file of the store, in the folder of a test.
pub const STORE: &str = "dlq.db";
/// Runs of a message that killed the process, after which it is not run any more.
pub const MAX_CRASHES: u32 = 5;

/// Logs what happens to standard error, for whoever looks why a test has failed.
pub fn log() {
    let to = tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false);
    to.with_max_level(tracing_subscriber::filter::LevelFilter::INFO).init();
}
