//! Settings by which messages would be lost.

use crate::fixture::Bench;

#[tokio::test(flavor = "multi_thread")]
async fn what_is_set_wrongly_is_found() {
    let Some(bench) = Bench::born("checked", 1).await else { return };
    let ran = bench.run(&["check", "--consumer", "checked/billing"]);
    assert_eq!(ran.code, 3, "{}", ran.err);
    for expected in ["error: ", "checked.billing.retry.30s", "missing", "wanted: "] {
        assert!(ran.out.contains(expected), "{expected} is not in {}", ran.out);
    }
    let args = ["check", "--consumer", "checked/billing", "--ladder", "10s", "-o", "json"];
    let ran = bench.run(&args);
    let findings = ran.json()["findings"].as_array().unwrap().clone();
    let missing: Vec<_> = findings.iter().filter(|finding| finding["found"] == "missing").collect();
    assert_eq!(missing.len(), 1, "{findings:?}");
    assert!(missing[0]["subject"].as_str().unwrap().contains("checked.billing.retry.10s"));

    // Whose letters they are follows from the name.
    let ran = bench.run(&["check", "-o", "jsonl"]);
    assert!(!ran.out.contains("missing"), "{}", ran.out);
    let other = format!("kafka://{}/letters", bench.host);
    let ran = bench.run(&["check", "--from", &other]);
    assert_eq!(ran.code, 2, "{}", ran.err);
    assert!(ran.err.contains("--consumer TOPIC/GROUP"), "{}", ran.err);

    // The dead letters of another system: nobody reads retry topics of ours, unless there are some.
    bench.create("checked-dlt", 1).await;
    let springs = format!("kafka://{}/checked-dlt", bench.host);
    let args = ["check", "--from", &springs, "--consumer", "checked/spring", "-o", "json"];
    let missing = |ran: &crate::common::Ran| -> Vec<String> {
        let findings = ran.json()["findings"].as_array().unwrap().clone();
        let missing = findings.iter().filter(|finding| finding["found"] == "missing");
        missing.map(|finding| finding["subject"].as_str().unwrap().to_owned()).collect()
    };
    let ran = bench.run(&args);
    assert!(missing(&ran).is_empty(), "{}{}", ran.out, ran.err);
    let ran = bench.run(&[&args[..], &["--ladder", "10s"]].concat());
    assert_eq!(missing(&ran).len(), 1, "it was asked for: {}{}", ran.out, ran.err);
    bench.create("checked.spring.retry.5m", 1).await;
    let ran = bench.run(&args);
    assert_eq!(missing(&ran).len(), 2, "{}{}", ran.out, ran.err);

    let file = bench.file("deployment.json");
    let deployment = r#"{ "consumers": [{ "topic": "checked", "group": "billing" }] }"#;
    std::fs::write(&file, deployment).unwrap();
    assert_eq!(bench.run(&["check", "--deployment", &file]).code, 3);
    std::fs::write(&file, r#"{"consumer": 1}"#).unwrap();
    let ran = bench.run(&["check", "--deployment", &file]);
    assert_eq!(ran.code, 2, "{}", ran.err);
    assert!(ran.err.contains(&file), "{}", ran.err);
}
