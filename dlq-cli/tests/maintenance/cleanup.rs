use std::time::Duration;

use dlq_core::store::{Actor, AuditRequest, Letters as _, Maintenance as _};
use dlq_core::{Clock as _, DeadLetter, Filter, Resolution, Status, SystemClock};
use dlq_testkit::fixtures::letter;

use crate::fixture::Bench;

/// 30 letters: each third resolved, last changed so many days ago.
async fn aged() -> Bench {
    let bench = Bench::with(Vec::new()).await;
    let now = SystemClock.now();
    let letters = (0..30).map(|n| {
        let mut letter: DeadLetter = letter(n);
        let at = now.before(Duration::from_secs(n * 86_400));
        letter.state.created_at = at;
        letter.state.updated_at = at;
        if n % 3 == 0 {
            letter.state.status = Status::Resolved;
            letter.state.resolution = Some(Resolution::Succeeded);
        }
        letter
    });
    bench.store.restore(letters.collect(), Actor::new("ana")).await.unwrap();
    bench
}

#[tokio::test]
async fn what_is_resolved_and_old_is_deleted() {
    let bench = aged().await;
    let look = bench.run(&["cleanup", "--older-than", "10d", "--dry-run"]).ok();
    assert!(look.err.contains("6 resolved letters"), "{}", look.err);
    assert!(look.err.contains("nothing was changed"), "{}", look.err);
    let look = bench.run(&["cleanup", "--older-than", "10d", "--dry-run", "-o", "json"]).ok();
    assert_eq!(look.json()["count"], 6);
    let unasked = bench.run(&["cleanup", "--older-than", "10d"]);
    assert_eq!(unasked.code, 2, "{}", unasked.err);
    assert!(unasked.err.contains("about to delete 6 letters"), "{}", unasked.err);
    assert_eq!(bench.count().await, 30);
    let args = ["cleanup", "--older-than", "10d", "--batch", "2", "--yes", "--note", "monthly"];
    assert_eq!(bench.run(&args).ok().out, "deleted: 6\n");
    assert_eq!(bench.run(&args).ok().out, "deleted: 0\n");
    assert_eq!(bench.count().await, 24);
    let audit = bench.store.audit(AuditRequest::latest(2)).await.unwrap();
    assert_eq!((audit[1].action.as_str(), audit[1].affected), ("cleanup", 6));
    assert_eq!(audit[1].by.note.as_deref(), Some("monthly"));
    assert_eq!(bench.store.verify().await.unwrap(), Vec::<String>::new());
}

#[tokio::test]
async fn evidence_is_deleted_only_when_it_is_meant() {
    let bench = aged().await;
    let pending = ["cleanup", "--older-than", "10d", "--status", "pending", "--yes"];
    let ran = bench.run(&pending);
    assert_eq!(ran.code, 2, "{}", ran.err);
    assert!(ran.err.contains("--include-unresolved"), "{}", ran.err);
    assert_eq!(bench.count().await, 30);
    let meant = [&pending[..], &["--include-unresolved", "-o", "json"]].concat();
    assert_eq!(bench.run(&meant).ok().json()["deleted"], 14);
    let left = Filter::new().with_status(Status::Resolved);
    assert_eq!(bench.store.count(left).await.unwrap(), 10);
    let nothing = bench.run(&["cleanup", "--older-than", "1d", "--consumer", "nobody"]).ok();
    assert!(nothing.err.contains("nothing to do"), "{}", nothing.err);
}

#[tokio::test]
async fn an_age_is_a_duration() {
    let bench = aged().await;
    for (args, expected) in [
        (&["cleanup"] as &[&str], "--older-than"),
        (&["cleanup", "--older-than", "30"], "has no unit"),
        (&["cleanup", "--older-than", "a month"], "not a duration"),
        (&["cleanup", "--older-than", "1d", "--batch", "0"], "0 is not in"),
    ] {
        let ran = bench.run(args);
        assert_eq!(ran.code, 2, "{args:?}: {}", ran.err);
        assert!(ran.err.contains(expected), "{args:?}: {}", ran.err);
    }
    assert_eq!(bench.count().await, 30);
}

#[tokio::test]
async fn more_than_was_allowed_is_not_deleted() {
    let bench = aged().await;
    let old = ["cleanup", "--older-than", "10d", "--include-unresolved", "--yes"];
    for (args, expected) in [
        (&[&old[..], &["--max", "19"]].concat()[..], "20 letters would be deleted, and 19 at most"),
        (
            &["delete", "--all", "--yes", "--max", "29"],
            "30 letters would be deleted, and 29 at most",
        ),
    ] {
        let ran = bench.run(args);
        assert_eq!(ran.code, 2, "{args:?}: {}", ran.err);
        assert!(ran.err.contains(expected), "{args:?}: {}", ran.err);
    }
    assert_eq!(bench.count().await, 30);
    let look = bench.run(&["delete", "--all", "--max", "1", "--dry-run"]).ok();
    assert!(look.err.contains("30 letters match"), "{}", look.err);
    // Resolved letters are what a cleanup is for.
    assert_eq!(bench.run(&[&old[..3], &["--max", "1", "--yes"]].concat()).ok().out, "deleted: 6\n");
    assert_eq!(bench.run(&[&old[..], &["--max", "14"]].concat()).ok().out, "deleted: 14\n");
    assert_eq!(bench.run(&["delete", "--all", "--yes", "--max", "0"]).ok().out, "deleted: 10\n");
}
