//! Findings about the store itself: settings of the server that contradict it, keys of another type, and, by a look at
//! everything that is stored, damage.

use std::collections::{BTreeMap, BTreeSet};

use dlq_core::store::CheckLimits;
use dlq_core::{Filter, Finding, Severity};
use futures_util::future::try_join_all;

use super::Inner;
use super::codec::StoredRow;
use super::config::Durability;
use super::fault::{Fault, Result};
use super::names::{self, Bytes};
use super::ops::Record;
use super::scripts::{self, array, bytes, number};
use super::search::Search;
use super::write::counted;
use crate::client::RedisErrorKind;

/// From which part of the memory on it is nearly full, in hundredths.
const NEARLY_FULL: u64 = 90;
/// The most findings about damage.
const MOST: usize = 20;
/// The parts of the index that letters are in.
const FACETS: [u8; 7] = *b"acdfjos";

type Info = BTreeMap<String, String>;

impl Inner {
    pub(super) async fn examine(&self, limits: &CheckLimits) -> Result<Vec<Finding>> {
        let mut findings = self.types().await?;
        // With a key of another type there is no more to ask.
        if !findings.is_empty() {
            return Ok(findings);
        }
        findings.extend(self.vitals().await?.findings(limits));
        findings.extend(self.settings().await?);
        if limits.is_deep {
            findings.extend(self.damage().await?);
        }
        Ok(findings)
    }

    /// Keys that hold something else than the store keeps there.
    async fn types(&self) -> Result<Vec<Finding>> {
        let kinds = self.link.names.kinds().into_iter().map(|(key, kind)| async move {
            let mut cmd = redis::cmd("TYPE");
            cmd.arg(key);
            let found = bytes(self.link.command(&cmd).await?).unwrap_or_default();
            Ok::<_, Fault>((key, kind, String::from_utf8_lossy(&found).into_owned()))
        });
        let wrong = try_join_all(kinds).await?.into_iter();
        let wrong = wrong.filter(|(_, kind, found)| found != kind && found != "none");
        let finding = |(key, kind, found): (&str, &str, String)| {
            Finding::new(Severity::Error, &format!("key `{key}`"), "type").found(found, kind).advice(
                "the store cannot write; somebody else uses the key: give the store another prefix, or remove the key and restore a \
                 backup",
            )
        };
        Ok(wrong.map(finding).collect())
    }

    /// Finds settings of the server that contradict the durability of the store.
    async fn settings(&self) -> Result<Vec<Finding>> {
        let section = |name| async move {
            match self.info(name).await {
                Ok(info) => Ok(Some(info)),
                // A right that is missing is a finding, and not a reason to find nothing else.
                Err(Fault::Redis(error)) if error.kind() == RedisErrorKind::Forbidden => Ok(None),
                Err(fault) => Err(fault),
            }
        };
        let memory = section("memory").await?;
        let persistence = section("persistence").await?;
        let replication = section("replication").await?;
        let (Some(memory), Some(persistence), Some(replication)) =
            (memory, persistence, replication)
        else {
            return Ok(vec![
                Finding::new(Severity::Note, "server", "settings").found("unknown", "known").advice(
                    "the user may not run `info`, so that nothing is known of eviction, persistence and replicas; grant it: ACL SETUSER \
                     NAME +info",
                ),
            ]);
        };
        let mut findings: Vec<_> = evicts(&memory).into_iter().chain(is_full(&memory)).collect();
        findings.extend(persists(&persistence, self.durability));
        findings.extend(replicates(&replication, self.durability));
        Ok(findings)
    }

    async fn seq(&self) -> Result<u64> {
        let seq = self.link.fields(&self.link.names.meta, &["seq"]).await?.pop().flatten();
        Ok(seq.and_then(|seq| String::from_utf8(seq).ok()?.parse().ok()).unwrap_or(0))
    }

    /// Looks at every letter and every item: whether the index has them, and whether counts fit.
    async fn damage(&self) -> Result<Vec<Finding>> {
        let names = &self.link.names;
        // The number of the last commit. Only where it is the same at the end was nothing written meanwhile.
        let before = self.seq().await?;
        let mut found = Vec::new();
        Search::fixed(&Filter::new())
            .visit(&self.link, |it| found.push(summary(names, &it)))
            .await?;
        let mut damages = Vec::new();
        let mut counts: BTreeMap<(&str, Bytes), u64> = BTreeMap::new();
        let mut facets: BTreeMap<u8, u64> = BTreeMap::new();
        let mut all_sets: BTreeSet<(String, Bytes)> = BTreeSet::new();
        // In chunks: one command for all members would hold the server up.
        for letters in found.chunks(50) {
            let members: Vec<_> = letters.iter().flat_map(|(_, members, ..)| members).collect();
            let mut cmd = redis::cmd("ZMSCORE");
            cmd.arg(&names.index);
            for member in &members {
                cmd.arg(&member[..]);
            }
            let scores = array(self.link.command(&cmd).await?);
            let is_missing = |value: &redis::Value| *value == redis::Value::Nil;
            let mut scores = scores.iter();
            for (id, members, counted, sets) in letters {
                let missing = scores.by_ref().take(members.len()).filter(|it| is_missing(it));
                // It may have changed since it was read.
                if missing.count() > 0 && self.is_out_of_index(*id).await? {
                    damages.push(format!("letter {id} is not in every part of the index"));
                }
                members.iter().for_each(|it| *facets.entry(it[0]).or_default() += 1);
                counted.iter().for_each(|it| *counts.entry(it.clone()).or_default() += 1);
                all_sets.extend(sets.iter().cloned());
            }
        }
        let mut off = self.sets_off(&all_sets).await?;
        for facet in FACETS {
            let size = self.link.size(&[vec![facet]], &Filter::new()).await?;
            let is = facets.get(&facet).copied().unwrap_or(0);
            if size != is {
                let facet = char::from(facet);
                off.push(format!("the part `{facet}` of the index has {size} entries for {is}"));
            }
        }
        for key in [&names.counts, &names.groups, &names.lines] {
            for (field, n) in self.link.hash(key).await? {
                let n = String::from_utf8_lossy(&n).parse().unwrap_or(0_u64);
                let text = String::from_utf8_lossy(&field).into_owned();
                let is = counts.remove(&(&**key, field)).unwrap_or(0);
                if n != is {
                    off.push(format!("the count `{text}` in `{key}` is {n}, and {is} were found"));
                }
            }
        }
        // What is left has letters and no counter.
        let missing = counts.into_iter().filter(|(_, n)| *n > 0);
        off.extend(missing.map(|((key, field), n)| {
            let field = String::from_utf8_lossy(&field).into_owned();
            format!("the count `{field}` in `{key}` is missing, and {n} were found")
        }));
        // What was written meanwhile was counted on one side only.
        if self.seq().await? == before {
            damages.extend(off);
            damages.extend(self.items_off().await?);
        }
        // One fail-over may leave thousands of them, and the advice is the same for each.
        damages.truncate(MOST);
        Ok(damages.iter().map(|damage| damaged(damage)).collect())
    }

    /// Sets of ids that have too few or too many.
    async fn sets_off(&self, expected: &BTreeSet<(String, Bytes)>) -> Result<Vec<String>> {
        let names = &self.link.names;
        // Counted and not listed: one eviction may take a set of hundreds.
        let (mut missing, mut found) = (expected.len(), 0);
        let digits: Vec<_> = (0..4096).map(|n| format!("{n:03x}")).collect();
        for digits in digits.chunks(64) {
            let keys = digits.iter().flat_map(|it| [names.ids(it), names.messages(it)]);
            let keys: Vec<_> = keys.collect();
            let sets = try_join_all(keys.iter().map(|key| self.link.set(key.clone()))).await?;
            for (key, members) in keys.into_iter().zip(sets) {
                found += members.len();
                let is_there = |member: &Bytes| expected.contains(&(key.clone(), member.clone()));
                missing -= members.iter().filter(|member| is_there(member)).count();
            }
        }
        let surplus = found - (expected.len() - missing);
        let is_off = missing > 0 || surplus > 0;
        Ok(is_off
            .then(|| {
                format!("sets of ids lack {missing} letters, and have {surplus} that are gone")
            })
            .into_iter()
            .collect())
    }

    async fn is_out_of_index(&self, id: dlq_core::LetterId) -> Result<bool> {
        let found = self.link.letters([id], dlq_letters::Depth::Head).await?;
        let Some(found) = found.into_iter().find_map(|(_, found)| found) else { return Ok(false) };
        let mut cmd = redis::cmd("ZMSCORE");
        cmd.arg(&self.link.names.index);
        for member in names::members(&found.row) {
            cmd.arg(member);
        }
        Ok(array(self.link.command(&cmd).await?).contains(&redis::Value::Nil))
    }

    /// Operations whose counts do not fit their items.
    async fn items_off(&self) -> Result<Vec<String>> {
        let mut off = Vec::new();
        for operation in self.list_operations(u32::MAX >> 1).await? {
            let mut counts: BTreeMap<String, u64> = BTreeMap::new();
            // Page by page: an operation may have a million items, and the server serves nobody else while it lists them.
            let mut cursor = "0".to_owned();
            loop {
                let mut cmd = redis::cmd("HSCAN");
                cmd.arg(self.link.names.items(operation.id)).arg(&cursor).arg("COUNT").arg(1_000);
                let [next, some] = scripts::parts(self.link.command(&cmd).await?)?;
                for record in array(some).into_iter().skip(1).step_by(2).filter_map(bytes) {
                    *counts.entry(Record::read(&record)?.outcome).or_default() += 1;
                }
                cursor = number(next).to_string();
                if cursor == "0" {
                    break;
                }
            }
            let counted = operation.progress.by_outcome.iter();
            let counted: BTreeMap<_, _> =
                counted.map(|(outcome, n)| (outcome.to_string(), *n)).collect();
            if counted != counts {
                off.push(format!(
                    "operation {} counts its letters as {counted:?}, and {counts:?} were found",
                    operation.id
                ));
            }
        }
        Ok(off)
    }
}

type Summary<'n> =
    (dlq_core::LetterId, Vec<Bytes>, Vec<(&'n str, Bytes)>, BTreeSet<(String, Bytes)>);

fn summary<'n>(names: &'n names::Names, found: &StoredRow) -> Summary<'n> {
    let members = names::members(&found.row).into_iter().collect();
    (found.row.letter.id, members, counted(names, &found.row), names.sets(&found.row))
}

fn field<'i>(info: &'i Info, name: &str) -> &'i str {
    info.get(name).map_or("", String::as_str)
}

fn evicts(memory: &Info) -> Option<Finding> {
    let policy = field(memory, "maxmemory_policy");
    (!matches!(policy, "noeviction" | "")).then(|| {
        Finding::new(Severity::Error, "server", "maxmemory-policy").found(policy, "noeviction").advice(
            "the server deletes keys when its memory is full, letters among them and parts of their index; set it at the server: \
             CONFIG SET maxmemory-policy noeviction",
        )
    })
}

fn is_full(memory: &Info) -> Option<Finding> {
    let number = |name| field(memory, name).parse::<u64>().unwrap_or(0);
    let (used, most) = (number("used_memory"), number("maxmemory"));
    (most > 0 && used.saturating_mul(100) >= most.saturating_mul(NEARLY_FULL)).then(|| {
        Finding::new(Severity::Warning, "server", "used_memory")
            .found(format!("{used} of {most}"), format!("less than {NEARLY_FULL} in 100"))
            .advice(
                "a full server takes no letters, and consumers stop; delete what is resolved for good: dlq delete --status resolved --until 7d --for-good; \
                 or raise `maxmemory`",
            )
    })
}

fn persists(persistence: &Info, durability: Durability) -> Option<Finding> {
    let finding = |severity, setting: &str, found: &str, want: &str, advice: &str| {
        Some(Finding::new(severity, "server", setting).found(found, want).advice(advice))
    };
    if field(persistence, "aof_enabled") == "0" && durability != Durability::Memory {
        let advice = "a crash of the server loses letters; set it at the server: CONFIG SET appendonly yes, and in its configuration";
        return finding(Severity::Error, "appendonly", "no", "yes", advice);
    }
    let status = field(persistence, "aof_last_write_status");
    if field(persistence, "aof_enabled") == "1" && !matches!(status, "ok" | "") {
        let advice = "the server cannot write its append-only file, most likely because its disk is full; make room";
        return finding(Severity::Error, "aof_last_write_status", status, "ok", advice);
    }
    None
}

fn replicates(replication: &Info, durability: Durability) -> Option<Finding> {
    let Durability::Replicas(wanted) = durability else { return None };
    let replicas: u32 = field(replication, "connected_slaves").parse().unwrap_or(0);
    (replicas < wanted).then(|| {
        Finding::new(Severity::Error, "server", "connected replicas")
            .found(replicas.to_string(), format!("at least {wanted}"))
            .advice("no write is confirmed, and consumers stop; start replicas")
    })
}

fn damaged(damage: &str) -> Finding {
    Finding::new(Severity::Error, "store", "integrity").found(damage, "whole").advice(
        "keys were changed by hand, evicted, or forgotten by a fail-over in the middle; take over what can be read: dlq export, then \
         restore it into a store of another prefix",
    )
}
