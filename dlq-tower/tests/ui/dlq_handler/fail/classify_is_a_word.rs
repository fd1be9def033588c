use dlq_tower::dlq_handler;

#[dlq_handler(classify = "permanent")]
async fn charge() {}

fn main() {}
