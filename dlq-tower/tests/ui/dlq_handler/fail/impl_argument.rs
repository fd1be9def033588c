use dlq_tower::dlq_handler;

#[dlq_handler]
async fn charge(_: impl Send) {}

fn main() {}
