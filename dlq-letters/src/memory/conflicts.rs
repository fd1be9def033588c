//! A mode in which the store behaves like one that has no locks: for the proof that every verb can decide anew.

use std::future::poll_fn;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;

use dlq_core::StoreError;

use super::MemoryStore;
use super::load::Seen;
use crate::{Done, Needs, Rows, Verb};

/// Conflicts that are invented.
#[derive(Debug)]
pub(super) struct Conflicts {
    state: AtomicU64,
}

impl Conflicts {
    pub(super) const fn new(seed: u64) -> Self {
        Self { state: AtomicU64::new(seed) }
    }

    /// Returns true once in four times.
    fn is_next(&self) -> bool {
        // SplitMix64.
        const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
        let mut mixed = self.state.fetch_add(STEP, Ordering::Relaxed).wrapping_add(STEP);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)).is_multiple_of(4)
    }
}

impl MemoryStore {
    /// Decides without the lock, over rows that may have been read at different times, and writes if they are still so.
    pub(super) async fn run_optimistically<V: Verb>(
        &self,
        conflicts: &Conflicts,
        verb: V,
    ) -> Result<Done<V::Output>, StoreError> {
        loop {
            let (mut rows, mut seen) = (Rows::new(self.now()), Seen::default());
            let mut needs = Needs::default();
            verb.needs(&mut needs);
            let decided = loop {
                // The lock is released at the end of this statement, so that others change rows between two reads.
                self.world().load(&needs, &mut rows, &mut seen);
                let_others_run().await;
                match rows.attempt(&verb).transpose() {
                    Some(decided) => break decided,
                    None => needs = rows.missing().clone(),
                }
            };
            let is_invented = conflicts.is_next();
            let mut world = self.world();
            if is_invented || world.is_outdated(&seen, &rows) {
                continue;
            }
            // An error counts only now, since it may rest on rows that have changed.
            let answer = decided?;
            let note = world.commit(&rows);
            return Ok(Done { answer, note });
        }
    }
}

async fn let_others_run() {
    let mut have_run = false;
    poll_fn(|context| {
        if have_run {
            return Poll::Ready(());
        }
        have_run = true;
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
