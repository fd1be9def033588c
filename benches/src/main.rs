//! What it costs, side by side with the bare or raw thing in the same run. Ratios are printed, nothing is asserted.
//!
//! Run with `cargo run --release -p dlq-benches`; `--short` runs each bench once, small, so that it cannot rot; a name
//! runs one of them.

mod bury;
mod healthy;
mod kafka;
mod letters;
mod measure;
mod nats;
mod postgres;
mod proxy;
mod read;
mod stack;

use measure::Size;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let size = if args.iter().any(|arg| arg == "--short") { Size::Short } else { Size::Full };
    let wanted: Vec<&str> =
        args.iter().map(String::as_str).filter(|arg| !arg.starts_with("--")).collect();
    type Bench = fn(Size) -> Result<(), Box<dyn std::error::Error>>;
    let benches: [(&str, Bench); 14] = [
        ("stack", stack::run),
        ("bury", bury::run),
        ("read", read::run),
        ("healthy", healthy::run),
        ("nats-consume", nats::consume::run),
        ("nats-bury", nats::bury::run),
        ("nats-replay", nats::replay::run),
        ("kafka-consume", kafka::consume::run),
        ("kafka-ladder", kafka::ladder::run),
        ("kafka-healthy", kafka::healthy::run),
        ("kafka-waiting", kafka::waiting::run),
        ("postgres-bury", postgres::bury::run),
        ("postgres-claim", postgres::claim::run),
        ("postgres-read", postgres::read::run),
    ];
    for (name, bench) in benches {
        if wanted.is_empty() || wanted.contains(&name) {
            println!("\n== {name}");
            bench(size)?;
        }
    }
    Ok(())
}
