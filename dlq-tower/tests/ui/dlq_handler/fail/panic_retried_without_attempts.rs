use dlq_tower::dlq_handler;

#[dlq_handler(max_attempts = 1, panic = retry)]
async fn charge() {}

fn main() {}
