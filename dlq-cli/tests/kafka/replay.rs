//! Sending letters back.

use crate::fixture::Bench;

const TO_ORIGIN: [&str; 7] = ["replay", "--all", "--yes", "--to", "origin", "-o", "json"];

#[tokio::test(flavor = "multi_thread")]
async fn sent_once_however_often_it_is_asked() {
    let Some(bench) = Bench::born("once", 30).await else { return };
    let before = bench.records("once");
    let dry = bench.run(&["replay", "--all", "--to", "origin", "--dry-run", "-o", "json"]).ok();
    assert_eq!(dry.json()["plan"]["count"], 30);
    assert!(dry.err.contains("nothing was sent"), "{}", dry.err);
    assert_eq!(bench.records("once").len(), 30);

    let ran = bench.run(&TO_ORIGIN).ok();
    assert_eq!(
        (&ran.json()["sent"], &ran.json()["failed"]),
        (&30.into(), &0.into()),
        "{}",
        ran.err
    );
    assert_eq!(bench.records("once").len(), 60);
    let ran = bench.run(&TO_ORIGIN).ok();
    assert_eq!(ran.json()["sent"], 0);
    assert!(ran.err.contains("30 more match and will be skipped: sent before"), "{}", ran.err);
    assert_eq!(bench.run(&["count", "--status", "sent"]).ok().out, "30\n");

    let again = [&TO_ORIGIN[..], &["--again", "--limit", "5", "--keep-partition"]].concat();
    assert_eq!(bench.run(&again).ok().json()["sent"], 5);
    let after = bench.records("once");
    assert_eq!(after.len(), 65);
    assert!(before.iter().all(|record| after.contains(record)));
}

#[tokio::test(flavor = "multi_thread")]
async fn some_of_them_by_place_and_key() {
    let Some(bench) = Bench::born("some", 9).await else { return };
    let args = ["replay", "--yes", "--to", "origin", "--key", "k-4", "-o", "json"];
    assert_eq!(bench.run(&args).ok().json()["sent"], 1);
    let sent = bench.records("some").into_iter().filter(|(key, _)| key == "k-4").count();
    assert_eq!(sent, 2);
    let args = ["replay", "--yes", "--to", "origin", "--partition", "0", "--offsets", "0..2"];
    let ran = bench.run(&args).ok();
    assert!(ran.out.starts_with("1 sent") || ran.out.starts_with("2 sent"), "{}", ran.out);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_handler_that_failed_hears_it_and_nobody_else() {
    let Some(bench) = Bench::born("handler", 3).await else { return };
    let refused = bench.run(&["replay", "--all", "--yes"]);
    assert_ne!(refused.code, 0, "{}", refused.out);
    assert!(refused.err.contains("handler.billing.retry.30s"), "{}", refused.err);
    bench.create("handler.retry.10s", 2).await;
    let args =
        ["replay", "--all", "--yes", "--ladder", "10s", "--ladder-names", "{topic}.retry.{delay}"];
    assert_eq!(bench.run(&args).ok().out, "3 sent\n");
    assert_eq!(bench.records("handler.retry.10s").len(), 3);
    assert_eq!(bench.records("handler").len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn interrupted_or_killed_it_goes_on_where_it_was() {
    const COUNT: usize = 200;
    let Some(bench) = Bench::born("stop", COUNT as u64).await else { return };
    let slowly = [&TO_ORIGIN[..], &["--rate", "25/s"]].concat();
    // Until so many more are there, the marks of transactions among them.
    let until = |more: i64| {
        let (begun, before) = (std::time::Instant::now(), bench.written("stop"));
        while bench.written("stop") < before + more {
            assert!(begun.elapsed() < crate::fixture::PATIENCE, "messages are sent");
        }
    };
    let process = bench.start(&slowly);
    until(10);
    process.signal("-INT");
    let ran = process.end();
    assert_eq!(ran.code, 3, "{}", ran.err);
    let sent = usize::try_from(ran.json()["sent"].as_u64().unwrap()).unwrap();
    assert!(ran.err.contains("to go on: the same command"), "{}", ran.err);
    assert_eq!(bench.records("stop").len(), COUNT + sent, "what it says was sent");

    let process = bench.start(&slowly);
    until(10);
    process.kill();
    bench.run(&TO_ORIGIN).ok();
    assert_eq!(bench.records("stop").len(), 2 * COUNT, "each was sent once");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_will_not_do_is_refused_before_anything_is_sent() {
    let Some(bench) = Bench::born("refused", 2).await else { return };
    for (args, expected) in [
        (&["--yes"] as &[&str], "--all"),
        (&["--all", "--to", "origin"], "--yes"),
        (&["--all", "--yes", "--to", "nobody.keeps.this"], "nobody.keeps.this"),
        (&["--all", "--yes", "--keep-partition"], "--keep-partition"),
        (&["--all", "--yes", "--to", "origin", "--canary", "5"], "--canary"),
        (&["--all", "--yes", "--to", "origin", "--wait"], "--wait"),
        (&["--all", "--yes", "--to", "origin", "--rate", "1/h"], "1/s"),
        (&["--all", "--yes", "--to", "handler", "--ladder", "soon"], "soon"),
    ] {
        let ran = bench.run(&[&["replay"], args].concat());
        assert_eq!(ran.code, 2, "{args:?}: {}", ran.err);
        assert!(ran.err.contains(expected), "{args:?}: {}", ran.err);
    }
    assert_eq!(bench.written("refused"), 2);
    bench.create("elsewhere", 1).await;
    let other = ["replay", "--all", "--yes", "--to", "elsewhere", "-o", "json"];
    assert_eq!(bench.run(&other).ok().json()["sent"], 2);
    assert_eq!(bench.records("elsewhere").len(), 2);
}
