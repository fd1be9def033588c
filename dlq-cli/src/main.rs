//! The `dlq` command.

use std::process::ExitCode;

/// Allocator. Answers of a server come in many small pieces: 100,000 letters of a NATS stream are read 1.7 times as
/// fast as with the allocator of glibc.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    dlq_cli::run(std::env::args_os()).await
}
