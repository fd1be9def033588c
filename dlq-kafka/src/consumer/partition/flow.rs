//! Amounts of a partition in memory and in flight.

use std::sync::atomic::Ordering;

use super::Partition;

impl Partition {
    /// A record of it has come from the client.
    pub(crate) fn fetched(&self) {
        self.is_fetched.store(true, Ordering::Relaxed);
    }

    /// Returns true if a record of the partition has come. A pause may be lost while the client begins to fetch a
    /// partition, so it is paused only after this.
    pub(crate) fn is_fetched(&self) -> bool {
        self.is_fetched.load(Ordering::Relaxed)
    }

    /// Returns true if no earlier record had unreadable headers.
    pub(crate) fn is_first_unreadable(&self) -> bool {
        !self.has_unreadable.swap(true, Ordering::Relaxed)
    }

    pub(crate) fn taken(&self) {
        self.in_flight.fetch_add(1, Ordering::SeqCst);
    }

    /// A record was handed out to whoever handles it.
    pub(crate) fn handed_out(&self, offset: u64) {
        self.handed.fetch_max(offset.saturating_add(1), Ordering::Relaxed);
        // No lock is taken here where no owner has died, which is the rule.
        if self.free.load(Ordering::Relaxed) != u64::MAX {
            self.state().granted.remove(&offset);
        }
    }

    /// Removes a delivery from those in flight. Returns true if it was the last one.
    pub(crate) fn given(&self) -> bool {
        self.in_flight.fetch_sub(1, Ordering::SeqCst) == 1
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::SeqCst)
    }

    pub(crate) fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    pub(crate) fn hold(&self, bytes: usize) {
        self.held.fetch_add(1, Ordering::Relaxed);
        self.held_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn release(&self, bytes: usize) {
        self.held.fetch_sub(1, Ordering::Relaxed);
        self.held_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Returns the fill level, where 1 is the bound: of records in flight, and of records that wait.
    pub(crate) fn fullness(&self, span: u64, held: usize, held_bytes: usize) -> f64 {
        let part = |some: f64, of: f64| some / of.max(1.0);
        // While a killer may be near, few offsets are in flight at once, so another death names few suspects.
        let limit = span.min(self.limit.load(Ordering::Relaxed));
        let spanned = part(self.span.load(Ordering::Relaxed) as f64, limit as f64);
        let count = part(self.held.load(Ordering::Relaxed) as f64, held as f64);
        let bytes = part(self.held_bytes.load(Ordering::Relaxed) as f64, held_bytes as f64);
        spanned.max(count).max(bytes)
    }
}
