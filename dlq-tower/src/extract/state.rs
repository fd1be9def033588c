use std::ops::{Deref, DerefMut};

use dlq_core::Delivery;

use super::{FromDelivery, FromRef, Rejection};

/// State that the handler was built with ([`with_state`](crate::handler::HandlerBuilder::with_state)), or a part of it
/// ([`FromRef`]). Cloned for each attempt: keep large values in an `Arc`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct State<T>(pub T);

impl<T: FromRef<S>, S> FromDelivery<S> for State<T> {
    fn from_delivery(_: &Delivery, state: &S) -> Result<Self, Rejection> {
        Ok(Self(T::from_ref(state)))
    }
}

impl<T> Deref for State<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for State<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}
