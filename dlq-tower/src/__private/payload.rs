use std::fmt;
use std::marker::PhantomData;

use bytes::Bytes;

use crate::extract::{Payload, Rejection, by_payload};
use crate::handler::HandlerBuilder;

/// Asks whether the argument `A` is the payload. Method look-up answers: `first` is [`ViaPayload`]'s where it is, else
/// [`ViaOther`]'s, which asks the rest.
pub struct PayloadProbe<A>(PhantomData<fn() -> A>);

impl<A> PayloadProbe<A> {
    /// Asks.
    pub const NEW: Self = Self(PhantomData);
}

impl<A> fmt::Debug for PayloadProbe<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PayloadProbe")
    }
}

/// The payload extractor that was found.
#[derive(Debug)]
pub struct PayloadFound<P>(PhantomData<fn() -> P>);

/// It is the payload, or may be.
pub trait ViaPayload {
    /// The payload extractor.
    type Payload;

    /// This one, whatever the rest.
    fn first<R>(&self, rest: R) -> PayloadFound<Self::Payload>;
}

impl<P: Payload> ViaPayload for PayloadProbe<P> {
    type Payload = P;

    fn first<R>(&self, _: R) -> PayloadFound<P> {
        PayloadFound(PhantomData)
    }
}

impl<P: Payload> ViaPayload for PayloadProbe<Option<P>> {
    type Payload = P;

    fn first<R>(&self, _: R) -> PayloadFound<P> {
        PayloadFound(PhantomData)
    }
}

impl<P: Payload> ViaPayload for PayloadProbe<Result<P, Rejection>> {
    type Payload = P;

    fn first<R>(&self, _: R) -> PayloadFound<P> {
        PayloadFound(PhantomData)
    }
}

/// It is something else.
pub trait ViaOther {
    /// Returns the first payload extractor, or what the rest returns.
    fn first<R>(&self, rest: R) -> R;
}

impl<A> ViaOther for &PayloadProbe<A> {
    fn first<R>(&self, rest: R) -> R {
        rest
    }
}

/// Payload extractor among the arguments of a handler.
#[diagnostic::on_unimplemented(
    message = "a key closure needs a payload, and this handler takes none",
    label = "no argument is the payload",
    note = "add the payload to the handler's arguments, e.g. `Json(order): Json<Order>`",
    note = "a key of something else is set in code: `.idempotency_key(|delivery: &Delivery| …)` on the handler"
)]
pub trait IsPayload {
    /// The payload extractor.
    type Payload: Payload;
}

impl<P: Payload> IsPayload for PayloadFound<P> {
    type Payload = P;
}

/// The payload's value is what the key closure takes a reference to. Every value is its own, and nothing else is.
#[diagnostic::on_unimplemented(
    message = "the key closure takes `&{T}`, and is given `&{Self}`, the first payload of the handler",
    label = "expected a closure of `&{Self}`",
    note = "write `|payload: &{Self}| …`; or put the extractor of `{T}` before those of other payloads, e.g. before `Bytes`"
)]
pub trait IsValue<T: ?Sized> {
    /// The value, by the name that the closure gives its type.
    fn value(&self) -> &T;
}

impl<T: ?Sized> IsValue<T> for T {
    fn value(&self) -> &T {
        self
    }
}

/// Sets the key by which a message is handled once, read from the payload that was found.
pub fn idempotency_key<H, S, C, F, T, K>(
    builder: HandlerBuilder<H, S, C>,
    _: F,
    key: K,
) -> HandlerBuilder<H, S, C>
where
    F: IsPayload,
    <F::Payload as Payload>::Value: IsValue<T>,
    T: ?Sized,
    K: Fn(&T) -> Option<Bytes> + Send + Sync + 'static,
{
    builder.idempotency_key(by_payload::<F::Payload, _, _>(move |payload| key(payload.value())))
}

/// Sets the key by which messages keep their order, read from the payload that was found.
pub fn order_by<H, S, C, F, T, K>(
    builder: HandlerBuilder<H, S, C>,
    _: F,
    key: K,
) -> HandlerBuilder<H, S, C>
where
    F: IsPayload,
    <F::Payload as Payload>::Value: IsValue<T>,
    T: ?Sized,
    K: Fn(&T) -> Option<Bytes> + Send + Sync + 'static,
{
    builder.order_by(by_payload::<F::Payload, _, _>(move |payload| key(payload.value())))
}
