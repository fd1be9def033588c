use dlq_tower::Classify;

#[derive(Debug, thiserror::Error, Classify)]
#[error("error")]
#[classify = "permanent"]
struct OfText;

#[derive(Debug, thiserror::Error, Classify)]
#[error("error")]
#[classify]
struct OfNothing;

fn main() {}
