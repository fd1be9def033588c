use std::time::Duration;

use dlq_core::store::{ClaimRequest, Claims as _};
use dlq_testkit::fixtures::{CONSUMER, letter};

use crate::bench::Bench;

#[tokio::test]
async fn a_store_that_is_well_says_so() {
    let bench = Bench::with(vec![letter(1)]).await;
    let ran = bench.run(&["check", "--deep"]).ok();
    assert_eq!(ran.out, "");
    assert!(ran.err.ends_with("is as it should be\n"), "{}", ran.err);
    assert_eq!(bench.run(&["check", "-o", "json"]).ok().json()["findings"], serde_json::json!([]));
}

/// Each finding says where, what is found, what is wanted and what to type; and what it says to type helps.
#[tokio::test]
async fn what_is_wrong_is_said_with_exit_code_3() {
    let bench = Bench::with((0..3).map(letter).collect()).await;
    bench.run(&["replay", "--all", "--yes"]).ok();
    let request = ClaimRequest::due([CONSUMER], 2, Duration::from_nanos(1));
    assert_eq!(bench.store.claim(request).await.unwrap().len(), 2);
    let ran = bench.run(&["check", "--overdue", "1ms"]);
    assert_eq!(ran.code, 3, "{}", ran.err);
    for text in ["warning: consumer `", "unfinished claims is 2, the first since", "wanted: none"] {
        assert!(ran.out.contains(text), "{text} is not in\n{}", ran.out);
    }
    assert!(ran.err.contains("1 finding at sqlite://"), "{}", ran.err);
    bench.run(&["mark", "pending", "--status", "replaying", "--consumer", CONSUMER, "--yes"]).ok();
    bench.run(&["check", "--overdue", "1ms"]).ok();
    bench.tamper("DROP INDEX dlq_events_by_status");
    let ran = bench.run(&["check", "-o", "json"]);
    assert_eq!((ran.code, &ran.json()["findings"][0]["severity"]), (3, &"error".into()));
}

#[cfg(any(feature = "kafka", feature = "nats"))]
#[tokio::test]
async fn what_is_asked_of_brokers_is_refused() {
    let bench = Bench::with(Vec::new()).await;
    let ran = bench.run(&["check", "--consumer", "ORDERS/billing"]);
    assert_eq!(ran.code, 2, "{}", ran.err);
    assert!(ran.err.contains("is a store"), "{}", ran.err);
}
