use std::rc::Rc;

use dlq_tower::dlq_handler;

#[dlq_handler]
async fn charge() {
    let kept = Rc::new(7);
    std::future::ready(()).await;
    drop(kept);
}

fn main() {}
