//! The `dlq` command: look at dead letters, group them, send them back.
//!
//! Data goes to standard output, talk to standard error. Exit codes: 0 ok, 1 error, 2 usage or refused, 3 some items
//! failed or were skipped.

mod ask;
mod cli;
mod commands;
mod error;
mod filter;
mod open;
mod output;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser as _;

/// Runs the command with these arguments (the program's name first) and returns its exit code.
pub async fn run(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let cli = match cli::Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(error) => {
            // A closed pipe behind `dlq --help | head` is nobody's error.
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    match commands::run(cli).await {
        Ok(exit) => exit,
        Err(error) => error.report(),
    }
}
