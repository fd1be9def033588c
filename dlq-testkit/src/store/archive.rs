//! Letters that were deleted: kept, listed, restored, and forgotten.

use std::time::Duration;

use dlq_core::store::{
    ArchiveFilter, ArchiveRequest, Archived, AuditRequest, Cleaned, Cleanup, Edit, Finished, Mark,
    Marked, OperationSpec, Receipt, Selection,
};
use dlq_core::{DeadLetter, Filter, LetterId, Message, Order, Resolution, Status};

use super::check::powers::*;
use super::check::{by, in_ms};
use super::{Check, StoreFixture};
use crate::fixtures::{CONSUMER, delayed_retry, hostile_messages, letter, letter_of};

const RESTORED: Marked = Marked { changed: 1, skipped: 0 };
const NOTHING: Marked = Marked { changed: 0, skipped: 0 };

impl<F: StoreFixture> Check<F> {
    async fn undelete(&self, filter: ArchiveFilter) -> Marked {
        self.store.undelete(filter, by()).await.expect("undelete answers")
    }

    async fn archived(&self) -> Vec<Archived> {
        let all = ArchiveRequest::latest(10_000);
        let page = self.store.archived(all).await.expect("archived answers");
        assert_eq!(page.next, None);
        page.letters
    }

    async fn delete_all(&self) -> Marked {
        self.store.delete(Selection::all(), by()).await.expect("delete answers")
    }

    async fn everything(&self) -> Vec<DeadLetter> {
        let mut all = Vec::new();
        for id in self.ids(&Filter::new(), Order::OldestFirst).await {
            all.push(self.get(id).await);
        }
        all
    }

    async fn actions(&self) -> Vec<(String, u64)> {
        let entries = self.store.audit(AuditRequest::latest(1_000)).await.expect("audit answers");
        entries.into_iter().map(|entry| (entry.action, entry.affected)).collect()
    }

    async fn empty_archive(&self) -> Cleaned {
        let cleanup = Cleanup::older_than(Duration::from_secs(86_400));
        let cleanup = cleanup.archived_for(Duration::ZERO);
        self.store.cleanup(cleanup, by()).await.expect("cleanup answers")
    }
}

/// Deleted letters that are restored are what they were: whatever was done to them, and whatever they carry.
pub async fn a_deleted_letter_comes_back_as_it_was<F: StoreFixture>(check: Check<F>) {
    let ids: Vec<_> = check.bury(6).await.iter().map(|letter| letter.id).collect();
    check.mark(ids[0], Mark::Quarantined).await;
    check.mark(ids[1], Mark::Resolved).await;
    check.start(OperationSpec::replay(Filter::new()).limit(2)).await;
    let claims = check.claim(2).await;
    check.succeed(&claims[0]).await;
    check.die(&claims[1]).await;
    let _ = check.store.edit(ids[5], Edit::new().payload("[]"), by()).await.expect("edit answers");
    check.enqueue(delayed_retry(&letter(9), 2, in_ms(check.now(), 600_000))).await;
    for (n, (_, message)) in (20..).zip(hostile_messages()) {
        check.put_one(&letter_of(message, n)).await;
    }
    let before = check.everything().await;
    let statistics = check.store.stats(Filter::new()).await.expect("stats answers");
    let changed = before.len() as u64;
    check.tick().await;
    assert_eq!(check.delete_all().await, Marked { changed, skipped: 0 });
    assert!(check.everything().await.is_empty());
    let archived = check.archived().await;
    assert_eq!(archived.len(), before.len());
    for letter in &before {
        let shown = archived.iter().find(|it| it.letter.id == letter.id).expect("it is listed");
        assert_eq!((&shown.deleted_by, &shown.letter), (&by(), &letter.summary()));
        assert!(shown.deleted_at > letter.state.created_at);
    }
    check.tick().await;
    // Another process restores them, so that nothing may have stayed in the one that deleted them.
    let store = check.reopened().await;
    let restored = store.undelete(ArchiveFilter::new(), by()).await.expect("undelete answers");
    assert_eq!(restored, Marked { changed, skipped: 0 });
    let now = check.everything().await;
    assert_eq!(now.len(), before.len());
    for (mut now, before) in now.into_iter().zip(before) {
        assert!(now.state.updated_at > before.state.updated_at, "it was changed");
        now.state.updated_at = before.state.updated_at;
        assert_eq!(now, before);
    }
    let counted = check.store.stats(Filter::new()).await.expect("stats answers");
    assert_eq!(format!("{:?}", counted.by_status), format!("{:?}", statistics.by_status));
    assert!(check.archived().await.is_empty(), "no copy is left");
    let all = [("undelete".to_owned(), changed), ("delete".to_owned(), changed)];
    assert_eq!(check.actions().await[..2], all);
    assert_eq!(check.undelete(ArchiveFilter::new()).await, NOTHING);
}

/// A letter that was being run, and whose lease had ended when it was deleted, comes back in nobody's hands.
pub async fn g6_a_restored_letter_is_in_nobodys_hands<F: StoreFixture>(check: Check<F>) {
    let id = check.bury(1).await[0].id;
    let operation = check.replay().await;
    let claim = check.claim_one().await;
    assert_eq!(check.delete(id).await, Marked { changed: 0, skipped: 1 }, "somebody runs it");
    check.outlast_leases().await;
    assert_eq!(check.delete(id).await.changed, 1);
    assert_eq!(check.undelete(ArchiveFilter::id(id)).await, RESTORED);
    let state = check.state(id).await;
    assert_eq!((state.status, state.due, state.operation), (Status::Pending, None, None));
    assert!(check.claim(1).await.is_empty(), "nobody has asked for another run");
    let success = dlq_core::store::Finish::Resolved(Resolution::Succeeded);
    assert_eq!(check.finish(claim.token, success).await, Finished::Stale);
    assert!(check.operation(&operation).await.state.is_final());
}

/// A record that was due when it was deleted is claimed when it is restored.
pub async fn a_restored_record_goes_on<F: StoreFixture>(check: Check<F>) {
    let record = letter(3);
    check.enqueue(delayed_retry(&record, 2, check.now())).await;
    assert_eq!(check.delete(record.id).await.changed, 1);
    assert!(check.claim(1).await.is_empty());
    assert_eq!(check.undelete(ArchiveFilter::id(record.id)).await, RESTORED);
    check.tick().await;
    assert_eq!(check.claim_one().await.letter.id, record.id);
}

/// A letter that is there again is not overwritten, and the copy stays in the archive.
pub async fn g1_a_letter_that_is_there_again_stays<F: StoreFixture>(check: Check<F>) {
    let letter = check.bury(1).await.remove(0);
    let id = ArchiveFilter::id(letter.id);
    check.mark(letter.id, Mark::Quarantined).await;
    check.delete(letter.id).await;
    assert_eq!(check.put_one(&letter).await, Receipt::Stored);
    assert_eq!(check.undelete(id.clone()).await, Marked { changed: 0, skipped: 1 });
    assert_eq!(check.status(letter.id).await, Status::Pending);
    check.tick().await;
    check.delete(letter.id).await;
    let statuses = |all: Vec<Archived>| -> Vec<_> {
        all.into_iter().map(|it| it.letter.state.status).collect()
    };
    let both = [Status::Pending, Status::Quarantined];
    assert_eq!(statuses(check.archived().await), both, "the one deleted last comes first");
    assert_eq!(check.undelete(id).await, Marked { changed: 1, skipped: 1 });
    assert_eq!(check.status(letter.id).await, Status::Pending);
    assert_eq!(statuses(check.archived().await), both[1..]);
}

/// A letter whose original message has another letter by now is not restored beside it, where the store deduplicates.
pub async fn an_original_has_one_letter<F: StoreFixture>(check: Check<F>) {
    let check = check.with_dedup().await;
    let of = |n| letter_of(Message::new("orders.created", "{}").with_id("evt"), n);
    check.put_one(&of(1)).await;
    check.delete(of(1).id).await;
    assert_eq!(check.put_one(&of(2)).await, Receipt::Stored);
    let skipped = Marked { changed: 0, skipped: 1 };
    assert_eq!(check.undelete(ArchiveFilter::id(of(1).id)).await, skipped);
    check.delete(of(2).id).await;
    assert_eq!(check.undelete(ArchiveFilter::id(of(1).id)).await, RESTORED);
    assert_eq!(check.put_one(&of(2)).await, Receipt::Merged(of(1).id), "it has its key again");
}

/// Letters are listed and restored by when and by whom they were deleted, and by what they were.
pub async fn the_archive_is_searched<F: StoreFixture>(check: Check<F>) {
    let ids: Vec<_> = check.bury(4).await.iter().map(|letter| letter.id).collect();
    for (id, who) in ids.iter().zip(["ana@ops", "ben", "ana", "anabel"]) {
        check.tick().await;
        let by = dlq_core::store::Actor::new(who);
        let deleted = check.store.delete(Selection::id(*id), by).await;
        assert_eq!(deleted.expect("delete answers").changed, 1);
    }
    let times: Vec<_> = check.archived().await.iter().rev().map(|it| it.deleted_at).collect();
    assert!(times.is_sorted(), "{times:?}");
    let found = async |filter: ArchiveFilter| -> Vec<LetterId> {
        let request = ArchiveRequest::latest(10).filter(filter);
        let page = check.store.archived(request).await.expect("archived answers");
        page.letters.iter().map(|it| it.letter.id).collect()
    };
    let filter = ArchiveFilter::new;
    assert_eq!(found(filter().deleted_by("ana")).await, [ids[2], ids[0]]);
    assert_eq!(found(filter().deleted_since(times[2])).await, [ids[3], ids[2]]);
    assert_eq!(found(filter().deleted_until(times[2])).await, [ids[1], ids[0]]);
    assert_eq!(found(ArchiveFilter::id(ids[1])).await, [ids[1]]);
    let of = |consumer: &str| filter().letters(Filter::new().with_consumer(consumer.to_owned()));
    assert_eq!(found(of("another")).await, []);
    assert_eq!(found(of(CONSUMER).deleted_by("ben")).await, [ids[1]]);
    let late = filter().deleted_by("ana").deleted_since(times[1]);
    assert_eq!(check.undelete(late).await, RESTORED);
    assert_eq!(check.ids(&Filter::new(), Order::OldestFirst).await, [ids[2]]);
}

/// More letters than one step takes are listed in pages, and restored, all of them.
pub async fn many_letters_are_restored<F: StoreFixture>(check: Check<F>) {
    let count = check.bury_at_once(230).await.len() as u64;
    assert_eq!(check.delete_all().await.changed, count);
    let (mut listed, mut after) = (Vec::new(), None);
    loop {
        let request = ArchiveRequest::latest(90).after(after);
        let page = check.store.archived(request).await.expect("archived answers");
        assert!(page.next.is_none() || page.letters.len() == 90);
        listed.extend(page.letters.into_iter().map(|it| it.letter.id));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    listed.sort_unstable();
    listed.dedup();
    assert_eq!(listed.len() as u64, count);
    let restored = check.undelete(ArchiveFilter::new()).await;
    assert_eq!(restored, Marked { changed: count, skipped: 0 });
    assert_eq!(check.count(Filter::new()).await, count);
    assert_eq!(check.actions().await[0], ("undelete".to_owned(), count), "it is one entry");
}

/// Letters that are too large for one record of the archive, or together for one step, come back byte for byte, and leave it.
pub async fn large_letters_are_archived<F: StoreFixture>(check: Check<F>) {
    let large = |n: u64| {
        // Characters that take several bytes lie across the cuts of a text.
        let payload = format!("{n}{}", "ä€".repeat(1_100_000));
        letter_of(Message::new("orders.created", payload).with_id(format!("{n}")), n)
    };
    for n in 0..2 {
        check.put_one(&large(n)).await;
    }
    check.put_one(&letter(2)).await;
    assert_eq!(check.delete_all().await, Marked { changed: 3, skipped: 0 });
    let archived = check.archived().await;
    let shown = archived.iter().find(|it| it.letter.id == large(1).id).expect("it is listed");
    assert_eq!(shown.letter, LargeLetter(large(1)).shown(shown));
    assert_eq!(check.undelete(ArchiveFilter::id(large(1).id)).await, RESTORED);
    assert_eq!(check.get(large(1).id).await.message, large(1).message);
    assert_eq!(check.empty_archive().await.archived, 2);
    assert_eq!(check.undelete(ArchiveFilter::new()).await, NOTHING);
}

/// A letter whose summary is known but for what the store decides.
struct LargeLetter(DeadLetter);

impl LargeLetter {
    fn shown(self, archived: &Archived) -> dlq_core::LetterSummary {
        self.0.with_state(archived.letter.state.clone()).summary()
    }
}

/// Two who restore the same letter restore it once.
pub async fn g2_two_restore_a_letter_once<F: StoreFixture>(check: Check<F>) {
    check.bury_at_once(5).await;
    check.delete_all().await;
    let other = check.reopened().await;
    let restore = |store: F::Store| async move { store.undelete(ArchiveFilter::new(), by()).await };
    let (one, two) = tokio::join!(restore(check.store.clone()), restore(other));
    let (one, two) = (one.expect("undelete answers"), two.expect("undelete answers"));
    assert_eq!(one.changed + two.changed, 5, "{one:?} {two:?}");
    assert_eq!(check.count(Filter::new()).await, 5);
    assert!(check.archived().await.is_empty());
}

/// Letters that are deleted for good, or by a cleanup, leave no copy.
pub async fn what_is_deleted_for_good_is_gone<F: StoreFixture>(check: Check<F>) {
    let ids: Vec<_> = check.bury(2).await.iter().map(|letter| letter.id).collect();
    let deleted = check.store.delete_for_good(Selection::id(ids[0]), by()).await;
    assert_eq!(deleted.expect("delete answers"), Marked { changed: 1, skipped: 0 });
    check.tick().await;
    let cleanup = Cleanup::older_than(Duration::ZERO).unresolved();
    let cleaned = check.store.cleanup(cleanup, by()).await.expect("cleanup answers");
    assert_eq!(cleaned, Cleaned::new(1, 0));
    assert!(check.archived().await.is_empty());
    let all = [("cleanup".to_owned(), 1), ("delete-for-good".to_owned(), 1)];
    assert_eq!(check.actions().await, all);
}

/// A cleanup forgets what was deleted long enough ago, and nothing else of the archive.
pub async fn a_cleanup_empties_the_archive<F: StoreFixture>(check: Check<F>) {
    check.bury_at_once(130).await;
    let early = letter(129).id;
    check.delete_all().await;
    assert_eq!(check.undelete(ArchiveFilter::id(early)).await, RESTORED);
    check.pass(Duration::from_millis(300)).await;
    let deleted = std::time::Instant::now();
    check.delete(early).await;
    let age = Duration::from_millis(200);
    let clean = async |archived_for| {
        let cleanup = Cleanup::older_than(Duration::ZERO).archived_for(archived_for);
        check.store.cleanup(cleanup, by()).await.expect("cleanup answers")
    };
    let cleaned = clean(age).await;
    // Where real time passes, the last one may have become old as well.
    if check.controls_time() || deleted.elapsed() < age {
        assert_eq!(cleaned, Cleaned::new(0, 129));
        let left: Vec<_> = check.archived().await.iter().map(|it| it.letter.id).collect();
        assert_eq!(left, [early]);
        assert_eq!(check.actions().await[0], ("empty-archive".to_owned(), 129));
    }
    let week = Cleanup::older_than(Duration::ZERO);
    let cleaned = check.store.cleanup(week, by()).await.expect("cleanup answers");
    assert_eq!(cleaned, Cleaned::new(0, 0), "a week has not passed");
}
