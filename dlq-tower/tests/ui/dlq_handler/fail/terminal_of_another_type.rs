use dlq_tower::dlq_handler;

enum Other {
    Bad,
}

#[dlq_handler(terminal = Other::Bad)]
async fn charge() -> Result<(), std::io::Error> {
    Ok(())
}

fn main() {}
