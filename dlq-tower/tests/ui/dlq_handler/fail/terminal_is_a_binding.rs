use dlq_tower::dlq_handler;

#[derive(Debug, thiserror::Error)]
#[error("bad")]
enum ChargeError {
    BadAmount,
}

#[dlq_handler(terminal = BadAmount)]
async fn charge() -> Result<(), ChargeError> {
    Err(ChargeError::BadAmount)
}

fn main() {}
