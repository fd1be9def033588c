use dlq_tower::dlq_handler;

struct Payment;

#[dlq_handler]
async fn charge(_payment: Payment) {}

fn main() {}
