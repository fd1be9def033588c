//! A consumer on Redis that the tests kill: `redis-victim FOLDER URL…`. Several URLs are those of sentinels. It runs until
//! nothing is left.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

use dlq_redis::redis::aio::MultiplexedConnection;
use dlq_redis::redis::{RedisResult, Value, from_redis_value};
use dlq_redis::{RedisTransport, redis};
use dlq_tests::redis::{LETTERS, RETRIES, Servers, TOPIC};
use dlq_tests::work::{CONSUMER, work};
use dlq_tests::{JOURNAL, Journal, START};
use dlq_tower::consumer::{Consumer, signal};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    dlq_tests::log();
    const USAGE: &str = "usage: redis-victim FOLDER URL…";
    let mut args = std::env::args().skip(1);
    let folder = PathBuf::from(args.next().ok_or(USAGE)?);
    let servers = Servers::new(args.collect());
    let journal = Journal::open(&folder.join(JOURNAL))?;
    journal.note(START, 0)?;
    let messages = RedisTransport::new(TOPIC)
        .name(CONSUMER)
        .dead_letter_stream(LETTERS)
        .lease(Duration::from_secs(2))
        .prefetch(32);
    let consumer = Consumer::on(messages, &servers.client().await?)
        .handler(work::handler().with_state(journal).build()?)
        .max_in_flight(64)
        .open()
        .await?;
    let report = consumer
        .run(async {
            tokio::select! {
                () = signal() => {}
                () = idle(&servers) => {}
            }
        })
        .await;
    println!("{report}");
    Ok(())
}

/// Waits until every message is acknowledged and none waits for a retry.
async fn idle(servers: &Servers) {
    loop {
        if let Ok(mut raw) = servers.raw().await {
            // Until the connection breaks.
            while let Ok(is_left) = is_left(&mut raw).await {
                if !is_left {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Returns true if something is left: messages that were not handed out, or are not acknowledged, or retries.
async fn is_left(raw: &mut MultiplexedConnection) -> RedisResult<bool> {
    let groups: Vec<HashMap<String, Value>> =
        redis::cmd("XINFO").arg("GROUPS").arg(TOPIC).query_async(raw).await?;
    let waiting: u64 = redis::cmd("ZCARD").arg(RETRIES).query_async(raw).await?;
    let Some(group) = groups.first() else { return Ok(true) };
    let count = |name: &str| -> RedisResult<Option<u64>> {
        Ok(from_redis_value(group.get(name).cloned().unwrap_or(Value::Nil))?)
    };
    Ok(waiting > 0 || count("lag")? != Some(0) || count("pending")? != Some(0))
}
