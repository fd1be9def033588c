//! [`DeadLetters::read_only`]: letters that can only be looked at.

#![allow(clippy::unwrap_used, reason = "a test ends with the first thing that is wrong")]

use dlq_core::store::{
    Actor, AuditRequest, Edit, Maintenance as _, Mark, OperationSpec, Selection,
};
use dlq_core::{DeadLetters, Filter, PageRequest, StoreError, StoreErrorKind};
use dlq_letters::memory::MemoryStore;
use dlq_testkit::fixtures::{letter, varied};

#[tokio::test]
async fn letters_are_read_as_they_are_and_nothing_is_done_to_them() {
    let store = DeadLetters::new(MemoryStore::new());
    store.put((0..20).map(varied).collect()).await.unwrap();
    let read = DeadLetters::read_only(store.store().clone());
    let page = PageRequest::new();
    assert_eq!(
        read.list(Filter::new(), page).await.unwrap(),
        store.list(Filter::new(), page).await.unwrap()
    );
    let one = varied(3).id;
    assert_eq!(read.get(one).await.unwrap(), store.get(one).await.unwrap());
    assert_eq!(read.count(Filter::new()).await.unwrap(), 20);
    assert_eq!(read.stats(Filter::new()).await.unwrap(), store.stats(Filter::new()).await.unwrap());
    // Nobody has decided anything about a group, which is known without a store.
    let groups = read.triaged_groups(Filter::new(), 100).await.unwrap();
    assert_eq!(groups.iter().map(|it| it.group.count).sum::<u64>(), 20);

    let (by, all) = (|| Actor::new("ana"), || Selection::id(one));
    let spec = || OperationSpec::replay(Filter::new().with_id(one));
    let refused: Vec<Result<(), StoreError>> = vec![
        read.put(vec![letter(7)]).await.map(drop),
        read.edit(one, Edit::new(), by()).await.map(drop),
        read.delete(all(), by()).await.map(drop),
        read.store().mark(all(), Mark::Resolved, by()).await.map(drop),
        read.plan(spec()).await.map(drop),
        read.replay(spec(), by()).await.map(drop),
        read.operations(10).await.map(drop),
        read.consumers().await.map(drop),
        read.store().audit(AuditRequest::latest(1)).await.map(drop),
    ];
    for refused in refused {
        assert_eq!(refused.unwrap_err().kind(), StoreErrorKind::Refused);
    }
    assert_eq!(store.get(one).await.unwrap().state, read.get(one).await.unwrap().state);
}
