//! Opening of a store.

use std::sync::{Arc, Mutex};

use dlq_core::{StoreError, StoreErrorKind};

use super::config::{Durability, RedisStoreBuilder};
use super::fault::{Fault, Result};
use super::link::Link;
use super::load::SCHEMA;
use super::names::Names;
use super::scripts::{self, bytes, number, parts};
use super::{Inner, RedisStore};
use crate::client::RedisErrorKind;

const OPEN: &str = "open the store";

impl RedisStore {
    /// Returns true if there is a store.
    pub(super) async fn exists(
        builder: &RedisStoreBuilder,
    ) -> std::result::Result<bool, StoreError> {
        tagged(&builder.prefix)?;
        let mut look = redis::cmd("HEXISTS");
        look.arg(Names::new(&builder.prefix).meta).arg("schema");
        let answer = builder.client.command(&look).await.map_err(|error| error.for_store(OPEN))?;
        Ok(number(answer) == 1)
    }

    pub(super) async fn open(builder: RedisStoreBuilder) -> std::result::Result<Self, StoreError> {
        let RedisStoreBuilder { client, prefix, durability, replica_timeout, dedup, clock } =
            builder;
        tagged(&prefix)?;
        let link = Link::new(client, Names::new(&prefix));
        let (time, identity) = (Mutex::new(None), String::new());
        let mut inner = Inner { link, durability, replica_timeout, clock, time, identity };
        inner.prepare(dedup).await.map_err(|fault| match fault {
            Fault::Redis(error) => error.for_store(OPEN),
            Fault::Own(kind, detail) => StoreError::new(kind, OPEN).with_detail(detail),
        })?;
        Ok(Self { inner: Arc::new(inner) })
    }
}

impl Inner {
    async fn prepare(&mut self, dedup: Option<bool>) -> Result<()> {
        // The identity is kept where there is one already, so that two processes that open a new store at once agree on it.
        let call = self.link.call(&scripts::OPEN).arg(SCHEMA).arg(super::token());
        let [schema, identity] = parts(self.link.run(&call).await?)?;
        judge(number(schema))?;
        self.identity = String::from_utf8_lossy(&bytes(identity).unwrap_or_default()).into_owned();
        // This comes before the store is handed out: a server without the file would lose in a crash what it had
        // confirmed (G1).
        self.look_at_durability().await?;
        match dedup {
            Some(true) => self.switch_dedup_on().await,
            Some(false) => {
                let mut cmd = redis::cmd("HSET");
                cmd.arg(&self.link.names.meta).arg("dedup").arg("0");
                self.link.command(&cmd).await.map(drop)
            }
            None => Ok(()),
        }
    }

    async fn look_at_durability(&self) -> Result<()> {
        if self.durability != Durability::Aof {
            return Ok(());
        }
        let info = match self.info("persistence").await {
            Ok(info) => info,
            // What may not be read is not known; `check` says so.
            Err(Fault::Redis(error)) if error.kind() == RedisErrorKind::Forbidden => return Ok(()),
            Err(fault) => return Err(fault),
        };
        if info.get("aof_enabled").is_none_or(|on| on == "1") {
            return Ok(());
        }
        let detail = "the server has no append-only file, and a crash of it loses letters; set `appendonly yes` at the server, or \
                      open the store with `Durability::Memory`";
        Err(Fault::new(StoreErrorKind::InvalidConfig, detail))
    }

    /// A section of what the server says of itself.
    pub(super) async fn info(
        &self,
        section: &str,
    ) -> Result<std::collections::BTreeMap<String, String>> {
        let call = self.link.call(&scripts::INFO).arg(section);
        let text = match self.link.run(&call).await? {
            redis::Value::VerbatimString { text, .. } => text,
            value => String::from_utf8_lossy(&bytes(value).unwrap_or_default()).into_owned(),
        };
        let lines = text.lines().filter_map(|line| line.split_once(':'));
        Ok(lines.map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
    }
}

/// Refuses a layout that this version does not know.
pub(super) fn judge(schema: u64) -> Result<()> {
    if schema == SCHEMA {
        return Ok(());
    }
    if schema == 0 {
        let detail = "the keys of the store are gone; somebody has deleted them, or the server has forgotten them; open it again to \
                      begin a new one";
        return Err(Fault::new(StoreErrorKind::Unavailable, detail));
    }
    let detail = format!(
        "the store has version {schema} of its layout, and this program knows {SCHEMA}; use a newer program"
    );
    Err(Fault::new(StoreErrorKind::Incompatible, detail))
}

/// Refuses a prefix without a hash tag.
fn tagged(prefix: &str) -> std::result::Result<(), StoreError> {
    if has_tag(prefix) {
        return Ok(());
    }
    let detail = format!("the prefix `{prefix}` has no hash tag; write it as `{{{prefix}}}`");
    Err(StoreError::new(StoreErrorKind::InvalidConfig, OPEN).with_detail(detail))
}

/// Returns true if the name has a hash tag that is not empty.
fn has_tag(prefix: &str) -> bool {
    let Some((_, rest)) = prefix.split_once('{') else { return false };
    rest.find('}').is_some_and(|end| end > 0)
}
