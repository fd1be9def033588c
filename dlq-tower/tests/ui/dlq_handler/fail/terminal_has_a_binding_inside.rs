use dlq_tower::dlq_handler;

#[derive(Debug, thiserror::Error)]
#[error("store")]
enum StoreError {
    Gone,
}

#[derive(Debug, thiserror::Error)]
#[error("out")]
enum Out {
    Store(StoreError),
}

#[dlq_handler(terminal = Out::Store(Gone))]
async fn charge() -> Result<(), Out> {
    Err(Out::Store(StoreError::Gone))
}

fn main() {}
