use dlq_tower::dlq_handler;

#[dlq_handler(backoff = exponential("1m", max = "30s"))]
async fn charge() {}

fn main() {}
