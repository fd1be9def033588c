//! Letters are read from their topic, and sent back.

mod arriving;
mod damaged;
mod pointers;
mod ranges;
mod reading;
mod replay;
mod replay_brokers;
mod replay_heard;
mod replay_kept;
mod replay_killed;
mod replay_refused;
mod replay_shared;
mod replay_targets;
mod transactions;
mod unclear;
mod unread;
