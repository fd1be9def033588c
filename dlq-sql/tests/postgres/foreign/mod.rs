//! Letters out of tables that others made, at a real server.

mod failing;
mod fixture;
mod identity;
mod mapped;
mod refused;
mod shapes;
