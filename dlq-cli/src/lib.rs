//! The `dlq` command: look at dead letters, group them, send them back.
//!
//! Data goes to standard output, talk to standard error. Exit codes: 0 ok, 1 error, 2 usage or refused, 3 some items
//! failed or were skipped.

#![deny(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "they panic where nobody reads; `Output` and `say!` do not"
)]

#[macro_use]
mod say;

mod alert;
mod ask;
#[cfg(any(feature = "kafka", feature = "nats", feature = "redis"))]
mod broker;
mod cli;
mod commands;
mod contexts;
mod editor;
mod error;
mod filter;
#[cfg(feature = "kafka")]
mod kafka;
mod lines;
#[cfg(feature = "mongo")]
mod mongo;
#[cfg(feature = "nats")]
mod nats;
mod open;
mod output;
#[cfg(feature = "redis")]
mod redis;
mod secret;
mod serve;
mod signals;
#[cfg(any(feature = "kafka", feature = "nats", feature = "redis"))]
mod via;

use std::ffi::OsString;
use std::process::ExitCode;

use tracing_subscriber::EnvFilter;

/// Runs the command with these arguments (the program's name first) and returns its exit code.
pub async fn run(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let cli = match cli::Cli::read(args) {
        Ok(cli) => cli,
        Err(error) => {
            // A closed pipe behind `dlq --help | head` is nobody's error.
            let _ = error.print();
            // Help and version end here as well, with code 0; wrong arguments end with code 2.
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    // The log begins after the arguments were read, as help and errors of usage need none.
    log();
    // The code is returned and the process not ended here, so that `Drop` of the output and of temporary folders runs.
    match commands::run(cli).await {
        Ok(exit) => exit,
        Err(error) => error.report(),
    }
}

/// Warnings of what runs underneath go to standard error; `RUST_LOG` says which. Clients whose errors the command reports
/// itself are silent.
fn log() {
    let filter = EnvFilter::try_from_default_env();
    let filter = filter.unwrap_or_else(|_| EnvFilter::new("warn,async_nats=off,sqlx=off"));
    // A program that runs the command may log in its own way.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        // A warning of a client may quote the URL of the server, and with it the password.
        .with_writer(|| secret::Hiding(std::io::stderr()))
        .with_ansi(false)
        .try_init();
}
