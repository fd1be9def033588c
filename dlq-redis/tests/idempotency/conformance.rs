//! The suite, by the server's clock, on each kind of server.

use dlq_redis::{IdempotencyConfig, RedisIdempotency};
use dlq_testkit::fixtures::ManualClock;
use dlq_testkit::idempotency::IdempotencyFixture;

use crate::fixture::{Version, client, fresh_prefix};

macro_rules! suite {
    ($module:ident, $version:expr) => {
        mod $module {
            use super::*;

            pub(super) struct Keys(String);

            impl IdempotencyFixture for Keys {
                type Store = RedisIdempotency;

                fn is_available() -> bool {
                    $version.program().is_some()
                }

                async fn fresh(_check: &'static str) -> Self {
                    Self(fresh_prefix())
                }

                async fn open(&self) -> RedisIdempotency {
                    let config = IdempotencyConfig::new().prefix(&self.0);
                    RedisIdempotency::open(&client($version.url()).await, config).await.unwrap()
                }

                fn clock(&self) -> Option<&ManualClock> {
                    None
                }
            }

            dlq_testkit::idempotency_conformance!(super::Keys);
        }
    };
}

suite!(redis_7, Version::Usual);
suite!(redis_6, Version::Redis6);
suite!(valkey_9, Version::Valkey9);
