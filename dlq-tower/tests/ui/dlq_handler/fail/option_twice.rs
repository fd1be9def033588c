use dlq_tower::dlq_handler;

#[dlq_handler(timeout = "1s", timeout = "2s")]
async fn charge() {}

fn main() {}
