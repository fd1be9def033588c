use dlq_tower::dlq_handler;
use dlq_tower::extract::Json;

#[derive(serde::Deserialize)]
struct Payment {
    id: String,
}

#[dlq_handler(idempotency_key = |payment: &Payment| payment.id)]
async fn charge(_raw: bytes::Bytes, _payment: Json<Payment>) {}

fn main() {}
