//! The steps, each of which is one script on one key.

use crate::client::Script;

macro_rules! script {
    ($file:literal) => {
        Script::new(concat!(include_str!("entry.lua"), include_str!($file)))
    };
}

pub(super) static CLAIM: Script = script!("claim.lua");
pub(super) static SETTLE: Script = script!("settle.lua");
pub(super) static LOOK: Script = script!("look.lua");
pub(super) static PURGE: Script = script!("purge.lua");

/// Returns the name that the first caller has left.
pub(super) static IDENTIFY: Script = Script::new(include_str!("identify.lua"));
