//! What a router may not do, of one stream or at all.

use async_nats::jetstream::context::ContextBuilder;
use async_nats::jetstream::{AckKind, stream};
use dlq_core::{Clock as _, StoreErrorKind, SystemClock};
use dlq_nats::EventRouter;

use super::once::terminate;
use super::{Letter, Routing, SECOND, answer, users};
use crate::fixture::{STREAM, Server, available};

/// `root` may do everything, `app` not publish there.
fn denied(subjects: &[&str]) -> String {
    let denied: Vec<String> = subjects.iter().map(|subject| format!("\"{subject}\"")).collect();
    let permissions = format!("{{ publish: {{ deny: [ {} ] }} }}", denied.join(", "));
    format!(
        "{{ users: [ {{ user: root, password: root }}, {{ user: app, password: p, permissions: {permissions} }} ] }}"
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_right_that_is_missing_is_named_at_the_start() {
    if !available() {
        return;
    }
    let denied = [
        ("get", "$JS.API.STREAM.MSG.GET.>"),
        ("next", "$JS.API.CONSUMER.MSG.NEXT.DLQ_ADVISORY.>"),
        ("ack", "$JS.ACK.>"),
        ("users", "$JS.API.STREAM.MSG.GET.USERS"),
    ];
    let user = |(name, subject)| {
        let permissions = format!("{{ publish: {{ deny: [\"{subject}\"] }} }}");
        format!("{{ user: {name}, password: p, permissions: {permissions} }}")
    };
    let users = format!("{{ user: root, password: root }}, {}", denied.map(user).join(", "));
    let users = format!("{{ users: [ {users} ] }}");
    let server = Server::bare(&[("authorization", &users)], "root", "root").await;
    let refused = async |user: &str| {
        let error = EventRouter::builder(server.connect(user, "p").await).open().await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::InvalidConfig);
        error.to_string()
    };
    for (user, named) in [
        ("get", "`$JS.API.STREAM.MSG.GET.*`"),
        ("next", "`$JS.API.CONSUMER.MSG.NEXT.DLQ_ADVISORY.dlq-router`"),
        ("ack", "`$JS.ACK.DLQ_ADVISORY.dlq-router.>`"),
        ("users", "`$JS.API.STREAM.MSG.GET.*`"),
    ] {
        let text = refused(user).await;
        assert!(text.contains(named) && text.contains(user), "{text}");
    }
    // What it does not watch it need not read.
    let orders = EventRouter::builder(server.connect("users", "p").await).stream(STREAM);
    drop(orders.open().await.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_whose_consumers_cannot_be_listed_keeps_nobody_from_the_others() {
    if !available() {
        return;
    }
    // Nobody may ask who they are, so that nothing is known at the start.
    let (orders, others) = ("$JS.API.CONSUMER.LIST.ORDERS", "$JS.API.CONSUMER.LIST.VISITS");
    let users_of = denied(&[orders, others, "$SYS.REQ.USER.INFO"]);
    let server = Server::bare(&[("authorization", &users_of)], "root", "root").await;
    // One before, and one after it.
    let users = users(&server).await;
    let visits = stream::Config { name: "VISITS".to_owned(), ..stream::Config::default() };
    server.context.create_stream(visits).await.unwrap();
    let app = server.connect("app", "p").await;
    let context = ContextBuilder::new().timeout(SECOND * 3).build(app);
    let router = EventRouter::builder(context).sweep_every(SECOND / 4);
    let router = Routing::with(router).await;
    server.context.publish("users.a", "user".into()).await.unwrap().await.unwrap();
    // Nobody pulls after the last delivery: only the sweep makes the server say so.
    answer(&users, 1, |_| AckKind::Nak(None)).await;
    Letter::until(&server, 1).await;
    let report = router.stop().await;
    assert!(report.pokes > 0 && report.failures > 0, "{report}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_right_that_it_needs_is_named_at_the_start() {
    if !available() {
        return;
    }
    let letters = "$JS.API.CONSUMER.CREATE.DLQ.>";
    for subject in
        ["$JS.API.CONSUMER.LIST.ORDERS", "$JS.API.CONSUMER.MSG.NEXT.ORDERS.theirs", letters]
    {
        let users = denied(&[subject]);
        let server = Server::bare(&[("authorization", &users)], "root", "root").await;
        let app = server.connect("app", "p").await;
        let router = EventRouter::builder(app.clone()).consumer(STREAM, "theirs");
        let error = router.open().await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::InvalidConfig);
        assert!(error.to_string().contains(&format!("`{subject}`")), "{error}");
        // What it does not watch it need not see.
        let other = EventRouter::builder(app).stream("USERS").open().await;
        assert_eq!(other.is_err(), subject == letters, "{subject}");
    }
}

/// Of a message that is gone nobody can tell whether it has its letter.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_may_not_read_letters_and_does_not_know_it_writes_them() {
    if !available() {
        return;
    }
    let users = denied(&["$JS.API.CONSUMER.CREATE.DLQ.>", "$SYS.REQ.USER.INFO"]);
    let server = Server::bare(&[("authorization", &users)], "root", "root").await;
    let app = server.connect("app", "p").await;
    let context = ContextBuilder::new().timeout(SECOND * 3).build(app);
    let router = Routing::with(EventRouter::builder(context)).await;
    terminate(&server, SystemClock.now()).await;
    Letter::until(&server, 1).await;
    let report = router.stop().await;
    assert_eq!((report.routed, report.without_payload), (1, 1), "{report}");
}
