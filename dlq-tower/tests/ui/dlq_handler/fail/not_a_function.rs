use dlq_tower::dlq_handler;

#[dlq_handler]
struct Charge;

fn main() {
    let _ = Charge;
}
