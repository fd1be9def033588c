use dlq_tower::Classify;

#[derive(Classify)]
enum ChargeError {
    Store(#[classify(transparent)] u8),
}

fn main() {}
