//! The snippets of the book, compiled and run as documentation tests.

macro_rules! pages {
    ($($name:ident = $file:literal),+ $(,)?) => {
        $(#[doc = include_str!($file)] pub mod $name {})+
    };
}

pages! {
    choose = "choose.md",
    configuration = "configuration.md",
    console = "console.md",
    dead_letters = "dead-letters.md",
    deploy = "deploy.md",
    errors = "errors.md",
    first_consumer = "first-consumer.md",
    from_apalis = "from-apalis.md",
    from_raw_clients = "from-raw-clients.md",
    from_spring_kafka = "from-spring-kafka.md",
    guarantees = "guarantees.md",
    idempotency = "idempotency.md",
    layers = "layers.md",
    observability = "observability.md",
    order = "order.md",
    replay = "replay.md",
    retries = "retries.md",
    search = "search.md",
    several_handlers = "several-handlers.md",
    shutdown = "shutdown.md",
    testing = "testing.md",
    triage = "triage.md",
    write_a_store = "write-a-store.md",
    write_a_transport = "write-a-transport.md",
}
