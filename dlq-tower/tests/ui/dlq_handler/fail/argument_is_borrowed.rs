use std::borrow::Cow;

use dlq_tower::core::Message;
use dlq_tower::dlq_handler;
use dlq_tower::extract::Json;

#[dlq_handler]
async fn by_reference(_message: &Message) {}

#[dlq_handler]
async fn with_lifetime(_text: Json<Cow<'_, str>>) {}

fn main() {
    let _ = by_reference::handler().build();
    let _ = with_lifetime::handler().with_state(3).build();
}
