//! `SIGTERM`: it finishes what it has in flight and ends.

use std::time::{Duration, Instant};

use dlq_tests::{Kind, MESSAGES, kind};

use crate::history::History;
use crate::victim::Victim;

/// The deadline that the program gives its consumer.
const DEADLINE: Duration = Duration::from_secs(60);

#[test]
fn a_signal_ends_it_with_nothing_unsettled_and_a_second_one_is_harmless() {
    let folder = tempfile::tempdir().unwrap();
    // So slow that it is told long before it comes to a message that kills it.
    let victim = Victim::start(folder.path(), &["--slower"]);
    assert_eq!(victim.progress(40), 40);
    let begun = Instant::now();
    victim.signal("TERM");
    victim.signal("TERM");
    let (report, status) = victim.end();
    assert!(begun.elapsed() < DEADLINE, "it took {:?}", begun.elapsed());
    assert!(status.success(), "{status}: {report}");
    assert!(report.starts_with("stopped:") && report.contains(" 0 unsettled"), "{report}");

    // It stopped in the middle, and what it had begun came to its end, once.
    let history = History::of(folder.path(), 0);
    history.no_run_after_success();
    let good = |n: &u64| kind(*n) == Kind::Good;
    let begun: Vec<u64> =
        (0..MESSAGES).filter(good).filter(|n| history.count("run", *n) > 0).collect();
    assert!(!begun.is_empty());
    assert!(history.total("ack") < MESSAGES, "there was nothing to stop");
    for n in begun {
        let counts = ["run", "ok", "ack"].map(|what| history.count(what, n));
        assert_eq!(counts, [1, 1, 1], "message {n}");
    }
}
