use dlq_tower::Classify;

#[derive(Classify)]
enum ChargeError {
    #[classify(transient, permanent)]
    Timeout,
}

fn main() {}
