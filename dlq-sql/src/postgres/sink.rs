use std::collections::HashSet;

use bytes::Bytes;
use dlq_core::store::rules::{self, Arrival};
use dlq_core::store::{Actor, Receipt, Sink};
use dlq_core::{
    DeadLetter, Escalation, LetterId, LetterState, RetryLane, Status, StoreError, StoreErrorKind,
    Timestamp,
};

use super::PostgresStore;
use super::batch::Batch;
use super::call::{attempt, transact};
use super::codec::Fields;
use super::query::{DURABLE, Query};
use super::unit::Unit;
use crate::columns::{self, BODY, RUN};
use crate::error::{During, Fault, Result};
use crate::row::{Changed, Row};
use crate::values::{Put as _, Take as _};

/// How many letters, and about how many bytes of them, one statement writes.
const LETTERS: usize = 1_000;
const BYTES: usize = 8 * 1024 * 1024;

/// How many bytes one letter may have. Postgres takes less than 2^30 at once, and some of these are not the letter's.
pub(super) const LARGEST: usize = 1_000_000_000;

impl Sink for PostgresStore {
    async fn put(&self, letters: Vec<DeadLetter>) -> std::result::Result<Vec<Receipt>, StoreError> {
        self.bury(letters).await.during("put letters")
    }
}

impl RetryLane for PostgresStore {
    async fn escalate(&self, escalation: Escalation) -> std::result::Result<(), StoreError> {
        transact!(self, unit => async {
            let record = rules::retry_record(escalation.clone(), unit.now());
            unit.record(record).await.map(|_| ())
        })
        .during("escalate a message")
    }
}

impl PostgresStore {
    /// Most letters are new: that is tried first, many at once.
    async fn bury(&self, letters: Vec<DeadLetter>) -> Result<Vec<Receipt>> {
        // The time is the database's, and comes later.
        let put = |letter| Row::new(rules::put(letter, Timestamp::EPOCH));
        // The others are stored first, or one of them would hold them up for ever.
        let (large, rows): (Vec<_>, Vec<_>) =
            letters.into_iter().map(put).partition(|row| size(&row.letter) > self.inner.largest);
        let mut receipts = Vec::with_capacity(rows.len());
        let mut rest = &rows[..];
        while !rest.is_empty() {
            let (some, after) = rest.split_at(portion(rest));
            rest = after;
            receipts.extend(self.bury_some(some).await?);
        }
        large
            .first()
            .map_or(Ok(receipts), |large| Err(too_large(&large.letter, self.inner.largest)))
    }

    /// Those of which nothing has to be known are written if they are new: which were.
    async fn insert_new(&self, rows: &[Row]) -> Result<HashSet<LetterId>> {
        let given = self.given_time();
        let names = self.names();
        // In the order of the indexes: neighbours are found together, and two that write the same never wait in a circle.
        let says = rows.iter().filter(|row| row.letter.state != LetterState::default());
        let says: HashSet<LetterId> = says.map(|row| row.letter.id).collect();
        let mut sorted: Vec<_> = rows.iter().filter(|row| !says.contains(&row.letter.id)).collect();
        if sorted.is_empty() {
            return Ok(HashSet::new());
        }
        sorted.sort_by_key(|row| row.letter.id);
        let inserted: Result<Vec<LetterId>> = attempt!(self, conn => async {
            let mut batch = Batch::default();
            for &row in &sorted {
                let to = batch.row();
                to.bytes(Some(row.letter.id.as_bytes()))?;
                to.word(row.letter.reason.as_str())?;
                columns::put_run(row, to)?;
                columns::put_body(&row.letter, to)?;
            }
            let columns = [RUN, BODY].concat().join(", ");
            let sql = format!(
                "INSERT INTO {} (status, created_at, updated_at, letter_id, reason, {columns}) SELECT 'pending', ",
                names.letters
            );
            // Where letters may have to be merged, each is looked at.
            let fast = format!(
                " WHERE {DURABLE} AND NOT EXISTS (SELECT FROM {} WHERE name = 'dedup' AND value <> 0) \
                 AND NOT EXISTS (SELECT FROM {}) ON CONFLICT (letter_id) DO NOTHING RETURNING letter_id",
                names.meta, names.aliases
            );
            let query = Query::new(sql)
                .now(given)
                .push(", ")
                .now(given)
                .push(", ")
                .select(batch)?;
            query.push(&fast).all(conn, |row| Fields::of(row).letter()).await
        });
        Ok(inserted?.into_iter().collect())
    }

    async fn bury_some(&self, rows: &[Row]) -> Result<Vec<Receipt>> {
        let mut stored = self.insert_new(rows).await?;
        // A statement appends one difference for each kind.
        self.wrote(kinds(rows).min(stored.len())).await;
        let is_stored: Vec<_> = rows.iter().map(|row| stored.remove(&row.letter.id)).collect();
        let others = || rows.iter().zip(&is_stored).filter(|(_, stored)| !**stored);
        let others: Vec<_> = others().map(|(row, _)| &row.letter).collect();
        let mut looked_at = match &others[..] {
            [] => Vec::new(),
            others => transact!(self, unit => unit.bury_all(others))?,
        }
        .into_iter();
        let receipt = |stored| if stored { Some(Receipt::Stored) } else { looked_at.next() };
        Ok(is_stored.into_iter().filter_map(receipt).collect())
    }
}

/// How many of these rows one statement takes.
fn portion(rows: &[Row]) -> usize {
    let mut bytes = 0;
    let fits = |row: &&Row| {
        bytes += size(&row.letter);
        bytes <= BYTES
    };
    rows.iter().take(LETTERS).take_while(fits).count().max(1)
}

/// By how many kinds these rows are counted.
fn kinds(rows: &[Row]) -> usize {
    let mut kinds = HashSet::new();
    for Row { letter, .. } in rows {
        let by = (letter.reason, letter.cause, letter.class, letter.fingerprint);
        kinds.insert((by, letter.consumer.as_str(), letter.message.subject()));
    }
    kinds.len()
}

/// About how many bytes a letter takes.
pub(super) fn size(letter: &DeadLetter) -> usize {
    let message = &letter.message;
    let length = |bytes: Option<&Bytes>| bytes.map_or(0, Bytes::len);
    let headers = message.headers().iter();
    let headers = headers.map(|header| header.name.len() + length(header.value.as_ref()));
    let rest = length(message.payload()) + length(message.key()) + letter.error().len();
    headers.sum::<usize>() + rest + 1_000
}

pub(super) fn too_large(letter: &DeadLetter, largest: usize) -> Fault {
    Fault::new(
        StoreErrorKind::Refused,
        format!(
            "the letter {} has {} bytes, and PostgreSQL takes at most {largest}; keep it in another store",
            letter.id,
            size(letter)
        ),
    )
}

impl Unit<'_> {
    async fn fetch_known(&mut self, letters: &[&DeadLetter]) -> Result<()> {
        let ids: Vec<_> = letters.iter().map(|letter| letter.id).collect();
        self.fetch(&ids).await?;
        self.fetch_originals(letters.iter().copied()).await
    }

    async fn bury_all(&mut self, letters: &[&DeadLetter]) -> Result<Vec<Receipt>> {
        self.fetch_known(letters).await?;
        let mut receipts = Vec::with_capacity(letters.len());
        for letter in letters {
            let letter = rules::put((*letter).clone(), self.now());
            receipts.push(self.bury(letter).await?);
        }
        Ok(receipts)
    }

    pub(super) async fn restore_all(
        &mut self,
        letters: &[DeadLetter],
        by: &Actor,
    ) -> Result<Vec<Receipt>> {
        self.fetch_known(&letters.iter().collect::<Vec<_>>()).await?;
        let mut receipts = Vec::with_capacity(letters.len());
        for letter in letters {
            let letter = rules::restored(letter.clone(), self.now());
            receipts.push(if letter.state.status == Status::Retrying {
                self.record(letter).await?
            } else {
                self.bury(letter).await?
            });
        }
        let (subject, affected) = rules::restored_subject(&receipts);
        self.note_action(by, "restore", subject, affected);
        Ok(receipts)
    }

    /// A letter whose state is the one that it gets where it is new.
    async fn bury(&mut self, mut letter: DeadLetter) -> Result<Receipt> {
        let (id, now) = (letter.id, self.now());
        let is_dedup = self.is_dedup().await?;
        let row = self.whole(id).await?;
        if row.is_none()
            && let Some(receipt) = self.merge_known(&letter).await?
        {
            return Ok(receipt);
        }
        let standing = row.as_ref().map(|row| row.standing(&letter, is_dedup));
        match rules::death_arrives(standing, letter.generation) {
            Arrival::Known => Ok(Receipt::Unchanged),
            Arrival::OutOfDate => Ok(Receipt::Superseded),
            Arrival::Conflict => {
                let other = id.conflicting(&letter.message);
                letter.id = other;
                Ok(match Box::pin(self.bury(letter)).await? {
                    inner @ (Receipt::Conflicting(_) | Receipt::Merged(_)) => inner,
                    _ => Receipt::Conflicting(other),
                })
            }
            Arrival::News => {
                if let Some(mut row) = row {
                    self.died_anew(&mut row, &letter).await?;
                    row.void();
                    rules::replace(&mut row.letter, letter, now);
                    self.take_key(&row).await?;
                    self.update(row, Changed::All);
                }
                Ok(Receipt::Reopened)
            }
            Arrival::New => {
                if let Some(owner) = self.owner_of(&letter).await? {
                    return self.merge(owner, letter).await;
                }
                let row = Row::new(letter);
                self.take_key(&row).await?;
                self.insert(row);
                Ok(Receipt::Stored)
            }
        }
    }

    async fn record(&mut self, mut record: DeadLetter) -> Result<Receipt> {
        let (id, now) = (record.id, self.now());
        let is_dedup = self.is_dedup().await?;
        let row = self.whole(id).await?;
        if row.is_none()
            && let Some((owner, generation)) = self.alias(&record).await?
            && generation >= record.generation
        {
            return Ok(Receipt::Merged(owner));
        }
        let standing = row.as_ref().map(|row| row.standing(&record, is_dedup));
        match (rules::record_arrives(standing, record.generation, record.attempts), row) {
            (Arrival::Known, _) => Ok(Receipt::Unchanged),
            (Arrival::OutOfDate, _) => Ok(Receipt::Superseded),
            (Arrival::Conflict, _) => {
                let other = id.conflicting(&record.message);
                record.id = other;
                Ok(match Box::pin(self.record(record)).await? {
                    inner @ (Receipt::Conflicting(_) | Receipt::Merged(_)) => inner,
                    _ => Receipt::Conflicting(other),
                })
            }
            (Arrival::News, Some(mut row)) => {
                if record.generation > row.letter.generation {
                    self.died_anew(&mut row, &record).await?;
                    row.void();
                }
                rules::take_record(&mut row.letter, record, now);
                self.update(row, Changed::All);
                Ok(Receipt::Reopened)
            }
            (Arrival::New | Arrival::News, _) => {
                self.insert(Row::new(record));
                Ok(Receipt::Stored)
            }
        }
    }
}
