//! A consumer of a stream: its source, settlement, retry queue and crash marks, and the transport that opens them.

pub(crate) mod acks;
pub(crate) mod durable;
pub(crate) mod empty_requests;
pub(crate) mod lease_check;
pub(crate) mod marks;
pub(crate) mod overdue;
pub(crate) mod pull;
pub(crate) mod ready;
pub(crate) mod records;
pub(crate) mod retry_queue;
pub(crate) mod settle;
pub(crate) mod source;
pub(crate) mod transport;
pub(crate) mod unreadable;
