use dlq_tower::dlq_handler;

#[dlq_handler]
fn charge() {}

fn main() {
    charge();
}
