use dlq_tower::Classify;

#[derive(Classify)]
enum ChargeError {
    #[classify(transparent)]
    Store(u8, u8),
}

fn main() {}
