//! Features of servers by their versions.

/// A version of nats-server, as far as it matters here.
pub(crate) type Version = (u64, u64);

/// The first version whose consumers can have several filters.
pub(crate) const FILTERS: Version = (2, 10);
/// The first version with schedules.
pub(crate) const SCHEDULES: Version = (2, 12);

/// The version that a server says; `None` when it is none that we can read.
pub(crate) fn parse(text: &str) -> Option<Version> {
    let mut parts = text.split(['.', '-']).map(|part| part.parse::<u64>());
    match (parts.next(), parts.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => Some((major, minor)),
        _ => None,
    }
}
