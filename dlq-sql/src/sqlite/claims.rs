use std::time::Duration;

use dlq_core::store::{
    Claim, ClaimRequest, ClaimToken, Claims, Finish, Finished, ItemOutcome, ScheduleRun, rules,
};
use dlq_core::{ErrorClass, Filter, LetterId, OperationId, Resolution, StoreError, Timestamp};
use dlq_letters::{Backend, Changed, Lease};
use rusqlite::Connection;

use super::SqliteStore;
use super::codec::Fields;
use super::codec::read_head;
use super::names::Names;
use super::operations;
use super::query::Query;
use super::unit::Unit;
use crate::error::{During, Result};
use crate::values::Take as _;

impl Claims for SqliteStore {
    async fn claim(&self, request: ClaimRequest) -> std::result::Result<Vec<Claim>, StoreError> {
        if request.limit == 0 {
            return Ok(Vec::new());
        }
        let now = self.now();
        self.write(move |unit| unit.claim(&request, now)).await.during("claim letters")
    }

    async fn extend(
        &self,
        tokens: Vec<ClaimToken>,
        lease: Duration,
    ) -> std::result::Result<Vec<bool>, StoreError> {
        let until = self.now().after(lease);
        let extend = move |unit: &mut Unit<'_>| {
            tokens.iter().map(|token| unit.extend(token, until)).collect()
        };
        self.write(extend).await.during("extend claims")
    }

    async fn finish(
        &self,
        finishes: Vec<(ClaimToken, Finish)>,
    ) -> std::result::Result<Vec<Finished>, StoreError> {
        let now = self.now();
        let finish = move |unit: &mut Unit<'_>| {
            finishes.iter().map(|(token, finish)| unit.finish(token, finish, now)).collect()
        };
        self.write(finish).await.during("finish claims")
    }

    async fn next_due(
        &self,
        consumers: Vec<String>,
    ) -> std::result::Result<Option<Timestamp>, StoreError> {
        Backend::next_due(self, consumers).await
    }

    fn store_identity(&self) -> Option<String> {
        Some(self.identity())
    }

    async fn run_schedule(
        &self,
        run: ScheduleRun,
    ) -> std::result::Result<(u64, Duration), StoreError> {
        if !run.schedule.enabled {
            return Ok((0, Duration::MAX));
        }
        let now = self.now();
        self.write(move |unit| unit.run_schedule(&run, now)).await.during("run the schedule")
    }
}

/// Names to ask for one by one, so that each is answered in order from an index; `None` for all together.
pub(super) fn each_consumer(filter: &Filter) -> Vec<Option<&str>> {
    if filter.consumers.is_empty() {
        return vec![None];
    }
    let mut names: Vec<_> = filter.consumers.iter().map(|name| Some(name.as_str())).collect();
    names.sort_unstable();
    names.dedup();
    names
}

pub(super) fn next_due(
    conn: &Connection,
    names: &Names,
    consumers: &[String],
    now: Timestamp,
) -> Result<Option<Timestamp>> {
    let first = |name: Option<&str>| -> Result<Option<Timestamp>> {
        let query =
            Query::new(format!("SELECT available_at FROM {0} INDEXED BY {0}", names.letters));
        let query = match name {
            Some(name) => query.push("_available_to WHERE consumer = ").bind(name),
            None => query.push("_available WHERE 1"),
        };
        query
            .push(" AND available_at IS NOT NULL ORDER BY available_at LIMIT 1")
            .first(conn, |row| Fields::after(row, 0).time())
    };
    let mut next = if consumers.is_empty() { first(None)? } else { None };
    for name in consumers {
        next = next.into_iter().chain(first(Some(name))?).min();
    }
    let release = operations::next_release(conn, names, consumers, now)?;
    Ok(next.into_iter().chain(release).min())
}

impl Unit<'_> {
    fn claim(&mut self, request: &ClaimRequest, now: Timestamp) -> Result<Vec<Claim>> {
        let limit = request.limit as usize;
        let mut due = self.due(&request.filter, limit, now)?;
        while self.take_back_cancelled(&due, now)? {
            due = self.due(&request.filter, limit, now)?;
        }
        if due.len() < limit && self.release(&request.filter, limit - due.len(), now)? {
            due = self.due(&request.filter, limit, now)?;
        }
        if due.is_empty() {
            return Ok(Vec::new());
        }
        let until = now.after(request.lease);
        let mut fence = self.fences(due.len())?;
        let mut claims = Vec::with_capacity(due.len());
        for (id, _) in due {
            let Some(mut row) = self.whole(id)? else { continue };
            claims.push(row.hand_out(&Lease { fence, owner: &request.owner, now, until }));
            self.update(&mut row, Changed::State)?;
            fence += 1;
        }
        Ok(claims)
    }

    /// The letters that can be claimed now, first come first, at most `limit`, and the operations that hold them.
    fn due(
        &self,
        filter: &Filter,
        limit: usize,
        now: Timestamp,
    ) -> Result<Vec<(LetterId, Option<OperationId>)>> {
        let letters = &self.names().letters;
        let mut places = Vec::new();
        let mut rest = filter.clone();
        rest.consumers.clear();
        for name in each_consumer(filter) {
            let query = Query::new(format!(
                "SELECT t.available_at, t.created_at, t.letter_id, t.operation FROM {letters} t INDEXED BY {letters}"
            ));
            let query = match name {
                Some(name) => query.push("_available_to WHERE t.consumer = ").bind(name),
                None => query.push("_available WHERE 1"),
            };
            let query = query.push(" AND t.available_at <= ").bind(now).push(" AND ").filter(&rest);
            let query = query
                .push(" ORDER BY t.available_at, t.created_at, t.letter_id LIMIT ")
                .bind(i64::try_from(limit).unwrap_or(i64::MAX));
            places.extend(query.all(self.conn(), |row| {
                let mut fields = Fields::after(row, 0);
                let place = (fields.time()?, fields.time()?, LetterId::from_bytes(fields.next()?));
                Ok((place, fields.next::<Option<[u8; 16]>>()?.map(OperationId::from_bytes)))
            })?);
        }
        places.sort_unstable();
        places.truncate(limit);
        Ok(places.into_iter().map(|((_, _, id), operation)| (id, operation)).collect())
    }

    fn extend(&mut self, token: &ClaimToken, until: Timestamp) -> Result<bool> {
        let Some(mut row) = self.head(token.letter)? else { return Ok(false) };
        if !row.is_held_by(token) {
            return Ok(false);
        }
        if let Some(held) = &mut row.claim {
            held.until = until;
        }
        self.update(&mut row, Changed::State)?;
        Ok(true)
    }

    fn finish(&mut self, token: &ClaimToken, finish: &Finish, now: Timestamp) -> Result<Finished> {
        let Some(mut row) = self.head(token.letter)? else { return Ok(Finished::Stale) };
        let held = row.claim.clone().filter(|_| row.is_held_by(token));
        let Some(held) = held else {
            let again = row.finished == Some(token.fence);
            return Ok(if again { Finished::Applied } else { Finished::Stale });
        };
        match finish {
            Finish::Resolved(Resolution::Dismissed) => {
                self.end_item(&mut row, ItemOutcome::Skipped, Some("dismissed"), now)?;
            }
            Finish::Resolved(_) => self.end_item(&mut row, ItemOutcome::Succeeded, None, now)?,
            Finish::Dead(death) => self.died_anew(&mut row, death, now)?,
            Finish::Retry { .. } | Finish::Released { .. } => {}
        }
        let changed = row.finish(&held, finish.clone(), now);
        self.update(&mut row, changed)?;
        if changed == Changed::All {
            self.take_key(&mut row)?;
        }
        Ok(Finished::Applied)
    }

    fn run_schedule(&mut self, run: &ScheduleRun, now: Timestamp) -> Result<(u64, Duration)> {
        let schedule = &run.schedule;
        let schedules = &self.names().schedules;
        let last = Query::new(format!("SELECT last_run FROM {schedules} WHERE consumer = "))
            .bind(run.consumer.as_str())
            .first(self.conn(), |row| Fields::after(row, 0).time())?;
        if let Some(next) = last.map(|last| last.after(schedule.every)).filter(|next| *next > now) {
            return Ok((0, next.since(now)));
        }
        let sql = format!(
            "INSERT INTO {schedules} (consumer, last_run) VALUES (?1, ?2) ON CONFLICT (consumer) \
             DO UPDATE SET last_run = excluded.last_run"
        );
        self.conn().prepare_cached(&sql)?.execute((&run.consumer, now.as_nanos()))?;
        // Coarse: what exactly is eligible, the schedule itself says.
        let mut query = Query::new(&self.names().select_head)
            .push(" WHERE t.consumer = ")
            .bind(run.consumer.as_str())
            .push(" AND t.status = 'pending' AND t.confirmed AND t.retry_after IS NULL")
            .push(" AND t.operation IS NULL AND t.retry_count < ")
            .bind(schedule.max_retries);
        if !schedule.all_classes {
            query = query.push(" AND t.class = ").bind(ErrorClass::Transient.as_str());
        }
        let query = query.push(" ORDER BY t.created_at, t.letter_id LIMIT ").bind(schedule.batch);
        let eligible = query.all(self.conn(), read_head)?;
        let mut count = 0;
        for row in eligible {
            let mut row = super::unit::Loaded::from(row);
            if schedule.takes(&row.letter) {
                rules::schedule(&mut row.letter, now);
                self.update(&mut row, Changed::State)?;
                count += 1;
            }
        }
        Ok((count, schedule.every))
    }
}
