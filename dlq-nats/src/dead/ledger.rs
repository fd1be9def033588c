//! Ledger of replays: a key-value bucket with one record for every 256 sequences of the stream of dead letters.
//!
//! A record says which deaths were sent, and who is sending now. It changes by compare-and-set only, so that of two who
//! want a chunk one has it. Deaths are marked by name and not by sequence: copies of a death are one, and a stream that
//! was created anew under its old name has no marks.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use async_nats::Client;
use async_nats::jetstream::Context;
use async_nats::jetstream::consumer::DeliverPolicy;
use async_nats::jetstream::kv::{Config, Store};
use async_nats::jetstream::stream::{self, StorageType};
use dlq_core::{Death, OperationId, StoreError, StoreErrorKind, Timestamp};
use futures_util::TryStreamExt;
use serde::{Deserialize, Serialize};

use super::scan::Scan;
use crate::client::buckets::{self, stream_of};
use crate::client::publish::unwritable;

const OPERATION: &str = "read or write what was sent back";

/// Maximum difference between the clocks of two servers.
pub(super) const SKEW: Duration = Duration::from_secs(10);

/// Number of sequences that share a record.
pub(super) const CHUNK: u64 = 256;

/// Last replay of a death.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct Mark {
    pub(super) operation: OperationId,
    pub(super) at: Timestamp,
    /// Number of times, including this one.
    pub(super) times: u32,
}

pub(super) type Marks = HashMap<Death, Mark>;

/// Somebody sends letters of a chunk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Claim {
    pub(super) owner: String,
    pub(super) lease_ms: u64,
    /// Positions of the destination streams before the owner sent anything that is not marked.
    pub(super) streams: BTreeMap<String, u64>,
}

impl Claim {
    pub(super) fn lease(&self) -> Duration {
        Duration::from_millis(self.lease_ms)
    }
}

/// The record of a chunk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) claim: Option<Claim>,
    pub(super) marks: BTreeMap<Death, Mark>,
}

/// A record as it is written.
#[derive(Serialize, Deserialize)]
struct Written {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    claim: Option<Claim>,
    sent: Vec<Sent>,
}

/// Deaths with the same mark.
#[derive(Serialize, Deserialize)]
struct Sent {
    #[serde(flatten)]
    mark: Mark,
    deaths: Vec<String>,
}

impl Record {
    fn to_json(&self) -> Result<Vec<u8>, serde_json::Error> {
        // One operation marks many deaths of a chunk alike, so that the mark is written once for all of them.
        let mut groups: BTreeMap<Mark, Vec<String>> = BTreeMap::new();
        for (death, mark) in &self.marks {
            groups.entry(*mark).or_default().push(death.to_string());
        }
        let sent = groups.into_iter().map(|(mark, deaths)| Sent { mark, deaths }).collect();
        serde_json::to_vec(&Written { claim: self.claim.clone(), sent })
    }

    fn from_json(json: &[u8]) -> Option<Self> {
        // A record that was removed by hand leaves a marker without a value.
        if json.is_empty() {
            return Some(Self::default());
        }
        let written: Written = serde_json::from_slice(json).ok()?;
        let mut marks = BTreeMap::new();
        for Sent { mark, deaths } in &written.sent {
            for death in deaths {
                marks.insert(death.parse().ok()?, *mark);
            }
        }
        Some(Self { claim: written.claim, marks })
    }
}

/// A record and where it stands.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) record: Record,
    /// 0 where there is none yet.
    pub(super) revision: u64,
    /// When it was written, by the server's clock.
    pub(super) written: Timestamp,
}

/// The bucket, for those who write.
#[derive(Clone, Debug)]
pub(super) struct Ledger {
    client: Client,
    bucket: Store,
}

impl Ledger {
    /// Opens the bucket, which is created when it is not there: it keeps what it is told as long as the letters are
    /// kept. One that would forget what was sent before that is refused.
    pub(super) async fn open(
        context: &Context,
        bucket: &str,
        letters: &stream::Config,
    ) -> Result<Self, StoreError> {
        let config = Config {
            bucket: bucket.to_owned(),
            description: format!("Which letters of `{}` were sent back", letters.name),
            history: 1,
            max_age: letters.max_age,
            storage: StorageType::File,
            num_replicas: letters.num_replicas,
            ..Config::default()
        };
        let wrong = |found: &_| buckets::forgets(found, Some(letters.max_age));
        let bucket = buckets::ensure(context, config, wrong).await;
        let client = context.client();
        Ok(Self { client, bucket: bucket.map_err(|error| error.for_store(OPERATION))? })
    }

    pub(super) async fn read(&self, chunk: u64) -> Result<Entry, StoreError> {
        let key = chunk.to_string();
        let entry = buckets::read(&self.client, &self.bucket, &key, OPERATION).await?;
        let Some(entry) = entry else {
            let (record, written) = (Record::default(), Timestamp::EPOCH);
            return Ok(Entry { record, revision: 0, written });
        };
        let record = Record::from_json(&entry.payload).ok_or_else(|| unreadable(&key))?;
        let (revision, written) = (entry.sequence, buckets::timestamp(entry.time));
        Ok(Entry { record, revision, written })
    }

    /// Replaces what stood at `revision`: the new revision, or `None` when somebody else was faster.
    pub(super) async fn write(
        &self,
        chunk: u64,
        record: &Record,
        revision: u64,
    ) -> Result<Option<u64>, StoreError> {
        let json = record.to_json().map_err(|error| unwritable(OPERATION, error))?;
        let key = chunk.to_string();
        let (client, bucket) = (&self.client, &self.bucket);
        buckets::replace(client, bucket, &key, json.into(), revision, OPERATION).await
    }
}

/// Content of the bucket.
#[derive(Debug, Default)]
pub(super) struct Said {
    /// Every mark.
    pub(super) marks: Marks,
    /// The records of chunks that somebody has claimed.
    pub(super) claimed: HashMap<u64, Entry>,
}

/// Reads the whole bucket.
pub(super) async fn read(context: &Context, bucket: &str) -> Result<Said, StoreError> {
    let prefix = format!("$KV.{bucket}.");
    let scan = Scan {
        operation: OPERATION,
        stream: stream_of(bucket),
        subject: format!("{prefix}>"),
        from: DeliverPolicy::LastPerSubject,
        headers_only: false,
        to: None,
        follow: false,
    };
    let mut records = scan.run(context.clone());
    let mut said = Said::default();
    while let Some((message, place)) = records.try_next().await? {
        let key = message.subject.as_str().trim_start_matches(&prefix);
        let record = Record::from_json(&message.payload).ok_or_else(|| unreadable(key))?;
        // A death is in one record only, unless its copies stand in several chunks: any of their marks says that it was
        // sent.
        said.marks.extend(record.marks.iter().map(|(death, mark)| (*death, *mark)));
        if record.claim.is_some()
            && let Ok(chunk) = key.parse::<u64>()
        {
            let (revision, written) = (place.sequence, place.published);
            said.claimed.insert(chunk, Entry { record, revision, written });
        }
    }
    Ok(said)
}

fn unreadable(key: &str) -> StoreError {
    let text = format!("the record `{key}` is none of this version; remove it to go without it");
    StoreError::new(StoreErrorKind::Corrupt, OPERATION).with_detail(text)
}
