use std::time::Duration;

use dlq_core::store::{ClaimRequest, Claims as _};
use dlq_testkit::fixtures::{CONSUMER, letter};

use crate::fixture::Bench;

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_is_well_says_so() {
    let Some(bench) = Bench::with("well", vec![letter(1)]).await else { return };
    let ran = bench.run(&["check", "--deep"]).ok();
    assert_eq!(ran.out, "");
    assert!(ran.err.ends_with("is as it should be\n"), "{}", ran.err);
    assert_eq!(bench.run(&["check", "-o", "json"]).ok().json()["findings"], serde_json::json!([]));
}

/// Each finding says where, what is found, what is wanted and what to type; and what it says to type helps.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_is_said_with_exit_code_3() {
    let Some(bench) = Bench::with("wrong", (0..3).map(letter).collect()).await else { return };
    bench.run(&["replay", "--all", "--yes"]).ok();
    let request = ClaimRequest::due([CONSUMER], 2, Duration::from_nanos(1));
    assert_eq!(bench.store.claim(request).await.unwrap().len(), 2);
    let ran = bench.run(&["check", "--overdue", "1ms"]);
    assert_eq!(ran.code, 3, "{}", ran.err);
    for text in ["warning: consumer `", "unfinished claims is 2, the first since", "wanted: none"] {
        assert!(ran.out.contains(text), "{text} is not in\n{}", ran.out);
    }
    assert!(ran.err.contains("1 finding at postgres://"), "{}", ran.err);
    bench.run(&["mark", "pending", "--status", "replaying", "--consumer", CONSUMER, "--yes"]).ok();
    bench.run(&["check", "--overdue", "1ms"]).ok();

    bench.schema.sql("DROP INDEX dlq_events_by_status");
    let ran = bench.run(&["check", "-o", "json"]);
    let finding = &ran.json()["findings"][0];
    assert_eq!((ran.code, &finding["severity"]), (3, &"error".into()));
    let advice = finding["advice"].as_str().unwrap();
    bench.schema.sql(&advice[advice.find("CREATE INDEX").unwrap()..]);
    bench.run(&["check"]).ok();
}
