use crate::extract::FromDelivery;

/// Tells an annotated function from a plain one.
#[derive(Clone, Copy, Debug)]
pub struct Annotated;

/// Every state: an extractor that can be taken with it can be taken whatever state the handler is built with.
#[derive(Debug)]
pub enum AnyState {}

/// Fails to compile under the argument that is not an extractor.
pub const fn is_extractor<T: FromDelivery<S>, S>() {}
