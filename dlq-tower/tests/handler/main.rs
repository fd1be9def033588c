//! Handlers end to end: from a delivery through the function to the verdict.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod attribute;
mod consumer;
mod derive;
mod errors;
mod extract;
mod fixture;
mod keys;
mod layers;
mod macros;
mod router;
mod settings;
mod spares;
