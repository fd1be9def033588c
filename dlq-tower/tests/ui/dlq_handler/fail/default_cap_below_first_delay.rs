use dlq_tower::dlq_handler;

#[dlq_handler(backoff = exponential("1m"))]
async fn charge() {}

fn main() {}
