use dlq_tower::dlq_handler;

#[dlq_handler(max_attempts = 0, timeout = "10 sec", backof = constant("1s"), panic = ignore)]
async fn charge() {}

fn main() {
    let _ = charge::handler();
}
