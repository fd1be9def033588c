use dlq_tower::Classify;

#[derive(Classify)]
enum ChargeError {
    #[classify(temporary)]
    Timeout,
}

fn main() {}
