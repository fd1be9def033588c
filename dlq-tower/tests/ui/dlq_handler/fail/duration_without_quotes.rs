use dlq_tower::dlq_handler;

#[dlq_handler(timeout = 10)]
async fn charge() {}

fn main() {}
