use dlq_tower::dlq_handler;
use dlq_tower::extract::Attempt;

#[dlq_handler(order_by = |customer: &u64| *customer)]
async fn charge(_attempt: Attempt) {}

fn main() {}
