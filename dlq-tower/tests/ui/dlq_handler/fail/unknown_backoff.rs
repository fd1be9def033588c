use dlq_tower::dlq_handler;

#[dlq_handler(backoff = fibonacci("1s"))]
async fn charge() {}

fn main() {}
