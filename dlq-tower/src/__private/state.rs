use crate::extract::FromDelivery;
use crate::handler::HandlerOutput;

/// Tells an annotated function from a plain one.
#[derive(Clone, Copy, Debug)]
pub struct Annotated;

/// Every state: an extractor that can be taken with it can be taken whatever state the handler is built with.
#[derive(Debug)]
pub enum AnyState {}

/// Fails to compile under the argument that is not an extractor.
pub const fn is_extractor<T: FromDelivery<S>, S>() {}

/// Fails to compile under the return type that is not one.
pub const fn is_output<T: HandlerOutput>() {}
