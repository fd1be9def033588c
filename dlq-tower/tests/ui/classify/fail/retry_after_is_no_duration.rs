use dlq_tower::Classify;

#[derive(Classify)]
enum ChargeError {
    #[classify(retry_after = seconds)]
    RateLimited { seconds: u64 },
}

fn main() {}
