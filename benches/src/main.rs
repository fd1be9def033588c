//! Costs, side by side with the bare or raw thing in the same run. Ratios are printed, nothing is asserted.
//!
//! Run with `cargo run --release -p dlq-benches`; `--short` runs each bench once, small, so that it cannot rot; a name
//! runs one of them. Without the features `kafka`, `nats`, `postgres` and `redis` (`--no-default-features`) it builds quickly and
//! runs what needs no server.

mod bury;
mod claim;
mod console;
#[cfg(any(feature = "kafka", feature = "nats"))]
mod cpu;
mod failing;
mod healthy;
#[cfg(feature = "kafka")]
mod kafka;
mod letters;
mod measure;
#[cfg(feature = "nats")]
mod nats;
mod operate;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(any(feature = "kafka", feature = "nats", feature = "redis"))]
mod proxy;
mod read;
#[cfg(feature = "redis")]
mod redis_consume;
#[cfg(feature = "redis")]
mod redis_store;
mod stack;
#[cfg(any(feature = "nats", feature = "redis"))]
mod work;

use measure::Size;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let size = if args.iter().any(|arg| arg == "--short") { Size::Short } else { Size::Full };
    let wanted: Vec<&str> =
        args.iter().map(String::as_str).filter(|arg| !arg.starts_with("--")).collect();
    type Bench = fn(Size) -> Result<(), Box<dyn std::error::Error>>;
    let benches: &[(&str, Bench)] = &[
        ("stack", stack::run),
        ("bury", bury::run),
        ("claim", claim::run),
        ("operate", operate::run),
        ("read", read::run),
        ("console", console::sqlite),
        ("failing", failing::run),
        ("healthy", healthy::run),
        #[cfg(feature = "nats")]
        ("nats-consume", nats::consume::run),
        #[cfg(feature = "nats")]
        ("nats-bury", nats::bury::run),
        #[cfg(feature = "nats")]
        ("nats-replay", nats::replay::run),
        #[cfg(feature = "nats")]
        ("nats-retries", nats::retries::run),
        #[cfg(feature = "kafka")]
        ("kafka-consume", kafka::consume::run),
        #[cfg(feature = "kafka")]
        ("kafka-ladder", kafka::ladder::near),
        #[cfg(feature = "kafka")]
        ("kafka-ladder-far", kafka::ladder::far),
        #[cfg(feature = "kafka")]
        ("kafka-healthy", kafka::healthy::run),
        #[cfg(feature = "kafka")]
        ("kafka-healthy-raw", kafka::healthy::raw),
        #[cfg(feature = "kafka")]
        ("kafka-waiting", kafka::waiting::run),
        #[cfg(feature = "postgres")]
        ("postgres-bury", postgres::bury::run),
        #[cfg(feature = "postgres")]
        ("postgres-claim", postgres::claim::run),
        #[cfg(feature = "postgres")]
        ("postgres-bulk", postgres::bulk::run),
        #[cfg(all(feature = "kafka", feature = "nats", feature = "postgres"))]
        ("postgres-outbox", postgres::outbox::run),
        #[cfg(feature = "postgres")]
        ("postgres-read", postgres::read::run),
        #[cfg(feature = "postgres")]
        ("postgres-console", postgres::console::run),
        #[cfg(feature = "redis")]
        ("redis-consume", redis_consume::run),
        #[cfg(feature = "redis")]
        ("redis-store", redis_store::run),
    ];
    if cfg!(debug_assertions) {
        println!("built without --release: the figures say nothing");
    }
    for (name, bench) in benches {
        if wanted.is_empty() || wanted.contains(name) {
            println!("\n== {name}");
            bench(size)?;
        }
    }
    Ok(())
}
