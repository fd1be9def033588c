//! The checks notice what they are for: each of these stores breaks one promise, and the checks named fail on it.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};

use dlq_letters::memory::MemoryStore;
use dlq_testkit::faulty::{Fault, FaultyStore};
use dlq_testkit::fixtures::ManualClock;
use dlq_testkit::store::{
    self, Check, MemoryFixture, StoreFixture, archive, claims, concurrency, finishes, hostile,
    lists, operations, puts, retry_queue, statistics,
};

macro_rules! faulty {
    ($name:ident: $fault:expr) => {
        struct $name(MemoryFixture, FaultyStore<MemoryStore>);

        impl StoreFixture for $name {
            type Store = FaultyStore<MemoryStore>;

            async fn fresh(check: &'static str) -> Self {
                let fixture = MemoryFixture::fresh(check).await;
                let store = FaultyStore::new(fixture.open(false).await, $fault);
                Self(fixture, store)
            }

            async fn open(&self, _dedup: bool) -> Self::Store {
                self.1.clone()
            }

            fn clock(&self) -> Option<&ManualClock> {
                self.0.clock()
            }
        }
    };
}

faulty!(Lossy: Fault::LosesEveryNth(7));
faulty!(Hiding: Fault::HidesNewDeaths);
faulty!(Fenceless: Fault::ForgetsFences);
faulty!(Generous: Fault::HandsOutTwice);
faulty!(Squeamish: Fault::RefusesNul);
faulty!(Skipping: Fault::PagesByTime);
faulty!(Capped: Fault::CapsCounts(1_000));
faulty!(Deaf: Fault::IgnoresCancel);
faulty!(Forgetful: Fault::ForgetsSuccess);
faulty!(Recordless: Fault::LosesRecords);
faulty!(Destructive: Fault::KeepsNoArchive);
faulty!(Overwriting: Fault::RestoresOver);
faulty!(Hoarding: Fault::KeepsTheArchive);

fn fails<F: StoreFixture, R: Future<Output = ()>>(check: impl FnOnce(Check<F>) -> R) {
    let ended = catch_unwind(AssertUnwindSafe(|| store::run::<F, R>("fails", check)));
    assert!(ended.is_err(), "the check did not notice");
}

#[test]
fn a_sound_store_passes() {
    store::run::<MemoryFixture, _>("passes", puts::a_large_batch_is_written_whole);
}

#[test]
fn a_lossy_store_fails() {
    fails::<Lossy, _>(puts::a_large_batch_is_written_whole);
    fails::<Lossy, _>(concurrency::nothing_written_by_many_is_lost);
    fails::<Lossy, _>(lists::pages_cover_every_letter_once);
}

#[test]
fn a_store_that_hides_new_deaths_fails() {
    fails::<Hiding, _>(puts::a_new_death_reopens_the_letter);
    fails::<Hiding, _>(operations::a_failure_during_a_replay_is_not_hidden);
    fails::<Hiding, _>(concurrency::writing_and_claiming_do_not_disturb_each_other);
}

#[test]
fn a_store_without_fences_fails() {
    fails::<Fenceless, _>(claims::the_former_owner_is_fenced);
    fails::<Fenceless, _>(claims::fences_grow_across_deletion);
}

#[test]
fn a_store_that_hands_out_twice_fails() {
    fails::<Generous, _>(claims::a_claimed_letter_is_not_claimed_again);
    fails::<Generous, _>(concurrency::eight_claimers_get_each_letter_once);
    fails::<Generous, _>(concurrency::four_replays_run_each_letter_once);
}

#[test]
fn a_store_that_refuses_content_fails() {
    fails::<Squeamish, _>(hostile::any_message_comes_back);
    fails::<Squeamish, _>(hostile::odd_errors_come_back);
}

#[test]
fn a_store_that_pages_by_time_fails() {
    fails::<Skipping, _>(lists::pages_cover_every_letter_once);
    fails::<Skipping, _>(lists::walking_is_not_disturbed_by_new_letters);
}

#[test]
fn a_store_that_caps_counts_fails() {
    fails::<Capped, _>(statistics::a_count_is_never_capped);
}

/// Its double has no way of its own, so that letters are listed.
#[test]
fn letters_are_counted_by_hour_where_a_store_can_only_list() {
    let check = statistics::letters_are_counted_by_hour;
    store::run::<Capped, _>("letters_are_counted_by_hour", check);
    fails::<Lossy, _>(statistics::letters_are_counted_by_hour);
}

#[test]
fn a_store_that_goes_on_after_a_cancel_fails() {
    fails::<Deaf, _>(operations::cancelling_stops_at_once);
    fails::<Deaf, _>(operations::cancelling_takes_back_what_waits);
}

#[test]
fn a_store_that_forgets_success_fails() {
    fails::<Forgetful, _>(finishes::success_resolves_the_letter);
    fails::<Forgetful, _>(operations::an_operation_completes_with_its_last_letter);
}

#[test]
fn a_store_that_archives_badly_fails() {
    fails::<Destructive, _>(archive::a_deleted_letter_comes_back_as_it_was);
    fails::<Destructive, _>(archive::large_letters_are_archived);
    fails::<Destructive, _>(archive::the_archive_is_searched);
    fails::<Overwriting, _>(archive::g1_a_letter_that_is_there_again_stays);
    fails::<Hoarding, _>(archive::a_cleanup_empties_the_archive);
    fails::<Hoarding, _>(archive::large_letters_are_archived);
}

#[test]
fn a_store_that_loses_retry_records_fails() {
    fails::<Recordless, _>(retry_queue::a_record_waits_until_it_is_due);
}
