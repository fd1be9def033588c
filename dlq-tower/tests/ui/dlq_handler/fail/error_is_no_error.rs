use dlq_tower::dlq_handler;

struct Refused;

#[dlq_handler]
async fn charge() -> Result<(), Refused> {
    Err(Refused)
}

fn main() {}
