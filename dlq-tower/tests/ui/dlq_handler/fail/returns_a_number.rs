use dlq_tower::dlq_handler;

#[dlq_handler]
async fn charge() -> u32 {
    7
}

fn main() {}
