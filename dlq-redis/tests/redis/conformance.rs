//! The conformance suite for transports, on each server.

mod redis_7 {
    use crate::fixture::RedisFixture;

    dlq_testkit::transport_conformance!(RedisFixture);
}

mod redis_6_2 {
    use crate::fixture::Redis62;

    dlq_testkit::transport_conformance!(Redis62);
}

mod valkey_9 {
    use crate::fixture::Valkey9;

    dlq_testkit::transport_conformance!(Valkey9);
}
