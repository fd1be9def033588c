use dlq_tower::dlq_handler;

struct Billing;

impl Billing {
    #[dlq_handler(max_attempts = 3)]
    async fn charge(_payload: bytes::Bytes) {}
}

fn main() {}
