//! Handlers end to end: from a delivery through the function to the verdict.

mod attribute;
mod derive;
mod errors;
mod extract;
mod fixture;
mod keys;
mod router;
mod settings;
