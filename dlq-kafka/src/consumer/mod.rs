//! A consumer of topics: its source, settlement, retry topics and crash marks, and the transport that opens them.

pub(crate) mod blocked;
pub(crate) mod commits;
pub(crate) mod done;
pub(crate) mod gauges;
pub(crate) mod handover;
pub mod lag;
pub(crate) mod lines;
pub(crate) mod lost;
pub(crate) mod marks;
pub(crate) mod new_partitions;
pub(crate) mod partition;
pub(crate) mod piece;
pub(crate) mod poll;
pub(crate) mod reading;
pub(crate) mod rebalance;
pub(crate) mod retry_queue;
pub(crate) mod settle;
pub(crate) mod shared;
pub(crate) mod side_reader;
pub(crate) mod source;
pub(crate) mod tracker;
pub(crate) mod transport;
pub(crate) mod waiting;
