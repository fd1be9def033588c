//! Functions that expansions of the macros call. Not part of the interface: they change with the macros, which are
//! pinned to them.

mod classify;
mod payload;
mod state;

use std::sync::Arc;
use std::time::Duration;

pub use self::classify::{
    ClassProbe, RetryAfter, ViaClassify, ViaHandlerError, ViaNothing, classifier, closure, pattern,
    retry_after,
};
pub use self::payload::{
    IsPayload, IsValue, PayloadProbe, ViaOther, ViaPayload, idempotency_key, order_by,
};
pub use self::state::{Annotated, AnyState, is_extractor};
pub use crate::handler::BoxClassifier;
use crate::handler::HandlerBuilder;
pub use dlq_core::policy::{Backoff, Jitter, PanicPolicy, RetryPolicy};
pub use dlq_core::{Classification, Classify, ErrorClass};

/// A duration that was checked when the attribute was read.
#[must_use]
pub const fn duration(seconds: u64, nanos: u32) -> Duration {
    Duration::new(seconds, nanos)
}

/// Joins the module path and the function's name with dots, which names may have in every transport.
#[must_use]
pub fn default_name(module: &str, function: &str) -> String {
    let mut name = String::with_capacity(module.len() + 1 + function.len());
    for part in module.split("::") {
        // The mark of a raw identifier is no part of the name.
        name.push_str(part.strip_prefix("r#").unwrap_or(part));
        name.push('.');
    }
    name.push_str(function);
    name
}

/// The builder of an annotated function.
pub fn annotated<H, E>(
    name: &str,
    aliases: &[&'static str],
    location: &'static str,
    function: H,
    classifier: BoxClassifier<E>,
) -> HandlerBuilder<H, (), BoxClassifier<E>> {
    let builder = HandlerBuilder::new(Arc::from(name), function, classifier).location(location);
    aliases.iter().fold(builder, |builder, alias| builder.alias(*alias))
}
