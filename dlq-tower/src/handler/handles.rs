use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use dlq_core::Delivery;
use tower_service::Service;

use super::FunctionId;
use crate::idempotency::KeyJanitor;
use crate::stage::Verdict;

/// Handler that a consumer can run: a single one, or a router over several.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a handler that a consumer can run",
    label = "not a built handler or router",
    note = "build the handler first: `book::handler().build()?`, or `handler(name, function).build()?` for a plain function",
    note = "a router is built as well: `Router::new().route(…).build()?`"
)]
pub trait Handles:
    Service<Delivery, Response = Verdict, Error = Infallible, Future: Send>
    + Clone
    + Send
    + Sync
    + 'static
{
    /// The names whose letters it takes back: its own, and those it had before. The first is its own.
    fn names(&self) -> Vec<Arc<str>>;

    /// The name of the consumer that `delivery` is for.
    fn name_for(&self, delivery: &Delivery) -> Arc<str>;

    /// Messages of one key run one after another, in the order of the source; `None` for one that needs no order.
    fn order_key(&self, delivery: &Delivery) -> Option<Bytes>;

    /// Returns true if any message has an order key.
    fn is_ordered(&self) -> bool;

    /// The names of its handlers whose messages wait for a retry longer than the process holds them, so that something has
    /// to keep them. Defaults to none.
    fn uses_retry_queue(&self) -> Vec<Arc<str>> {
        Vec::new()
    }

    /// The functions that run, each with the names whose letters it takes, by which two functions of one name are told
    /// apart. Defaults to none, which refuses nothing.
    fn functions(&self) -> Vec<(FunctionId, Vec<Arc<str>>)> {
        Vec::new()
    }

    /// The handlers and their retry policies, as the log shows them when a consumer starts. Defaults to the names.
    fn summary(&self) -> String {
        self.names().join(", ")
    }

    /// Returns the keepers of its handlers' idempotency keys, which a consumer calls. Defaults to none.
    fn key_janitors(&self) -> Vec<KeyJanitor> {
        Vec::new()
    }

    /// The same of the handler that `delivery` is for. Defaults to all there is, which is right for one handler.
    fn key_janitors_for(&self, _delivery: &Delivery) -> Vec<KeyJanitor> {
        self.key_janitors()
    }
}
