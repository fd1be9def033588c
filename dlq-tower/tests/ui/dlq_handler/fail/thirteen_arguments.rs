use dlq_tower::core::Headers as H;
use dlq_tower::dlq_handler;

#[dlq_handler]
async fn charge(_: H, _: H, _: H, _: H, _: H, _: H, _: H, _: H, _: H, _: H, _: H, _: H, _: H) {}

fn main() {}
