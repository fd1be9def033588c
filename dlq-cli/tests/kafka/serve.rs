//! The gauges of a topic of dead letters.

use dlq_testkit::fixtures::letter;

use crate::common::dlq;
use crate::fixture::Bench;
use crate::scrape::{agree, has, served, until};

const SERVE: [&str; 5] = ["serve", "--metrics", "127.0.0.1:0", "--every", "100ms"];

#[tokio::test(flavor = "multi_thread")]
async fn what_is_in_a_topic_is_counted_without_reading_it() {
    let Some(bench) = Bench::born("measured", 6).await else { return };
    bench.create("measured.billing.retry.30s", 1).await;
    let into = bench.store_url();
    bench.run(&["ingest", "--once", "--into", &into]).ok();
    bench.put((100..103).map(letter).collect()).await;
    let (process, address) =
        served(bench.command(&[&SERVE[..], &["--consumer", "measured/billing"]].concat()));
    let lines = [
        "dlq_store_up 1",
        "dlq_broker_letters{part=\"0\"} 3",
        "dlq_broker_letters{part=\"1\"} 3",
        "dlq_broker_letters{part=\"2\"} 3",
        "dlq_broker_max_age_seconds 604800",
        "dlq_kafka_end_offset{topic=\"measured\"} 6",
        "dlq_kafka_end_offset{topic=\"measured.dlq\"} 9",
        "dlq_kafka_end_offset{topic=\"measured.billing.retry.30s\"} 0",
        "dlq_kafka_lag{topic=\"measured\",group=\"billing\"} 6",
        "dlq_kafka_lag{topic=\"measured.dlq\",group=\"dlq-ingest.measured.dlq\"} 3",
        "dlq_kafka_lag{topic=\"measured.billing.retry.30s\",group=\"billing\"} 0",
    ];
    tokio::task::block_in_place(|| {
        let page = until(&address, "/metrics", has(&lines));
        agree(
            &page,
            &[
                "dlq_store_up",
                "dlq_broker_letters",
                "dlq_broker_oldest_age_seconds",
                "dlq_broker_max_age_seconds",
                "dlq_kafka_end_offset",
                "dlq_kafka_lag",
            ],
        );
        let age = page.lines().find_map(|line| line.strip_prefix("dlq_broker_oldest_age_seconds "));
        let age: f64 = age.unwrap().parse().unwrap();
        assert!(age > 0.0 && age < 600.0, "{age}");
        let health = until(&address, "/health", |page| page.starts_with("HTTP/1.1 200"));
        assert!(health.contains("\"backlog\":9"), "{health}");
        bench.run(&["ingest", "--once", "--into", &into]).ok();
        let done = ["dlq_kafka_lag{topic=\"measured.dlq\",group=\"dlq-ingest.measured.dlq\"} 0"];
        until(&address, "/metrics", has(&done));
    });
    process.signal("-TERM");
    process.end().ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_is_not_there_yet_is_waited_for() {
    let Some(bench) = Bench::new("awaited").await else { return };
    let mut command = dlq(&SERVE);
    command.env("DLQ_FROM", format!("kafka://{}/awaited-later.dlq", bench.host));
    let (mut process, address) = served(command);
    tokio::task::block_in_place(|| {
        until(&address, "/metrics", has(&["dlq_store_up 0"]));
        process.says("it is not reached");
        let health = until(&address, "/health", |page| page.starts_with("HTTP/1.1 503"));
        assert!(health.contains("awaited-later.dlq"), "{health}");
    });
    bench.create("awaited-later.dlq", 1).await;
    tokio::task::block_in_place(|| {
        let empty = ["dlq_store_up 1", "dlq_broker_letters{part=\"0\"} 0"];
        until(&address, "/metrics", has(&empty));
    });
    process.signal("-TERM");
    process.end().ok();
}
