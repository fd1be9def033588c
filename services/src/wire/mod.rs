//! Just enough of each server's protocol for a true answer, over plain sockets: no TLS, no client
//! libraries, one connection per question.
//!
//! Every function takes the URL of a server and its patience: how long connecting, asking and
//! reading may take together. Every error is a `NoAnswer` that says what was missing.

mod bson;
pub mod kafka;
pub mod mongo;
pub mod nats;
pub mod postgres;
pub mod redis;
mod stream;
mod target;

use std::time::Duration;

use crate::{Error, ErrorKind, Service};

/// Asks a server something that only that kind of server can answer: NATS for a `PONG` and whether
/// it has JetStream, Kafka for the versions of its API, PostgreSQL for `SELECT 1`, Redis for a
/// `PONG`, MongoDB for the version of its protocol.
///
/// A PostgreSQL that asks for a password by a method we do not speak has answered.
///
/// # Errors
///
/// `NoAnswer` when there is none within `patience`, or another than expected; `Unsupported` for
/// a MongoDB whose URL asks for TLS or names no host (`mongodb+srv`).
pub fn ping(service: Service, url: &str, patience: Duration) -> Result<(), Error> {
    match service {
        Service::Nats => nats::ping(url, patience),
        Service::Kafka => kafka::api_versions(url, patience).map(|_| ()),
        Service::Postgres => postgres::ping(url, patience),
        Service::Redis => redis::ping(url, patience),
        Service::Mongo => mongo::ping(url, patience),
    }
}

pub(crate) fn no_answer(service: Service, detail: impl Into<String>) -> Error {
    Error::new(ErrorKind::NoAnswer, service, detail)
}
