use dlq_core::memory::MemoryBroker;
use dlq_tower::consumer::Consumer;
use dlq_tower::dlq_handler;

#[dlq_handler]
async fn book() {}

fn main() {
    let _ = Consumer::builder(MemoryBroker::new().source("books")).handler(book::handler());
}
