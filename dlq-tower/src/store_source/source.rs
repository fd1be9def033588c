use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use dlq_core::store::{Claim, ClaimRequest, Claims, Finish};
use dlq_core::{
    Capabilities, Delivery, SharedClock, Source, StoreError, SystemClock, TransportError,
};
use tokio::sync::{Notify, Semaphore};
use tokio::time::{Instant, sleep};

use super::StoreSettle;
use super::claims::delivery_of;
use super::finish::Finisher;
use super::settle::unavailable;
use crate::metrics::Recorder;

/// Shortest pause between two requests to a store that says that something is due, and gives nothing.
const SHORTEST_POLL: Duration = Duration::from_millis(20);

type Claiming = Pin<Box<dyn Future<Output = Result<Vec<Claim>, StoreError>> + Send>>;

/// Yields what is due in a store. See the [module docs](super).
#[must_use = "a source yields nothing until it is asked"]
pub struct StoreSource<C> {
    finisher: Arc<Finisher<C>>,
    names: Vec<String>,
    lease: Duration,
    batch: u32,
    poll: Duration,
    owner: String,
    clock: SharedClock,
    waker: Arc<Notify>,
    // How long is waited at least, whatever is said to be due.
    doubt: Duration,
    // How far the store has told of what other processes make due.
    heard: u64,
    room: Option<Arc<Semaphore>>,
    // Claimed, and not yet yielded.
    claimed: VecDeque<Claim>,
    // When the leases of what is claimed began, or were extended last, at the earliest.
    leased: Instant,
    // A call that is under way outlives `next`: what it claims must not be lost with the future that asked.
    claiming: Option<Claiming>,
    closed: bool,
}

impl<C: Claims + Clone> StoreSource<C> {
    /// Claims the due letters of these consumers in `claims`; without a name, none.
    pub fn new<N: Into<String>>(claims: C, names: impl IntoIterator<Item = N>) -> Self {
        Self {
            finisher: Arc::new(Finisher::new(claims, Recorder::new())),
            names: names.into_iter().map(Into::into).collect(),
            lease: Duration::from_secs(30),
            batch: 32,
            poll: Duration::from_secs(1),
            owner: String::new(),
            clock: SystemClock::shared(),
            waker: Arc::new(Notify::new()),
            doubt: SHORTEST_POLL,
            heard: 0,
            room: None,
            claimed: VecDeque::new(),
            leased: Instant::now(),
            claiming: None,
            closed: false,
        }
    }

    /// Sets how long a claim lasts without being extended; at least a millisecond. Defaults to 30 s.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease.max(Duration::from_millis(1));
        self
    }

    /// Sets how many letters are claimed in one call at most; at least 1. Defaults to 32.
    pub fn batch(mut self, batch: u32) -> Self {
        self.batch = batch.max(1);
        self
    }

    /// Sets how long the source waits at most before it asks again when nothing was due. Defaults to 1 s.
    pub fn poll(mut self, interval: Duration) -> Self {
        self.poll = interval;
        self
    }

    /// Sets who claims, for operators to see. Defaults to nobody in particular.
    pub fn owner(mut self, owner: impl Into<String>) -> Self {
        self.owner = owner.into();
        self
    }

    /// Sets the clock that due times are compared with when the source decides how long to wait. Defaults to the
    /// machine's. What is due is decided by the store's own time.
    pub fn clock(mut self, clock: SharedClock) -> Self {
        self.clock = clock;
        self
    }

    /// Sets what counts the letters that are written when a message dies again. Defaults to a recorder of its own.
    pub fn recorder(mut self, recorder: Recorder) -> Self {
        self.finisher = Arc::new(Finisher::new(self.finisher.claims().clone(), recorder));
        self
    }

    /// Notify this to make the source ask the store at once.
    #[must_use]
    pub fn waker(&self) -> Arc<Notify> {
        Arc::clone(&self.waker)
    }

    /// Claims no more at once than there is room for.
    pub(crate) fn room(mut self, room: Arc<Semaphore>) -> Self {
        self.room = Some(room);
        self
    }

    /// Returns the time for which claims may wait to be yielded before they are better given back.
    pub(crate) fn keep_alive_interval(&self) -> Duration {
        self.lease / 3
    }

    /// Gives back what was claimed and not yet yielded.
    pub(crate) async fn give_back(&mut self) {
        // The call is waited for and not dropped: what it claims would count as crashes when the leases end (G3).
        if let Some(claiming) = self.claiming.take() {
            match claiming.await {
                Ok(claims) => self.claimed.extend(claims),
                Err(error) => tracing::warn!(%error, "a claim failed while the source was closing"),
            }
        }
        let after = Duration::ZERO;
        let release = |claim: &Claim| (claim.token, Finish::Released { after });
        let finishes: Vec<_> = self.claimed.iter().map(release).collect();
        if finishes.is_empty() {
            return;
        }
        let count = finishes.len();
        match self.finisher.claims().finish(finishes).await {
            Ok(_) => self.claimed.clear(),
            // They are yielded or given back later; what was given back after all is found out when it is extended.
            Err(error) if !self.closed => {
                tracing::warn!(count, %error, "claims could not be given back; they are kept")
            }
            Err(error) => {
                self.claimed.clear();
                tracing::warn!(count, %error, "claims could not be given back: they last until their lease ends");
            }
        }
    }

    /// Extends the leases of what has waited here for long, and forgets what was lost: a lease that ended here would
    /// count as a crash, and its letter would run beside somebody else's run of it.
    async fn keep_alive(&mut self) -> Result<(), StoreError> {
        if self.claimed.is_empty() || self.leased.elapsed() < self.keep_alive_interval() {
            return Ok(());
        }
        let asked = Instant::now();
        let tokens: Vec<_> = self.claimed.iter().map(|claim| claim.token).collect();
        let mut valid = self.finisher.claims().extend(tokens, self.lease).await?.into_iter();
        self.leased = asked;
        self.claimed.retain(|_| valid.next().unwrap_or(false));
        Ok(())
    }

    fn claim(&self) -> Claiming {
        // The one that asks has room for its own.
        let room = self.room.as_ref().map_or(usize::MAX, |room| room.available_permits() + 1);
        let limit = self.batch.min(u32::try_from(room).unwrap_or(u32::MAX));
        // A request without names would claim everybody's.
        let limit = if self.names.is_empty() { 0 } else { limit };
        let request = ClaimRequest::due(self.names.iter().map(String::as_str), limit, self.lease)
            .owner(self.owner.as_str());
        let claims = self.finisher.claims().clone();
        Box::pin(async move { claims.claim(request).await })
    }

    /// Waits until something may be due.
    async fn idle(&mut self) -> Result<(), StoreError> {
        let claims = self.finisher.claims();
        let due = claims.next_due(self.names.clone()).await?;
        let longest = self.poll.max(SHORTEST_POLL);
        let left = due.map_or(longest, |due| due.since(self.clock.now()).min(longest));
        let wait = left.max(self.doubt);
        // Due by our clock and not by the store's, which has given nothing: believed less each time.
        self.doubt = if wait > left { longest.min(2 * self.doubt) } else { SHORTEST_POLL };
        tokio::select! {
            () = sleep(wait) => {}
            () = self.waker.notified() => self.doubt = SHORTEST_POLL,
            heard = claims.due_elsewhere(self.names.clone(), self.heard) => {
                self.doubt = SHORTEST_POLL;
                self.heard = heard?;
                // Where much happens, it is not asked for each.
                sleep(SHORTEST_POLL).await;
            }
        }
        Ok(())
    }
}

impl<C: Claims + Clone> Source for StoreSource<C> {
    type Settle = StoreSettle<C>;

    fn capabilities(&self) -> Capabilities {
        Capabilities::none().with_delayed_release(true)
    }

    async fn next(&mut self) -> Result<Option<(Delivery, StoreSettle<C>)>, TransportError> {
        let failed = |error| unavailable("claim letters that are due", Arc::new(error));
        loop {
            self.keep_alive().await.map_err(failed)?;
            if let Some(claim) = self.claimed.pop_front() {
                let finisher = Arc::clone(&self.finisher);
                let settle = StoreSettle::new(claim.token, self.lease, finisher);
                return Ok(Some((delivery_of(&claim), settle)));
            }
            if self.closed {
                return Ok(None);
            }
            if self.claiming.is_none() {
                self.leased = Instant::now();
                self.claiming = Some(self.claim());
            }
            if let Some(claiming) = &mut self.claiming {
                let claims = claiming.await;
                self.claiming = None;
                self.claimed.extend(claims.map_err(failed)?);
            }
            if self.claimed.is_empty() {
                self.idle().await.map_err(failed)?;
            } else {
                self.doubt = SHORTEST_POLL;
            }
        }
    }

    async fn close(&mut self) {
        self.closed = true;
        self.give_back().await;
    }
}

impl<C> fmt::Debug for StoreSource<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreSource")
            .field("names", &self.names)
            .field("lease", &self.lease)
            .field("claimed", &self.claimed.len())
            .field("closed", &self.closed)
            .finish_non_exhaustive()
    }
}
