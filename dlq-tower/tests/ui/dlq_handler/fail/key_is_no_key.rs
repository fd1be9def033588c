use dlq_tower::dlq_handler;

struct Customer;

#[dlq_handler(order_by = |_: &bytes::Bytes| Customer)]
async fn charge(_payload: bytes::Bytes) {}

fn main() {}
