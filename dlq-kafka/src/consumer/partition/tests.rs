use dlq_core::{Delivery, Message, Origin, Position};

use super::*;
use crate::consumer::handover::ROOM;

impl Partition {
    fn receive_one(&self, offset: u64) -> Received {
        let mut received = Received::default();
        self.receive([(offset, &mut received)].into_iter());
        received
    }
}

fn open() -> Partition {
    let partition = Partition::new(1, "orders".into(), 0, None);
    partition.found(Some((5, "")));
    partition.opened();
    partition
}

#[test]
fn what_ends_after_it_was_given_up_counts_no_more() {
    let partition = open();
    let one = partition.receive_one(5);
    let two = partition.receive_one(6);
    partition.done(one.sequence).unwrap();
    assert_eq!(partition.close(true), Some((6, "dlq1;clean".to_owned())));
    assert!(partition.done(two.sequence).is_err());
    assert_eq!(partition.close(true), None, "it is given up once");
    assert_eq!(partition.news(), None, "nothing is said after the last word");
}

#[test]
fn g3_a_record_beyond_a_gap_is_a_suspect_too() {
    let partition = Partition::new(1, "orders".into(), 0, None);
    partition.found(Some((500, "dlq1;open;by=9;deaths=1;until=1000")));
    partition.opened();
    assert_eq!([500, 50_000].map(|offset| partition.receive_one(offset).deaths), [2, 2]);
    let partition = Partition::new(1, "orders".into(), 0, None);
    partition.found(Some((500, "dlq1;open;by=9;handed=510;deaths=1;until=505;careful=900")));
    let deaths = [500, 509, 510, 50_000].map(|offset| partition.receive_one(offset).deaths);
    assert_eq!(deaths, [2, 2, 0, 0]);
    let well = open();
    assert_eq!([5, 50_000].map(|offset| well.receive_one(offset).deaths), [0, 0]);
}

#[test]
fn g1_a_partition_without_a_commit_starts_at_the_first_record_that_came() {
    let partition = Partition::new(1, "orders".into(), 0, None);
    let start = || partition.point(false).map(|(position, _)| position);
    partition.comes(3);
    assert_eq!(start(), None, "what was committed is not known yet");
    partition.found(None);
    assert_eq!(start(), Some(3), "it has to open without another record");
    partition.comes(4);
    assert_eq!(start(), Some(3));
    let quiet = Partition::new(1, "orders".into(), 0, None);
    quiet.found(None);
    assert_eq!(quiet.point(false), None);
    quiet.comes(7);
    assert_eq!(quiet.point(false).map(|(position, _)| position), Some(7));
    let known = Partition::new(1, "orders".into(), 0, None);
    known.comes(5);
    known.found(Some((2, "")));
    assert_eq!(known.point(false).map(|(position, _)| position), Some(2));
}

#[test]
fn what_was_before_the_group_began_is_passed_over() {
    let partition = Partition::new(1, "orders".into(), 0, None);
    assert!(partition.begins_at(7));
    assert_eq!(partition.point(false).map(|(position, _)| position), Some(7));
    let passed = [3, 4, 9, 3].map(|offset| partition.passes_over(offset));
    assert_eq!(passed, [Some(Some(7)), Some(None), None, None]);
}

#[test]
fn g5_the_client_does_not_go_back_to_what_has_come() {
    let partition = Partition::new(1, "orders".into(), 0, None);
    assert!(partition.begins_at(7));
    assert!((3..7).all(|offset| partition.passes_over(offset).is_some()));
    assert!(partition.is_before_end());
    assert!((7..=10).all(|offset| partition.passes_over(offset).is_none()));
    assert!(!partition.is_before_end(), "7 to 10 would come again");
}

#[test]
fn g1_an_end_without_records_is_passed_unless_something_has_come() {
    let partition = open();
    assert_eq!(partition.rests_at(), Some(5));
    partition.passes(5, 7);
    assert_eq!(partition.news(), None, "it may be of the assignment before");
    partition.passes(5, 8);
    partition.passes(5, 5);
    partition.passes(5, 8);
    assert_eq!(partition.news(), None, "not twice in a row");
    passes(&partition, 5, 7);
    assert_eq!((partition.news().map(|news| news.0), partition.rests_at()), (Some(7), Some(7)));
    passes(&partition, 5, 9);
    assert_eq!(partition.news(), None, "it rests elsewhere");
    let received = partition.receive_one(8);
    assert_eq!(partition.rests_at(), None);
    passes(&partition, 7, 9);
    assert_eq!(partition.point(false).map(|point| point.0), Some(8));
    partition.done(received.sequence).unwrap();
    assert_eq!(partition.rests_at(), Some(9));
    partition.close(true);
    passes(&partition, 9, 10);
    assert_eq!(partition.point(false), None);
}

fn passes(partition: &Partition, from: u64, to: u64) {
    partition.passes(from, to);
    partition.passes(from, to);
}

#[test]
fn g1_a_record_before_what_was_taken_for_the_end_takes_the_commit_back() {
    let partition = open();
    passes(&partition, 5, 7);
    assert_eq!(partition.news().map(|news| news.0), Some(7));
    let received = partition.receive_one(5);
    assert_eq!(partition.news().map(|news| news.0), Some(5));
    partition.receive_one(6);
    assert_eq!(partition.news(), None);
    partition.done(received.sequence).unwrap();
    assert_eq!(partition.news().map(|news| news.0), Some(6));
}

#[test]
fn only_news_is_committed() {
    let partition = open();
    let records = [5, 6].map(|offset| partition.receive_one(offset));
    assert_eq!(partition.news(), None);
    partition.done(records[1].sequence).unwrap();
    let (position, metadata) = partition.news().expect("what is done behind it is told");
    assert!(position == 5 && metadata.ends_with(";done=5:BB"), "{metadata}");
    assert_eq!(partition.news(), None);
    partition.done(records[0].sequence).unwrap();
    assert_eq!(partition.news().map(|(position, _)| position), Some(7));
    assert_eq!(partition.news(), None);
    partition.not_committed();
    assert_eq!(partition.news().map(|(position, _)| position), Some(7));
}

#[test]
fn a_partition_that_was_never_ours_by_word_leaves_nothing() {
    let partition = Partition::new(1, "orders".into(), 0, None);
    assert_eq!(partition.close(true), None);
}

#[test]
fn g1_what_an_owner_before_has_done_is_passed_over_and_nothing_else() {
    let found = || {
        let partition = Partition::new(1, "orders".into(), 0, None);
        partition.found(Some((5, "dlq1;clean;done=5:BB")));
        partition.opened();
        partition
    };
    let is_done = |partition: &Partition, offset| partition.receive_one(offset).is_done;
    let partition = found();
    let first = partition.receive_one(5);
    assert_eq!([6, 7].map(|offset| is_done(&partition, offset)), [true, false]);
    assert_eq!(partition.news(), None);
    partition.done(first.sequence).unwrap();
    assert_eq!(partition.news().map(|news| news.0), Some(7));
    // What the position stands at is not there any more.
    let partition = found();
    assert!(is_done(&partition, 6));
    assert_eq!(partition.news().map(|news| news.0), Some(7));
    assert_eq!(partition.rests_at(), Some(7));
    // The log is another than that of the commit.
    let partition = found();
    assert_eq!([3, 6].map(|offset| is_done(&partition, offset)), [false, false]);
    let partition = found();
    assert_eq!([8, 5, 6].map(|offset| is_done(&partition, offset)), [false, false, false]);
}

#[test]
fn g1_what_was_deleted_before_it_was_read_is_counted_without_what_was_done() {
    let partition = Partition::new(1, "orders".into(), 0, None);
    partition.found(Some((5, "dlq1;clean;done=5:BB")));
    partition.opened();
    partition.receive_one(9);
    let gap = partition.gap().unwrap();
    assert_eq!([5, 7, 9, 20].map(|low| gap.lost(low)), [0, 1, 3, 3]);
    partition.receive_one(11);
    assert_eq!(partition.gap(), Some(gap), "it is the longest");
    partition.looked_at(gap, 0);
    assert_eq!(partition.gap(), None);
    let partition = open();
    partition.receive_one(5);
    assert_eq!(partition.gap(), None);
    let partition = open();
    passes(&partition, 5, 25);
    assert_eq!(partition.gap().map(|gap| gap.lost(25)), Some(20));
}

#[test]
fn g1_what_was_deleted_after_a_commit_is_counted_once() {
    let found = || {
        let partition = Partition::new(1, "orders".into(), 0, None);
        partition.found(Some((5, "dlq1;clean;done=5:BB")));
        assert_eq!(partition.unasked(), None, "it is not open");
        partition.opened();
        assert_eq!(partition.unasked(), Some(5));
        partition
    };
    let partition = found();
    assert_eq!(partition.deleted(5), None);
    assert_eq!(partition.unasked(), None);
    // Nothing is left.
    let partition = found();
    assert_eq!(partition.deleted(20).map(|gap| gap.lost(20)), Some(14));
    assert_eq!(partition.news().map(|news| news.0), Some(20));
    partition.receive_one(20);
    assert_eq!(partition.gap(), None);
    // What is left has come by then.
    let partition = found();
    partition.receive_one(20);
    assert_eq!(partition.deleted(20).map(|gap| gap.lost(20)), Some(14));
    assert_eq!(partition.gap(), None);
    assert_eq!(partition.point(false).map(|point| point.0), Some(20));
    let partition = found();
    assert!(partition.deleted(20).is_some());
    partition.receive_one(25);
    assert_eq!(partition.gap().map(|gap| gap.lost(25)), Some(5));
}

#[test]
fn g3_where_an_owner_has_died_none_is_handed_out_before_that_is_committed() {
    let partition = Partition::new(1, "orders".into(), 0, None);
    partition.found(Some((5, "dlq1;open;by=9;handed=7")));
    partition.opened();
    let sequences: Vec<_> = (5..50).map(|at| partition.receive_one(at).sequence).collect();
    assert_eq!((5..50).filter(|at| partition.admits(*at)).collect::<Vec<_>>(), [5, 6]);
    let (_, metadata) = partition.news().unwrap();
    assert!(metadata.contains(";handed=23;"), "{metadata}");
    assert!(!partition.is_free(7), "it is not committed yet");
    partition.not_committed();
    partition.committed();
    assert!(!partition.is_free(7), "it was refused");
    assert!(partition.news().is_some());
    partition.committed();
    assert_eq!((5..50).filter(|at| partition.is_free(*at)).max(), Some(22));
    assert!(partition.awaits());
    assert_eq!(partition.news(), None, "nobody takes more");
    (5..23).for_each(|at| partition.handed_out(at));
    let (_, metadata) = partition.news().unwrap();
    assert!(metadata.contains(";handed=39;"), "{metadata}");
    for sequence in sequences {
        partition.done(sequence).unwrap();
    }
    let end = partition.receive_one(5_000);
    partition.done(end.sequence).unwrap();
    assert!(partition.admits(6_000), "nobody has died for a long time");
    assert!(open().admits(6_000));
}

#[test]
fn metadata_that_is_too_long_for_the_brokers_is_shortened() {
    let partition = open();
    let all: Vec<_> = (5..1_000).map(|at| partition.receive_one(at).sequence).collect();
    for sequence in all.into_iter().skip(1).step_by(2) {
        partition.done(sequence).unwrap();
    }
    let length = || partition.point(true).unwrap().1.len();
    let mut lengths = vec![length()];
    for _ in 0..16 {
        partition.shortens();
        lengths.push(length());
    }
    assert!(lengths[0] > 900 && lengths[4] <= ROOM / 16, "{lengths:?}");
    assert_eq!(lengths[16], "dlq1;clean".len());
}

#[test]
fn a_hop_that_is_written_again_is_no_copy() {
    let partition = open();
    let record = claiming("1");
    assert!(partition.is_first(&record) && !partition.is_first(&record));
    partition.comes_again(&record);
    assert!(partition.is_first(&record) && !partition.is_first(&record));
}

#[test]
fn g1_a_record_that_claims_the_death_of_another_is_no_copy_of_it() {
    let partition = open();
    assert!(partition.is_first(&claiming("honest")));
    assert!(partition.is_first(&claiming("forged")), "it would be lost");
    assert!(!partition.is_first(&claiming("forged")), "this one is a copy");
}

/// A retry record of one death, whatever its bytes are.
fn claiming(payload: &'static str) -> Delivery {
    let origin = Origin::new("kafka", "orders", Position::Offset(7)).with_partition(3);
    Delivery::new(Message::new("orders", payload), origin).with_consumer("billing")
}
