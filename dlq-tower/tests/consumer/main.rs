//! The consumer: run loop, store source, order, suspects, outage protection, stop and health, under paused time.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the answer")]

mod adversary;
mod broker;
mod by_hand;
mod config;
mod counts;
mod faulty;
mod flow;
mod health;
mod hearing;
mod keys;
mod memory;
mod observe;
mod opening;
mod order;
mod outage;
mod outbox;
mod presence;
mod refused;
mod stop;
mod store;
mod store_source;
mod support;
mod suspects;
