use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;
use std::time::Duration;

use super::keys::Keys;
use super::wire::Fields;

/// The beginning of the names of consumers at the server.
pub(crate) const PREFIX: &str = "dlq:";

/// The stream, group and name with which one source reads.
#[derive(Clone, Debug)]
pub(crate) struct GroupMember {
    pub(crate) keys: Keys,
    pub(crate) group: Arc<str>,
    /// The name of this source at the server: no other has or had it, so that being the owner is a fence.
    pub(crate) me: Arc<str>,
    pub(crate) lease: Duration,
    /// Time for which a retry record that is done leaves its name.
    pub(crate) window: Duration,
    pub(crate) fields: Fields,
    pub(crate) subject: Arc<str>,
}

/// A number that no other process has.
pub(crate) fn random() -> u64 {
    // The standard library seeds each from the system.
    RandomState::new().build_hasher().finish()
}

/// A name that no other source has or had.
pub(crate) fn unique_name() -> Arc<str> {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname");
    let host = host.ok().map(|host| host.trim().to_owned()).filter(|host| !host.is_empty());
    let host = host.unwrap_or_else(|| "host".to_owned());
    // Host and process are for people who look at the group. The random number makes the name unique, also among
    // containers with the same host name and process number.
    format!("{PREFIX}{host}:{}:{:016x}", std::process::id(), random()).into()
}
