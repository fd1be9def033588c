use dlq_core::store::Sink as _;
use dlq_services::{Service, ensure_installed, or_skip};
use dlq_testkit::fixtures::letter;

use crate::fixture::command;
use crate::schema::Schema;
use crate::scrape::{agree, has, served, until};

/// Letters are counted, a server that stops is said to be down, and one that comes back is found again.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_goes_and_comes_back_is_served_again() {
    if or_skip(Service::Postgres, ensure_installed(Service::Postgres)).is_err() {
        return;
    }
    let mut server =
        tokio::task::block_in_place(|| Service::Postgres.builder().ours().start().unwrap());
    let schema = Schema::at(server.url(), "served");
    let store = schema.store().await;
    store.put((0..3).map(letter).collect()).await.unwrap();
    let args = ["serve", "--metrics", "127.0.0.1:0", "--every", "100ms"];
    let url = schema.url_of("postgres:s3cret");
    let (mut process, address) = served(command(&url, &args));
    tokio::task::block_in_place(|| {
        let page = until(&address, "/metrics", has(&["dlq_letters{status=\"pending\"} 3"]));
        agree(&page, &["dlq_letters", "dlq_due_letters", "dlq_overdue_letters"]);
        until(&address, "/health", |page| page.starts_with("HTTP/1.1 200"));
        server.stop().unwrap();
        process.says("it is not reached");
        until(&address, "/metrics", has(&["dlq_store_up 0"]));
        let health = until(&address, "/health", |page| page.starts_with("HTTP/1.1 503"));
        assert!(!health.contains("s3cret"), "{health}");
        server.restart().unwrap();
        process.says("it answers again");
        until(&address, "/metrics", has(&["dlq_store_up 1"]));
        until(&address, "/metrics", has(&["dlq_letters{status=\"pending\"} 3"]));
    });
    process.signal("-TERM");
    let ran = process.end();
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(!ran.err.contains("s3cret"), "{}", ran.err);
}
