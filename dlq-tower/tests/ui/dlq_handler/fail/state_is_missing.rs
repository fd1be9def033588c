use dlq_tower::dlq_handler;
use dlq_tower::extract::State;

#[derive(Clone)]
struct Gateway;

#[dlq_handler]
async fn charge(_gateway: State<Gateway>) {}

fn main() {
    let _ = charge::handler().build();
}
