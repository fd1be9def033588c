//! The calls of a store over any [`Backend`]: verbs in pages of what one step may change. [`store!`](crate::store) makes the
//! traits of `dlq-core` of them.

use std::collections::HashSet;

use dlq_core::store::{Actor, Receipt};
use dlq_core::{DeadLetter, Escalation, StoreError, StoreErrorKind};

use crate::verbs::{Escalate, Put, Restore};
use crate::{Backend, Limits};

/// Puts letters; see [`Sink::put`](dlq_core::store::Sink::put).
pub async fn put<B: Backend>(
    backend: &B,
    letters: Vec<DeadLetter>,
) -> Result<Vec<Receipt>, StoreError> {
    const DURING: &str = "put letters";
    // The others are stored first, or a letter that is too large would hold them up for ever.
    let (letters, large) = split_large(backend.limits(), letters, DURING);
    let mut receipts = Vec::with_capacity(letters.len());
    let mut letters = letters.into_iter().peekable();
    while letters.peek().is_some() {
        let page = page_of(&mut letters, backend.limits());
        let is_new = if have_different_ids(&page) {
            backend.put_new(&page).await?
        } else {
            vec![false; page.len()]
        };
        let rest = page.into_iter().zip(&is_new).filter(|(_, is_new)| !**is_new);
        let rest: Vec<_> = rest.map(|(letter, _)| letter).collect();
        let mut looked_at =
            if rest.is_empty() { Vec::new() } else { backend.run(DURING, Put(rest)).await?.answer }
                .into_iter();
        let receipt = |is_new| if is_new { Some(Receipt::Stored) } else { looked_at.next() };
        receipts.extend(is_new.into_iter().filter_map(receipt));
    }
    large.map_or(Ok(receipts), Err)
}

/// Writes a retry record; see [`RetryLane::escalate`](dlq_core::RetryLane::escalate).
pub async fn escalate<B: Backend>(backend: &B, escalation: Escalation) -> Result<(), StoreError> {
    Ok(backend.run("escalate a message", Escalate(escalation)).await?.answer)
}

/// Restores letters; see [`Upkeep::restore`](dlq_core::store::Upkeep::restore).
pub async fn restore<B: Backend>(
    backend: &B,
    letters: Vec<DeadLetter>,
    by: Actor,
) -> Result<Vec<Receipt>, StoreError> {
    const DURING: &str = "restore letters";
    let (letters, large) = split_large(backend.limits(), letters, DURING);
    let mut receipts = Vec::with_capacity(letters.len());
    let mut letters = letters.into_iter().peekable();
    loop {
        // Where there is nothing to restore the audit says so.
        let page = page_of(&mut letters, backend.limits());
        let restore = Restore { letters: page, by: by.clone() };
        receipts.extend(backend.run(DURING, restore).await?.answer);
        if letters.peek().is_none() {
            return large.map_or(Ok(receipts), Err);
        }
    }
}

/// Takes out what is larger than the store takes. Returns the others, and the error about the first.
fn split_large(
    limits: Limits,
    letters: Vec<DeadLetter>,
    during: &'static str,
) -> (Vec<DeadLetter>, Option<StoreError>) {
    if limits.largest == u64::MAX {
        return (letters, None);
    }
    let fits = |letter: &DeadLetter| Limits::size(letter) <= limits.largest;
    let (letters, large): (Vec<_>, Vec<_>) = letters.into_iter().partition(fits);
    (letters, large.first().map(|letter| too_large(letter, limits, during)))
}

pub(crate) fn too_large(letter: &DeadLetter, limits: Limits, during: &'static str) -> StoreError {
    StoreError::new(StoreErrorKind::Refused, during).with_detail(format!(
        "the letter {} has {} bytes, and the store takes at most {}; keep it in another store",
        letter.id,
        Limits::size(letter),
        limits.largest
    ))
}

/// Takes as many letters as one step writes.
fn page_of(
    letters: &mut std::iter::Peekable<std::vec::IntoIter<DeadLetter>>,
    limits: Limits,
) -> Vec<DeadLetter> {
    let (mut page, mut bytes) = (Vec::new(), 0_u64);
    while (page.len() as u64) < limits.page()
        && let Some(letter) = letters.next_if(|letter| {
            if limits.bytes < u64::MAX {
                bytes = bytes.saturating_add(Limits::size(letter));
            }
            page.is_empty() || bytes <= limits.bytes
        })
    {
        page.push(letter);
    }
    page
}

fn have_different_ids(letters: &[DeadLetter]) -> bool {
    let mut ids = HashSet::with_capacity(letters.len());
    letters.len() == 1 || letters.iter().all(|letter| ids.insert(letter.id))
}
