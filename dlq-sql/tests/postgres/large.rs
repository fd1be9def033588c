//! Letters that are larger than the database takes.

use dlq_core::store::{Actor, AuditRequest, Edit, Letters as _, Maintenance as _, Sink as _};
use dlq_core::{DeadLetter, Filter, LetterId, Message, StoreError, StoreErrorKind};
use dlq_testkit::fixtures::{letter, letter_of};

use crate::fixture::{Schema, available};

const LARGEST: usize = 100_000;

fn large() -> DeadLetter {
    letter_of(Message::new("orders", vec![b'x'; LARGEST]), 50)
}

fn by() -> Actor {
    Actor::new("ana")
}

fn is_refused<T: std::fmt::Debug>(done: Result<T, StoreError>, id: LetterId) {
    let error = done.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Refused, "{error}");
    for word in [id.to_string(), "101009 bytes".to_owned(), format!("at most {LARGEST}")] {
        assert!(error.to_string().contains(&word), "{error}");
    }
}

/// A letter that is too large is refused before anything is sent; those beside it are written.
#[tokio::test]
async fn what_is_too_large_is_refused_and_the_rest_written() {
    if !available() {
        return;
    }
    let schema = Schema::fresh();
    let store = schema.builder().largest(LARGEST).open().await.unwrap();
    let large = large();
    is_refused(store.put(vec![letter(0), large.clone(), letter(1)]).await, large.id);
    is_refused(store.restore(vec![letter(2), large.clone(), letter(3)], by()).await, large.id);
    let ids = (0..4).map(|n| letter(n).id);
    for id in ids {
        assert!(store.get(id).await.unwrap().is_some());
    }
    assert_eq!(store.count(Filter::new()).await.unwrap(), 4);
    let audit = store.audit(AuditRequest::latest(9)).await.unwrap();
    assert_eq!(audit.len(), 1, "{audit:?}");
    assert_eq!((audit[0].action.as_str(), audit[0].affected), ("restore", 2));
}

#[tokio::test]
async fn an_edit_that_makes_a_letter_too_large_is_refused() {
    if !available() {
        return;
    }
    let schema = Schema::fresh();
    let store = schema.builder().largest(LARGEST).open().await.unwrap();
    let one = letter_of(Message::new("orders", "small"), 1);
    store.put(vec![one.clone()]).await.unwrap();
    let before = store.get(one.id).await.unwrap();
    is_refused(store.edit(one.id, Edit::new().payload(vec![b'x'; LARGEST]), by()).await, one.id);
    assert_eq!(store.get(one.id).await.unwrap(), before);
    assert!(store.audit(AuditRequest::latest(9)).await.unwrap().is_empty());
    let edit = Edit::new().payload(vec![b'x'; LARGEST / 2]);
    assert!(store.edit(one.id, edit, by()).await.is_ok());
}
