//! The transport on real servers.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod bad_input;
#[cfg(feature = "cluster")]
mod cluster;
mod conformance;
mod dead;
mod fixture;
mod forgotten;
mod killed;
mod marks;
mod pending;
mod posted;
#[cfg(feature = "sentinel")]
mod sentinel;
#[cfg(feature = "tls")]
mod tls;
