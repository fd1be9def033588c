//! `SIGTERM`: it finishes what it has in hand and ends.

use dlq_tests::Journal;

use crate::victim::Victim;

#[test]
fn a_signal_ends_it_with_nothing_unsettled_and_a_second_one_is_harmless() {
    let folder = tempfile::tempdir().unwrap();
    let mut victim = Victim::start(folder.path(), &["--slow"]);
    assert_eq!(victim.progress(20), 20);
    victim.signal("TERM");
    victim.signal("TERM");
    let (report, status) = victim.end();
    assert!(status.success(), "{report}");
    assert!(report.starts_with("stopped:") && report.contains(" 0 unsettled"), "{report}");
    // It stopped in the middle, and every run that it began came to an end.
    let journal = folder.path().join("work.journal");
    let acknowledged = Journal::read(&folder.path().join("broker.journal"), "ack").unwrap();
    assert!(acknowledged.len() >= 20);
    let succeeded = Journal::read(&journal, "ok").unwrap();
    assert!(succeeded.iter().all(|n| acknowledged.contains(n)), "{succeeded:?} {acknowledged:?}");
}
