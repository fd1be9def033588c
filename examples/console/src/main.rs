//! A shop with a page of its own, and the console of its dead letters below `/dlq`.

use std::error::Error;
use std::net::SocketAddr;

use axum::Router;
use axum::routing::get;
use dlq_admin::{Access, Admin, Role, Token};
use tower_dlq::core::{
    Attempt, Cause, Clock as _, DeadLetter, DeadLetters, ErrorClass, Failure, History, Message,
    Origin, Position, Reason, SystemClock,
};
use tower_dlq::memory::MemoryStore;

/// A payment that the provider has refused.
fn refused(n: u64) -> DeadLetter {
    let message = Message::new("payments.charge", format!("{{\"order\":{n},\"cents\":1200}}"));
    let origin = Origin::new("memory", "payments", Position::Offset(n));
    let why = format!("the provider refused order {n}: card expired");
    let failure = Failure::new(ErrorClass::Permanent, Cause::Error, "shop::Refused", &why);
    let mut history = History::new();
    history.push(Attempt { number: 1, generation: 0, failure });
    let letter = DeadLetter::new(message, origin, "billing", Reason::Permanent);
    let mut letter = letter.with_history(history);
    letter.died_at = SystemClock.now();
    letter
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // A consumer of the shop would have the same store.
    let letters = DeadLetters::new(MemoryStore::new());
    letters.put((0..25).map(refused).collect()).await?;

    let mut admin = Admin::new(letters);
    // Without a token everybody on this machine may do everything, and nobody else is answered.
    if let Ok(token) = std::env::var("CONSOLE_TOKEN") {
        admin = admin.access(Access::tokens([Token::new("operator", Role::Admin, token)]));
    }
    let app = Router::new()
        .route("/", get(async || "the shop; its dead letters are at /dlq\n"))
        .nest("/dlq", admin.router());

    let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
    println!("the console is at http://{}/dlq", listener.local_addr()?);
    // With the address of each client failed logins are counted for each of them.
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}
