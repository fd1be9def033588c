use dlq_tower::dlq_handler;
use dlq_tower::extract::Json;

#[derive(serde::Deserialize)]
struct Payment {
    id: String,
}

struct Order {
    id: String,
}

#[dlq_handler(order_by = |order: &Order| order.id)]
async fn charge(Json(payment): Json<Payment>) {
    drop(payment.id);
}

fn main() {}
