//! Futures that are used for one message after another, where a handler's stack keeps them: none of their parts is made
//! anew, moved or shared once more.

use std::pin::Pin;

use dlq_core::Delivery;
use tower_service::Service;

/// A service that can do a call over in the future of an earlier one.
///
/// Its futures hold nothing of their message any more when they have given a success.
pub(crate) trait Reuse: Service<Delivery> {
    /// The same as [`call`](Service::call), in `done`: a future that this very service has made, and that has given a
    /// success.
    fn again(&mut self, done: Pin<&mut Self::Future>, delivery: Delivery);
}
