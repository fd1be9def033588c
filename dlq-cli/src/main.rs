//! The `dlq` command.
fn main() {}
