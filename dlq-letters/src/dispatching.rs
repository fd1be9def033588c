//! The calls of [`Dispatch`](dlq_core::store::Dispatch) over any [`Backend`].

use dlq_core::store::{ClaimToken, Dispatched, Finished, TakeRequest, Takes, count_quarantined};
use dlq_core::{Death, StoreError};

use crate::Backend;
use crate::engine::chunk;
use crate::verbs::{Record, Succeed, Take};

/// Takes letters to be sent; see [`Dispatch::take`](dlq_core::store::Dispatch::take).
pub async fn take<B: Backend>(backend: &B, mut request: TakeRequest) -> Result<Takes, StoreError> {
    // All that is taken has one lease, so it is one step. With several, the lease of the first letters would run while
    // the last ones are still being taken.
    request.limit = request.limit.min(u32::try_from(backend.limits().page()).unwrap_or(u32::MAX));
    let took = backend.run("take letters to send", Take(request)).await?.answer;
    // A verb may decide several times, so letters are counted here, when its changes are durable.
    for (event, reason) in &took.capped {
        count_quarantined(event.as_deref(), *reason);
    }
    Ok(took.into())
}

/// Records what was sent; see [`Dispatch::record`](dlq_core::store::Dispatch::record).
pub async fn record<B: Backend>(
    backend: &B,
    dispatched: Vec<(ClaimToken, Dispatched)>,
) -> Result<Vec<Finished>, StoreError> {
    let mut answers = Vec::with_capacity(dispatched.len());
    // If the process dies between two pages, the letters of the later ones stay `sending`. Once their leases have
    // ended, whoever takes next asks the broker what became of them (G6).
    for page in dispatched.chunks(chunk(backend)) {
        answers.extend(backend.run("record what was sent", Record(page.to_vec())).await?.answer);
    }
    Ok(answers)
}

/// Resolves letters that were handled; see [`Dispatch::succeeded`](dlq_core::store::Dispatch::succeeded).
pub async fn succeeded<B: Backend>(backend: &B, deaths: Vec<Death>) -> Result<u64, StoreError> {
    let mut resolved = 0;
    for page in deaths.chunks(chunk(backend)) {
        resolved += backend.run("resolve handled letters", Succeed(page.to_vec())).await?.answer;
    }
    Ok(resolved)
}
