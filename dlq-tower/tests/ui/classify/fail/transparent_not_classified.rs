use dlq_tower::Classify;

#[derive(Classify)]
enum ChargeError {
    #[classify(transparent)]
    Store(std::io::Error),
}

fn main() {}
