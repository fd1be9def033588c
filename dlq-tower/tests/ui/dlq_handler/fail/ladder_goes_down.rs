use dlq_tower::dlq_handler;

#[dlq_handler(backoff = ladder("5m", "30s"))]
async fn charge() {}

fn main() {}
