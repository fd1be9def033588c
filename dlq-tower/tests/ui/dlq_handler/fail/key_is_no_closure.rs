use dlq_tower::dlq_handler;

fn customer(_: &bytes::Bytes) -> u64 {
    7
}

#[dlq_handler(order_by = customer)]
async fn charge(_payload: bytes::Bytes) {}

fn main() {
    let _ = customer(&bytes::Bytes::new());
}
