use dlq_core::Delivery;

use super::Rejection;
use crate::__private::AnyState;

/// Types that a handler can take from a delivery, as one argument. `S` is the state that the handler is built with.
///
/// Implement it for what your handlers need again and again:
///
/// ```
/// use dlq_tower::core::Delivery;
/// use dlq_tower::extract::{FromDelivery, Rejection};
///
/// struct Tenant(String);
///
/// impl<S> FromDelivery<S> for Tenant {
///     fn from_delivery(delivery: &Delivery, _: &S) -> Result<Self, Rejection> {
///         match delivery.message().headers().get_str("tenant") {
///             Some(tenant) => Ok(Self(tenant.to_owned())),
///             None => Err(Rejection::absent("expected a header `tenant`, found none")),
///         }
///     }
/// }
/// ```
///
/// It reads what is there and does not wait: what has to be fetched is fetched by the handler, where it is timed,
/// retried and classified.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be taken from a delivery",
    label = "not an extractor",
    note = "extractors are `Json<T>`, `Protobuf<T>`, `MsgPack<T>`, `Bytes`, `Key`, `Headers`, `Attempt`, `Meta`, `State<T>`, `Message`, `Delivery`, an `Option` or `Result<_, Rejection>` of one, and what implements `FromDelivery`",
    note = "the payload is taken as `Json<{Self}>`, what the handler is built with as `State<{Self}>`",
    note = "an extractor of your own that is implemented for one state type only needs `state = ThatType` in `#[dlq_handler]`"
)]
pub trait FromDelivery<S>: Sized {
    /// Takes it.
    ///
    /// # Errors
    ///
    /// When the message does not have it. The handler does not run, and the message is given up.
    fn from_delivery(delivery: &Delivery, state: &S) -> Result<Self, Rejection>;

    /// The same from a delivery that is of no further use: what a handler's last argument is taken by. Defaults to
    /// [`from_delivery`](Self::from_delivery).
    ///
    /// # Errors
    ///
    /// The same.
    fn from_last(delivery: Delivery, state: &S) -> Result<Self, Rejection> {
        Self::from_delivery(&delivery, state)
    }
}

/// A part of the state `S`, for [`State`](super::State). Every type is a part of itself.
///
/// ```
/// use dlq_tower::extract::FromRef;
///
/// #[derive(Clone)]
/// struct Gateway;
/// struct App { gateway: Gateway }
///
/// impl FromRef<App> for Gateway {
///     fn from_ref(app: &App) -> Self {
///         app.gateway.clone()
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "the handler's state `{S}` has no `{Self}`",
    label = "no such state",
    note = "build the handler with `.with_state(..)`; for a part of that state, `impl FromRef<{S}> for {Self}`"
)]
pub trait FromRef<S> {
    /// The part.
    fn from_ref(state: &S) -> Self;
}

impl<T: Clone> FromRef<T> for T {
    fn from_ref(state: &T) -> Self {
        state.clone()
    }
}

// Lets an expansion ask whether an argument is an extractor before anybody has said for which state.
#[doc(hidden)]
impl<T> FromRef<AnyState> for T {
    fn from_ref(state: &AnyState) -> Self {
        match *state {}
    }
}
