//! When the feed is consumed.

use std::time::Duration;

use tower_dlq::kafka::KafkaLag;

/// Waits until nothing has moved for longer than a record waits in a retry topic. How far a group is behind does not say
/// it: after a replay there are offsets without a record.
pub(crate) async fn until_idle(lag: &KafkaLag) {
    let (mut before, mut still) = (Vec::new(), 0);
    while still < 5 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let now = lag.read().await.unwrap_or_default();
        still = if now == before { still + 1 } else { 0 };
        before = now;
    }
}
