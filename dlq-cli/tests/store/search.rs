//! Letters are found by what their messages hold, by every verb that takes a filter.

use dlq_core::store::Letters as _;
use dlq_core::{Filter, Status};
use dlq_testkit::fixtures::letter;
use serde_json::Value;

use crate::bench::Bench;

#[tokio::test]
async fn a_verb_means_the_letters_that_a_search_finds() {
    let bench = Bench::with((0..60).map(letter).collect()).await;
    for (args, count) in [
        (&["--payload", "order=17"] as &[&str], 1),
        (&["--payload-text", "\"ORDER\":1"], 11),
        (&["--key", "customer-3", "--key", "customer-4"], 17),
        (&["--header", "TRACE=t-4"], 1),
        (&["--key", "customer-3", "--payload", "order=4"], 0),
        (&["--payload", "order=17", "--status", "resolved"], 0),
    ] {
        let ran = bench.run(&[&["count"], args].concat()).ok();
        assert_eq!(ran.out, format!("{count}\n"), "{args:?}");
    }
    let marked = ["mark", "resolved", "--payload", "order=17", "--yes", "-o", "json"];
    assert_eq!(bench.run(&marked).ok().json()["changed"], 1);
    let resolved = Filter::new().with_status(Status::Resolved);
    assert_eq!(bench.store.count(resolved).await.unwrap(), 1);
    // What a search does not find is nothing, and not everything.
    let nothing = bench.run(&["delete", "--payload", "order=60", "--yes"]).ok();
    assert!(nothing.err.contains("0 letters match"), "{}", nothing.err);
    let nothing = bench.run(&["replay", "--payload", "order=60", "--dry-run"]).ok();
    assert!(nothing.err.contains("0 letters"), "{}{}", nothing.out, nothing.err);
    assert_eq!(bench.store.count(Filter::new()).await.unwrap(), 60);
    let refused = bench.run(&["count", "--payload", "order"]);
    assert_eq!(refused.code, 2, "{}", refused.err);
}

#[tokio::test]
async fn a_list_goes_on_where_the_search_ended() {
    let bench = Bench::with((0..60).map(letter).collect()).await;
    let mut found = Vec::new();
    let mut cursor: Option<String> = None;
    loop {
        let mut args = vec!["list", "--payload-text", "\"order\":1", "--limit", "4", "-o", "json"];
        if let Some(cursor) = &cursor {
            args.extend(["--cursor", cursor]);
        }
        let page = bench.run(&args).ok().json();
        let letters = page["letters"].as_array().unwrap();
        assert!(letters.len() <= 4);
        found.extend(letters.iter().map(|letter| letter["id"].as_str().unwrap().to_owned()));
        match &page["next"] {
            Value::String(next) => cursor = Some(next.clone()),
            _ => break,
        }
    }
    let wanted = [1, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19].map(|n| letter(n).id.to_string());
    let (mut found, mut wanted) = (found, wanted.to_vec());
    found.sort_unstable();
    wanted.sort_unstable();
    assert_eq!(found, wanted);
    let none = bench.run(&["list", "--payload-text", "nowhere"]).ok();
    assert!(none.err.contains("no letters match"), "{}", none.err);
}
