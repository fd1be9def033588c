use dlq_tower::Classify;

#[derive(Classify)]
union ChargeError {
    _a: u8,
}

fn main() {}
