use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dlq_core::log::Range;
use dlq_core::outbox::{Address, Outbox as _};
use dlq_core::replay::{ReplayPlan, Selected, Skipped};
use dlq_core::{DeadLetter, Death, OperationId, StoreError, StoreErrorKind};
use dlq_letters::log::Reading;

use super::super::ledger;
use super::super::letters::place_of;
use super::{Agreed, Picture, REPLAYING, RedisReplay, RedisTarget, Row};
use crate::RedisOutbox;
use crate::client::as_text;
use crate::consumer::Keys;

/// Number of deaths that the ledger is asked for at once.
const AT_ONCE: usize = 512;

impl RedisReplay {
    /// Finds out what it would do now, without doing it. From here on it sends nothing else, until it is planned again.
    ///
    /// # Errors
    ///
    /// `NotFound` when there is no such stream of dead letters; `Refused` when there is no stream that letters are to be
    /// sent to, or they are kept in a store; `InvalidConfig` when the user may not run a command that is needed;
    /// `Unavailable` when the server does not respond.
    pub async fn plan(&self) -> Result<ReplayPlan, StoreError> {
        self.refuse_kept().await?;
        self.refuse_nowhere().await?;
        let picture = Arc::new(self.picture(None).await?);
        let selected = self.select(&picture, None);
        let mut plan = selected.plan();
        self.look_at(&selected.send, &mut plan).await?;
        let last = selected.last().unwrap_or_default();
        // The picture is kept, so that the run sends what the operator has seen and nothing that has come since.
        *lock(&self.agreed) = Some(Agreed { last, picture: Arc::clone(&picture) });
        Ok(plan)
    }

    /// Refuses letters that are kept in a store, which would not learn of it.
    pub(super) async fn refuse_kept(&self) -> Result<(), StoreError> {
        use dlq_core::log::Log as _;

        match self.letters.marks().await?.into_iter().next() {
            Some(mark) => Err(refused(kept(self.letters.stream(), &mark.store))),
            None => Ok(()),
        }
    }

    /// Refuses a stream by name that is not there, or in a cluster elsewhere.
    pub(super) async fn refuse_nowhere(&self) -> Result<(), StoreError> {
        let RedisTarget::Stream(stream) = &self.target else { return Ok(()) };
        let keys = Keys::of(stream).map_err(|error| refused(error.to_string()))?;
        if *keys.stream == *self.letters.stream() {
            let text = format!("`{stream}` has the dead letters themselves; name another stream");
            return Err(refused(text));
        }
        if !self.is_near(stream) {
            return Err(refused(format!(
                "`{stream}` is in another slot of the cluster than `{}`, so that a letter cannot be sent once; ingest the letters \
                 into a store and send them from there",
                self.letters.stream()
            )));
        }
        let kind = self.letters.client.command(redis::cmd("TYPE").arg(stream)).await;
        let kind = kind.map_err(|error| error.for_store(REPLAYING))?;
        match as_text(&kind).as_deref() {
            Some("stream") => Ok(()),
            // It is not created here: with a mistyped name, letters would go where nobody reads.
            Some("none") => Err(refused(format!(
                "there is no stream `{stream}`; create it with its consumer group, or name another"
            ))),
            kind => {
                let kind = kind.unwrap_or("something else");
                Err(refused(format!("`{stream}` is a {kind} and no stream; name another")))
            }
        }
    }

    /// Reads the letters that match; those of `before` where nothing has come or was sent since.
    pub(super) async fn picture(
        &self,
        before: Option<&Arc<Picture>>,
    ) -> Result<Picture, StoreError> {
        let stands = self.letters.stands().await?;
        // Nothing was added where length and last id are the same. The ledger is read anew, since others may have sent
        // letters.
        if let Some(before) = before.filter(|before| before.stands == stands) {
            let marks = self.marks(&before.rows).await?;
            if marks == before.marks {
                return Ok(Picture { stands, rows: before.rows.clone(), marks });
            }
        }
        // All entries are read, since a copy or a later death of a letter may stand anywhere in the stream.
        let read = Reading::of(self.letters.clone(), Range::all()).await?;
        let row = |row: dlq_core::store::reading::Row<dlq_core::Origin>| {
            Row::kept(row.letter, place_of(&row.place), row.size, row.bytes)
        };
        let rows: Vec<Row> = read.rows(&self.filter).await?.into_iter().map(row).collect();
        let marks = self.marks(&rows).await?;
        Ok(Picture { stands, rows, marks })
    }

    async fn marks(&self, rows: &[Row]) -> Result<Vec<Option<ledger::Marked>>, StoreError> {
        let mut marks = Vec::with_capacity(rows.len());
        for rows in rows.chunks(AT_ONCE) {
            let deaths: Vec<Death> = rows.iter().map(|row| row.letter.death()).collect();
            let found = ledger::read(&self.letters.client, &self.letters.keys, &deaths).await;
            marks.extend(found.map_err(|error| error.for_running_store(REPLAYING))?);
        }
        Ok(marks)
    }

    /// Decides which letters are sent and which are not, up to a place where one was agreed upon.
    pub(super) fn select<'a>(
        &self,
        picture: &'a Picture,
        agreed: Option<&Agreed>,
    ) -> Selected<'a, super::EntryId> {
        let pairs = picture.rows.iter().zip(&picture.marks);
        let sent: BTreeMap<Death, OperationId> = pairs
            .filter_map(|(row, mark)| Some((row.letter.death(), mark.as_ref()?.operation)))
            .collect();
        let rows = picture.rows.iter();
        let rows = rows.filter(|row| agreed.is_none_or(|agreed| row.place <= agreed.last));
        self.rules.select(rows, |death| sent.get(death).copied(), |letter| self.barred(letter))
    }

    fn barred(&self, letter: &DeadLetter) -> Option<Skipped> {
        self.stream_for(letter).is_none().then_some(Skipped::NoOrigin)
    }

    /// The stream that a letter goes to, if it can be sent there once.
    pub(super) fn stream_for<'a>(&'a self, letter: &'a DeadLetter) -> Option<&'a str> {
        match &self.target {
            RedisTarget::Stream(stream) => Some(stream),
            RedisTarget::Origin => {
                let origin = &letter.origin;
                let stream = (origin.transport() == "redis").then(|| origin.stream())?;
                // In another slot no script reaches the ledger as well, so that the letter could not be sent once (G6).
                (Keys::of(stream).is_ok() && self.is_near(stream)).then_some(stream)
            }
        }
    }

    /// Returns true if one script reaches a stream and the ledger.
    fn is_near(&self, stream: &str) -> bool {
        !self.letters.client.is_cluster() || self.letters.keys.is_near(stream)
    }

    /// Looks who will hear the letters, and which streams take none.
    async fn look_at(&self, rows: &[&Row], plan: &mut ReplayPlan) -> Result<(), StoreError> {
        let mut consumers: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for row in rows {
            if let Some(stream) = self.stream_for(&row.letter) {
                consumers.entry(stream).or_default().insert(&row.letter.consumer);
            }
        }
        let to = consumers.keys().map(|stream| Address::new("redis", "default", *stream));
        let survey = RedisOutbox::new(&self.letters.client).survey(to.collect()).await?;
        plan.notes.extend(survey.notes);
        for (to, why) in survey.closed {
            plan.notes.push(format!("letters for `{}` will fail: {why}", to.subject));
        }
        plan.subscribers = survey.subscribers.into_iter().collect();
        // Whose letters all of them are hears nothing of others.
        plan.subscribers.retain(|subscriber| {
            let of = consumers.get(subscriber.stream.as_str());
            of.is_none_or(|of| of.iter().any(|consumer| *consumer != subscriber.consumer))
        });
        plan.subscribers.sort_unstable();
        Ok(())
    }
}

pub(super) fn kept(stream: &str, store: &str) -> String {
    format!(
        "the letters of `{stream}` are kept in {store}, which would not learn of it; send them from that store"
    )
}

pub(super) fn refused(text: impl Into<String>) -> StoreError {
    StoreError::new(StoreErrorKind::Refused, REPLAYING).with_detail(text.into())
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
