//! `#[cfg]` on a function holds for what is generated beside it.

use dlq_tower::dlq_handler;

#[dlq_handler]
#[cfg(any())]
async fn absent(_: NoSuchType) {}

#[dlq_handler]
#[cfg(not(any()))]
async fn present() {}

fn main() {
    let _ = present::handler().build().expect("it is complete");
}
