//! [`Link`]: calls of scripts and commands on the keys of one store.

use std::collections::BTreeSet;
use std::time::Duration;

use dlq_core::{Filter, LetterId, OperationId, Order, Timestamp};
use dlq_letters::{Depth, DocumentKey, DocumentKind, DocumentRange};
use futures_util::future::{try_join, try_join_all};
use redis::{Cmd, Value};

use super::fault::Result;
use super::names::{self, Bytes, Names};
use super::ops::{self, Stored};
use super::scripts::{self, array, letter, number, parts};
use super::search::{LETTERS, Letter};
use crate::client::{RedisClient, Script, ScriptCall};

/// The client of a store, and the names of its keys.
#[derive(Debug)]
pub(super) struct Link {
    client: RedisClient,
    pub(super) names: Names,
}

/// Facts that every call needs.
#[derive(Debug)]
pub(super) struct Meta {
    pub(super) time: Timestamp,
    pub(super) schema: u64,
    pub(super) dedup: Option<Bytes>,
    /// The last fencing token.
    pub(super) fence: u64,
}

impl Link {
    pub(super) const fn new(client: RedisClient, names: Names) -> Self {
        Self { client, names }
    }

    /// Begins a call of a script.
    pub(super) fn call(&self, script: &'static Script) -> ScriptCall {
        // One key names the slot. Scripts make the other names of the prefix, which is in the same slot by its hash tag.
        script.keys(&[&self.names.meta]).arg(&self.names.prefix)
    }

    pub(super) async fn run(&self, call: &ScriptCall) -> Result<Value> {
        // Boxed: it holds all that connecting needs, and many calls are joined.
        Ok(Box::pin(self.client.script(call)).await?)
    }

    /// Runs a script, and returns the number of replicas that have what it wrote or found.
    pub(super) async fn replicated(
        &self,
        call: &ScriptCall,
        wanted: u32,
        replica_timeout: Duration,
    ) -> Result<(Value, u64)> {
        let mut touch = redis::cmd("HSET");
        // A write that changes nothing else, see `RedisClient::replicated`.
        touch.arg(&self.names.meta).arg("touched").arg(1);
        Ok(Box::pin(self.client.replicated(call, &touch, wanted, replica_timeout)).await?)
    }

    pub(super) async fn command(&self, cmd: &Cmd) -> Result<Value> {
        Ok(Box::pin(self.client.command(cmd)).await?)
    }

    /// Reads the facts that every call needs, by a script: in a cluster the server of the store's slot answers it.
    pub(super) async fn meta(&self) -> Result<Meta> {
        let [seconds, micros, schema, dedup, fence] =
            parts(self.run(&self.call(&scripts::META)).await?)?;
        let (seconds, micros) = (number(seconds), number(micros));
        let nanos = seconds.saturating_mul(1_000_000_000).saturating_add(micros * 1_000);
        Ok(Meta {
            time: Timestamp::from_nanos(i64::try_from(nanos).unwrap_or(i64::MAX)),
            schema: number(schema),
            dedup: scripts::bytes(dedup),
            fence: number(fence),
        })
    }

    /// The time of the server.
    pub(super) async fn time(&self) -> Result<Timestamp> {
        Ok(self.meta().await?.time)
    }

    /// Number of letters in these parts of the index, within the times of a filter.
    pub(super) async fn size(&self, parts: &[Bytes], filter: &Filter) -> Result<u64> {
        let of_part = |part: &Bytes| {
            let (lower, upper) = names::between(part, filter);
            let mut cmd = redis::cmd("ZLEXCOUNT");
            cmd.arg(&self.names.index).arg(lower).arg(upper);
            async move { Ok::<_, super::fault::Fault>(number(self.command(&cmd).await?)) }
        };
        Ok(try_join_all(parts.iter().map(of_part)).await?.into_iter().sum())
    }

    /// Members of the index between two bounds.
    pub(super) async fn members(
        &self,
        (lower, upper): (Bytes, Bytes),
        is_reverse: bool,
        limit: usize,
    ) -> Result<Vec<Bytes>> {
        let mut cmd = match is_reverse {
            false => redis::cmd("ZRANGEBYLEX"),
            true => redis::cmd("ZREVRANGEBYLEX"),
        };
        // The reverse command takes the upper bound first.
        let (first, last) = if is_reverse { (upper, lower) } else { (lower, upper) };
        cmd.arg(&self.names.index).arg(first).arg(last).arg("LIMIT").arg(0).arg(limit);
        let found = array(self.command(&cmd).await?);
        Ok(found.into_iter().filter_map(scripts::bytes).collect())
    }

    /// Letters by id.
    pub(super) async fn letters(
        &self,
        ids: impl IntoIterator<Item = LetterId>,
        depth: Depth,
    ) -> Result<Vec<Letter>> {
        let ids: Vec<_> = ids.into_iter().collect();
        let is_whole = depth == Depth::Whole;
        let some = |ids: Vec<LetterId>| async move {
            let mut call = self.call(&scripts::LETTERS).arg(u8::from(is_whole));
            for id in &ids {
                call = call.arg(&id.as_bytes()[..]);
            }
            let found = array(self.run(&call).await?);
            let found = ids.into_iter().zip(found);
            found.map(|(id, value)| Ok((id, letter(value, is_whole)?))).collect::<Result<Vec<_>>>()
        };
        // In parts, so that no script holds up the server for long.
        let all = try_join_all(ids.chunks(LETTERS).map(|ids| some(ids.to_vec()))).await?;
        Ok(all.into_iter().flatten().collect())
    }

    /// Operations by id; those that are not over, if none is named.
    pub(super) async fn operations(
        &self,
        ids: &[OperationId],
    ) -> Result<Vec<(OperationId, Option<Stored>)>> {
        let mut call = self.call(&scripts::OPERATIONS);
        for id in ids {
            call = call.arg(id.to_string());
        }
        array(self.run(&call).await?).into_iter().map(ops::read).collect()
    }

    /// The members of a set.
    pub(super) async fn set(&self, key: String) -> Result<Vec<Bytes>> {
        let mut cmd = redis::cmd("SMEMBERS");
        cmd.arg(key);
        Ok(array(self.command(&cmd).await?).into_iter().filter_map(scripts::bytes).collect())
    }

    /// Letters with these producers' ids.
    pub(super) async fn of_messages(&self, ids: &[String]) -> Result<BTreeSet<LetterId>> {
        let of_one = |id: &String| {
            let digest = names::message_digest(id);
            let key = self.names.messages(&names::first_digits(&digest));
            async move {
                let found = self.set(key).await?.into_iter();
                // Digests share a set by their first digits, so others are in it as well.
                let found = found.filter(move |member| member.starts_with(&digest));
                Ok::<_, super::fault::Fault>(
                    found.filter_map(|member| super::seen::letter_id(&member[16..])),
                )
            }
        };
        Ok(try_join_all(ids.iter().map(of_one)).await?.into_iter().flatten().collect())
    }

    /// The fields of a hash and their values.
    pub(super) async fn hash(&self, key: &str) -> Result<Vec<(Bytes, Bytes)>> {
        let mut cmd = redis::cmd("HGETALL");
        cmd.arg(key);
        let mut values = array(self.command(&cmd).await?).into_iter().filter_map(scripts::bytes);
        let mut all = Vec::new();
        while let (Some(field), Some(value)) = (values.next(), values.next()) {
            all.push((field, value));
        }
        Ok(all)
    }

    /// All documents of a kind.
    pub(super) async fn documents(&self, kind: DocumentKind) -> Result<Vec<(DocumentKey, String)>> {
        let read = |(field, text): (Bytes, Bytes)| {
            let (of, name) = std::str::from_utf8(&field).ok()?.split_once(' ')?;
            let key = DocumentKey { kind, name: name.to_owned() };
            (of == kind.as_str()).then(|| (key, String::from_utf8_lossy(&text).into_owned()))
        };
        Ok(self.hash(&self.names.documents).await?.into_iter().filter_map(read).collect())
    }

    /// Documents by key.
    pub(super) async fn some_documents(&self, keys: &[&DocumentKey]) -> Result<Vec<Option<Bytes>>> {
        let of = |is_bulky| {
            let keys = keys.iter().filter(move |key| key.kind.is_bulky() == is_bulky);
            keys.map(|key| key.to_string()).collect::<Vec<_>>()
        };
        // The two kinds stand in two hashes, and each command reads one.
        let (few, many) = (of(false), of(true));
        let names = &self.names;
        let few = self.fields(&names.documents, &few);
        let (few, many) = try_join(few, self.fields(&names.archive, &many)).await?;
        let (mut few, mut many) = (few.into_iter(), many.into_iter());
        let text = |key: &&DocumentKey| {
            let texts = if key.kind.is_bulky() { &mut many } else { &mut few };
            texts.next().flatten()
        };
        Ok(keys.iter().map(text).collect())
    }

    /// The names of documents of a kind of which there may be many.
    pub(super) async fn document_names(&self, range: &DocumentRange) -> Result<Vec<String>> {
        let part = names::documents(range.kind);
        let (mut lower, mut upper) = (names::from(&part), names::to(&part));
        let is_reverse = range.order == Order::NewestFirst;
        if let Some(after) = &range.after {
            let after = [&b"("[..], &part[..], after.as_bytes()].concat();
            if is_reverse { upper = after } else { lower = after }
        }
        let members = self.members((lower, upper), is_reverse, range.limit as usize).await?;
        let name = |member: Bytes| String::from_utf8(member.get(part.len()..)?.to_vec()).ok();
        Ok(members.into_iter().filter_map(name).collect())
    }

    /// The values of some fields of a hash.
    pub(super) async fn fields<F: AsRef<[u8]>>(
        &self,
        key: &str,
        fields: &[F],
    ) -> Result<Vec<Option<Bytes>>> {
        if fields.is_empty() {
            return Ok(Vec::new());
        }
        let mut cmd = redis::cmd("HMGET");
        cmd.arg(key);
        for field in fields {
            cmd.arg(field.as_ref());
        }
        Ok(array(self.command(&cmd).await?).into_iter().map(scripts::bytes).collect())
    }

    /// Names that are fields of a hash, in order.
    pub(super) async fn field_names(&self, key: &str) -> Result<BTreeSet<String>> {
        let mut cmd = redis::cmd("HKEYS");
        cmd.arg(key);
        let names = array(self.command(&cmd).await?).into_iter().filter_map(scripts::bytes);
        Ok(names.filter_map(|name| String::from_utf8(name).ok()).collect())
    }
}
