//! The `dlq` command.

use std::process::ExitCode;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    dlq_cli::run(std::env::args_os()).await
}
