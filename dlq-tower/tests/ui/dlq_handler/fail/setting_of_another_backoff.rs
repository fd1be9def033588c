use dlq_tower::dlq_handler;

#[dlq_handler(backoff = constant("1s", max = "5s"))]
async fn charge() {}

fn main() {}
