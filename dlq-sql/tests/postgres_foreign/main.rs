//! Letters out of tables that others made, at a real server.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod failing;
mod fixture;
mod identity;
mod mapped;
mod refused;
mod shapes;
