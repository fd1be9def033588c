use dlq_tower::Classify;

#[derive(Classify)]
enum ChargeError {
    #[classify(retry_after = "ten seconds")]
    RateLimited,
}

fn main() {}
