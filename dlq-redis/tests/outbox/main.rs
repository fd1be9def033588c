//! Letters of a store go back to their streams, each once, at real servers.

#![recursion_limit = "256"]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod failing;
mod fixture;

use dlq_testkit::outbox_conformance;

mod redis_7 {
    super::outbox_conformance!(crate::fixture::Fixture<crate::fixture::Redis7>);
}
mod redis_6 {
    super::outbox_conformance!(crate::fixture::Fixture<crate::fixture::Redis6>);
}
mod valkey_9 {
    super::outbox_conformance!(crate::fixture::Fixture<crate::fixture::Valkey9>);
}
