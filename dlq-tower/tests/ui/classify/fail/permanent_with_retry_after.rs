use dlq_tower::Classify;

#[derive(Classify)]
enum ChargeError {
    #[classify(permanent, retry_after = "10s")]
    BadAmount,
}

fn main() {}
