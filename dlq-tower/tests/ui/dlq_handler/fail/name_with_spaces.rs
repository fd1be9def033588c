use dlq_tower::dlq_handler;

#[dlq_handler(name = "charge a card")]
async fn charge() {}

fn main() {}
