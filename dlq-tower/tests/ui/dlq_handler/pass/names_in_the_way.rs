//! The expansion does not stumble over the user's own names.

#![allow(dead_code, non_camel_case_types)]

struct Result;
struct Option;
struct Send;
struct Arc;
struct String;
struct Clone;
struct Debug;
mod core {}
mod std {}

#[derive(dlq_tower::Classify)]
#[classify(permanent, group = "g")]
struct Failure;

#[dlq_tower::dlq_handler(order_by = |p: &bytes::Bytes| p, timeout = "1s")]
async fn charge(_: bytes::Bytes) {}

fn main() {
    let _ = charge::handler().build().expect("it is complete");
}
