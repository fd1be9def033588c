use dlq_tower::dlq_handler;

struct Billing;

impl Billing {
    #[dlq_handler]
    async fn charge(&self) {}
}

fn main() {}
