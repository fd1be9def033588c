//! A layer of one's own: it finds the tenant of a message, hands it on to the handler, and refuses messages of nobody. Nothing
//! to install.
//!
//! Run with `cargo run -p custom-layer-example`.

use std::collections::HashMap;
use std::error::Error;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use serde::Deserialize;
use tower::{Layer, Service};
use tower_dlq::classify::ClassifyErrorsLayer;
use tower_dlq::core::{BoxError, Delivery, PageRequest};
use tower_dlq::extract::{FromDelivery, Rejection};
use tower_dlq::memory::{MemoryBroker, MemoryStore, MemoryTransport};
use tower_dlq::prelude::*;

/// A customer of this service, with an account of its own.
#[derive(Clone, Debug, PartialEq)]
struct Tenant {
    account: String,
}

/// A message whose header `tenant` names nobody.
#[derive(Debug, thiserror::Error)]
#[error("expected a header `tenant` with a name that is known, found {found:?}")]
struct UnknownTenant {
    found: Option<String>,
}

/// Finds the tenant of each message.
#[derive(Clone)]
struct TenantLayer {
    tenants: Arc<HashMap<String, Arc<Tenant>>>,
}

impl<S> Layer<S> for TenantLayer {
    type Service = TenantService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        TenantService { inner, tenants: Arc::clone(&self.tenants) }
    }
}

#[derive(Clone)]
struct TenantService<S> {
    inner: S,
    tenants: Arc<HashMap<String, Arc<Tenant>>>,
}

impl<S> Service<Delivery> for TenantService<S>
where
    S: Service<Delivery, Future: Send + 'static, Error: Into<BoxError>>,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, delivery: Delivery) -> Self::Future {
        let name = delivery.message().headers().get_str("tenant");
        let Some(tenant) = name.and_then(|name| self.tenants.get(name)) else {
            let found = name.map(str::to_owned);
            return Box::pin(async { Err(UnknownTenant { found }.into()) });
        };
        let delivery = delivery.with_extension(Arc::clone(tenant));
        let handled = self.inner.call(delivery);
        Box::pin(async { handled.await.map_err(Into::into) })
    }
}

/// The tenant that the layer has added to the delivery.
impl<S> FromDelivery<S> for Tenant {
    fn from_delivery(delivery: &Delivery, _: &S) -> Result<Self, Rejection> {
        let found = delivery.extension::<Self>().cloned();
        found.ok_or_else(|| Rejection::absent("expected a tenant; is there a `TenantLayer`?"))
    }
}

#[derive(Deserialize)]
struct Order {
    id: u32,
}

#[dlq_handler(name = "orders.book")]
async fn book(tenant: Tenant, Json(order): Json<Order>) -> Result<(), std::io::Error> {
    println!("order {} is booked to {}", order.id, tenant.account);
    Ok(())
}

/// Judges what the layer fails with: a message of nobody stays one, however often it is tried.
fn judge(error: &BoxError) -> ErrorClass {
    if error.is::<UnknownTenant>() { ErrorClass::Permanent } else { ErrorClass::Transient }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let (broker, store) = (MemoryBroker::new(), MemoryStore::new());
    let orders = broker.clone().stream("orders");
    for (id, tenant) in [(1, "acme"), (2, "globex"), (3, "initech")] {
        let message = Message::new("orders.created", format!(r#"{{"id":{id}}}"#));
        orders.publish(message.with_header("tenant", tenant));
    }

    let tenant = |name: &str| {
        let tenant = Tenant { account: format!("{name}-main") };
        (name.to_owned(), Arc::new(tenant))
    };
    let layer = TenantLayer { tenants: Arc::new(["acme", "globex"].map(tenant).into()) };
    let handler = book::handler().layer((ClassifyErrorsLayer::new(judge), layer)).build()?;
    let consumer = Consumer::on(MemoryTransport::new("orders"), &broker)
        .handler(handler)
        .dead_letters(store.clone())
        .open()
        .await?;
    let report = consumer.run(orders.idle("orders.book")).await;
    println!("{} handled, {} dead", report.handled, report.dead);

    let letters = DeadLetters::new(store).list(Filter::new(), PageRequest::default()).await?;
    for letter in letters.letters {
        println!("dead: {}, {}", letter.reason, letter.error);
    }
    Ok(())
}
