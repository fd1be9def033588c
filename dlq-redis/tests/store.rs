//! What the store in Redis has to pass, against a real server: the conformance suites, and what is its own.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "store/failing.rs"]
mod failing;
#[path = "store/fixture.rs"]
mod fixture;
#[path = "store/in_doubt.rs"]
mod in_doubt;
#[path = "store/others.rs"]
mod others;
#[path = "store/proxy.rs"]
mod proxy;

dlq_testkit::store_conformance!(crate::fixture::RedisFixture);
dlq_testkit::store_model!(crate::fixture::RedisFixture, 24);

/// By the clock of the server; checks with leases that last real time, and few letters.
mod own_time {
    dlq_testkit::store_conformance! { @each crate::fixture::OwnTimeFixture;
        claims:
            what_is_not_due_is_not_claimed,
            a_claim_is_seen_on_the_letter,
            a_claimed_letter_is_not_claimed_again,
            the_longest_due_comes_first,
            an_ended_lease_is_claimed_again,
            the_former_owner_is_fenced,
            an_extended_lease_keeps_the_letter,
            fences_grow_across_deletion,
            the_next_due_time_is_known;
        puts:
            a_letter_is_dated_by_the_store;
        lane:
            a_record_waits_until_it_is_due;
        pace:
            a_canary_goes_first,
            the_next_release_can_be_waited_for;
        restarts:
            letters_outlive_a_handle;
    }
}

/// Whatever the others do, the letters of each worker are as if it were alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eight_workers_agree_with_their_models() {
    if fixture::available() {
        dlq_testkit::store::workers::agree_with_their_models::<fixture::RedisFixture>(150).await;
    }
}
