//! The bucket in which routers keep up to where they have looked.

use std::time::Duration;

use async_nats::jetstream::Context;
use async_nats::jetstream::kv::{Config, Store};

use crate::client::buckets;
use crate::client::error::SetupError;
use crate::client::streams::find;

const BUCKET: &str = "DLQ_ROUTER";

/// Refuses one that is there and would forget, since all would be looked at again. It is made when it is needed.
pub(super) async fn check(context: &Context, replicas: usize) -> Result<(), SetupError> {
    match find(context, &buckets::stream_of(BUCKET)).await {
        Ok(Some(_)) => open(context, replicas).await.map(drop),
        Ok(None) => Ok(()),
        Err(error) => {
            // Who routes from streams with limits only does not need it.
            tracing::warn!(%error, "bucket `{BUCKET}` cannot be looked at");
            Ok(())
        }
    }
}

/// Opens it, and makes it where it is not there.
pub(super) async fn open(context: &Context, replicas: usize) -> Result<Store, SetupError> {
    let config = Config {
        bucket: BUCKET.to_owned(),
        description: "Up to where event routers have looked".to_owned(),
        history: 1,
        num_replicas: replicas,
        ..Config::default()
    };
    buckets::ensure(context, config, |found| buckets::forgets(found, Some(Duration::ZERO))).await
}
