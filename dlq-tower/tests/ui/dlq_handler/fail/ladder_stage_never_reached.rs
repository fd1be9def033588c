use dlq_tower::dlq_handler;

#[dlq_handler(max_attempts = 3, backoff = ladder("30s", "5m", "1h"))]
async fn charge() {}

fn main() {}
