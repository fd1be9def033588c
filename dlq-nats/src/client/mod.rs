//! The server: what is asked of it and published to it, its streams and buckets, names, headers, permissions and versions.

pub(crate) mod bounds;
pub(crate) mod buckets;
pub(crate) mod difference;
pub(crate) mod domain;
pub(crate) mod error;
pub(crate) mod inboxes;
pub(crate) mod jetstream;
pub(crate) mod leader;
pub(crate) mod lines;
pub(crate) mod message_meta;
pub(crate) mod names;
pub(crate) mod no_leader;
pub(crate) mod permissions;
pub(crate) mod publish;
pub(crate) mod server_time;
pub(crate) mod streams;
pub(crate) mod subjects;
pub(crate) mod version;
pub(crate) mod wire;
