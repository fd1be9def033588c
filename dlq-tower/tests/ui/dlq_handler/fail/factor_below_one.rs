use dlq_tower::dlq_handler;

#[dlq_handler(backoff = exponential("1s", factor = 0.5))]
async fn charge() {}

fn main() {}
