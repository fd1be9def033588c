//! The stream of dead letters.
//!
//! # What a death is in, and what happens if the process dies then
//!
//! | state at the server | next step | if the process dies before it |
//! |---|---|---|
//! | message pending, no letter | script: letter, then mark | comes again and dies again |
//! | message pending, letter and mark | `XACK` | comes again; the mark says that the letter is there |
//! | acknowledged | none | over |
//!
//! Scripts are no transactions: after an error what was written before stays. So types are checked before the first write,
//! which is the letter itself: out of memory, or a key of another type, changes nothing.

mod check;
mod entries;
mod follow;
pub mod foreign;
mod ledger;
mod letters;
mod passed;
mod read;
mod replay;
mod scan;
mod scripts;
mod sink;
mod write;

pub use letters::{RedisEntries, RedisLetters};
pub use replay::{RedisReplay, RedisTarget, Replayed};
pub use sink::RedisSink;
