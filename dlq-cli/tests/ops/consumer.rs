//! What a real consumer exports, through the exporter that a program would install.

use std::time::Duration;

use dlq_core::memory::MemoryBroker;
use dlq_core::store::count_quarantined;
use dlq_core::{Message, Reason};
use dlq_letters::memory::MemoryStore;
use dlq_tower::consumer::Consumer;
use dlq_tower::dlq_handler;
use dlq_tower::extract::Json;
use metrics_exporter_prometheus::PrometheusBuilder;
use tokio::time::timeout;

use crate::documented::agree;
use crate::page::Page;

#[dlq_handler(name = "orders.bill", max_attempts = 2, backoff = constant("1ms"))]
async fn bill(Json(cents): Json<i64>) -> Result<(), std::io::Error> {
    if cents < 0 { Err(std::io::Error::other("no refunds")) } else { Ok(()) }
}

#[tokio::test]
async fn a_consumer_exports_what_the_table_says() {
    let exporter = PrometheusBuilder::new().install_recorder().unwrap();
    let broker = MemoryBroker::new().stream("orders");
    for payload in ["1", "-1", "not json"] {
        broker.publish(Message::new("orders.placed", payload));
    }
    let consumer = Consumer::builder(broker.source("billing"))
        .handler(bill::handler().build().unwrap())
        .dead_letters(MemoryStore::new())
        .build()
        .unwrap();
    let consumed = async {
        broker.idle("billing").await;
        // Gauges are read from the store by a task of the consumer.
        while !exporter.render().contains("dlq_messages_quarantined{") {
            tokio::task::yield_now().await;
        }
    };
    let report = timeout(Duration::from_secs(60), consumer.run(consumed)).await.unwrap();
    assert_eq!(report.unsettled, 0, "{report}");
    // What happens only on bad days, as the code does it that day.
    count_quarantined(Some("order_placed"), Reason::MaxReplays);
    metrics::counter!(dlq_tower::audit::AUDIT_LOST_TOTAL).increment(1);
    let page = Page(exporter.render());
    agree(&page.families(), "Consumers");
    for (series, wanted) in [
        ("events_processed_total{subject=\"orders.placed\",status=\"success\"}", 1.0),
        ("events_processed_total{subject=\"orders.placed\",status=\"failed\"}", 3.0),
        ("events_processed_total{subject=\"orders.placed\",status=\"dlq\"}", 2.0),
        ("events_processing_duration_seconds_count{subject=\"orders.placed\"}", 3.0),
        ("messages_in_dlq_total{topic=\"orders.placed\",class=\"permanent\"}", 1.0),
        ("messages_in_dlq_total{topic=\"orders.placed\",class=\"transient\"}", 1.0),
        ("dlq_consumer_paused{consumer=\"orders.bill\"}", 0.0),
    ] {
        assert_eq!(page.value(series), Some(wanted), "{series}: {}", page.0);
    }
}
