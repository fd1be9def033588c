//! Letters are read from their topic.

mod arriving;
mod damaged;
mod pointers;
mod ranges;
mod reading;
mod transactions;
