use std::time::Duration;

use dlq_tower::Classify;

#[derive(Classify)]
enum ChargeError {
    #[classify(retry_after = 1)]
    RateLimited(Duration),
}

fn main() {}
