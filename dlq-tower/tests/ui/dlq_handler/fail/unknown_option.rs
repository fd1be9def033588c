use dlq_tower::dlq_handler;

#[dlq_handler(max_attempt = 3)]
async fn charge() {}

fn main() {
    let _ = charge::handler();
}
