use dlq_tower::Classify;

#[derive(Classify)]
#[classify(transparent)]
enum ChargeError {
    #[classify(temporary)]
    Timeout,
    #[classify(permanent, retry_after = "10s")]
    BadAmount,
    #[classify]
    Empty,
}

fn main() {}
