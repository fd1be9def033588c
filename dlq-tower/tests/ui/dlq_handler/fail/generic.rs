use dlq_tower::dlq_handler;

#[dlq_handler]
async fn charge<T: Send>(_: T) {}

fn main() {}
