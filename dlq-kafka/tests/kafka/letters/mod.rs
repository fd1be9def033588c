//! Dead letters of a topic: read, and sent back.

mod replay;
mod replay_killed;
mod replay_targets;
