use std::collections::BTreeSet;
use std::time::Duration;

use super::super::{
    Claim, ClaimRequest, ClaimToken, Claims, Finish, Finished, ItemOutcome, ScheduleRun,
};
use super::MemoryStore;
use super::row::Row;
use super::world::{Place, World};
use crate::store::rules;
use crate::{Filter, LetterId, Resolution, StoreError, Timestamp};

impl Claims for MemoryStore {
    async fn claim(&self, request: ClaimRequest) -> Result<Vec<Claim>, StoreError> {
        let now = self.now();
        Ok(self.world().claim(&request, now))
    }

    async fn extend(
        &self,
        tokens: Vec<ClaimToken>,
        lease: Duration,
    ) -> Result<Vec<bool>, StoreError> {
        let until = self.now().after(lease);
        let mut world = self.world();
        Ok(tokens.iter().map(|token| world.extend(token, until)).collect())
    }

    async fn finish(
        &self,
        finishes: Vec<(ClaimToken, Finish)>,
    ) -> Result<Vec<Finished>, StoreError> {
        let now = self.now();
        let mut world = self.world();
        Ok(finishes.into_iter().map(|(token, finish)| world.finish(token, finish, now)).collect())
    }

    async fn next_due(&self, consumers: Vec<String>) -> Result<Option<Timestamp>, StoreError> {
        let now = self.now();
        Ok(self.world().next_due(&consumers, now))
    }

    async fn run_schedule(&self, run: ScheduleRun) -> Result<(u64, Duration), StoreError> {
        let now = self.now();
        Ok(self.world().run_schedule(&run, now))
    }
}

impl World {
    fn claim(&mut self, request: &ClaimRequest, now: Timestamp) -> Vec<Claim> {
        let limit = request.limit as usize;
        if limit == 0 {
            return Vec::new();
        }
        let mut due = self.due(&request.filter, limit, now);
        while self.take_back_cancelled(&due, now) {
            due = self.due(&request.filter, limit, now);
        }
        if due.len() < limit && self.release(&request.filter, limit - due.len(), now) {
            due = self.due(&request.filter, limit, now);
        }
        let until = now.after(request.lease);
        let mut hand_out = |id| {
            self.change(id, |world, row| {
                world.fence += 1;
                row.hand_out(world.fence, now, until)
            })
        };
        due.into_iter().filter_map(&mut hand_out).collect()
    }

    /// The letters that can be claimed now, first come first, at most `limit`.
    fn due(&self, filter: &Filter, limit: usize, now: Timestamp) -> Vec<LetterId> {
        let take = |line: &BTreeSet<Place>| -> Vec<Place> {
            let due = line.iter().take_while(|(at, ..)| *at <= now);
            let matches = |id| self.rows.get(id).is_some_and(|row| filter.matches(&row.letter));
            due.filter(|(.., id)| matches(id)).take(limit).copied().collect()
        };
        let mut places: Vec<Place> = if filter.consumers.is_empty() {
            self.lines.values().flat_map(take).collect()
        } else {
            let names: BTreeSet<_> = filter.consumers.iter().collect();
            names.into_iter().filter_map(|name| self.lines.get(name)).flat_map(take).collect()
        };
        places.sort_unstable();
        places.truncate(limit);
        places.into_iter().map(|(.., id)| id).collect()
    }

    fn extend(&mut self, token: &ClaimToken, until: Timestamp) -> bool {
        let extend = |row: &mut Row| {
            if let Some(held) = &mut row.claim {
                held.until = until;
            }
        };
        let valid = self.rows.get(&token.letter).is_some_and(|row| row.is_held_by(token));
        valid && self.change(token.letter, |_, row| extend(row)).is_some()
    }

    fn finish(&mut self, token: ClaimToken, finish: Finish, now: Timestamp) -> Finished {
        let Some(row) = self.rows.get(&token.letter) else { return Finished::Stale };
        let Some(held) = row.claim.filter(|_| row.is_held_by(&token)) else {
            let again = row.finished == Some(token.fence);
            return if again { Finished::Applied } else { Finished::Stale };
        };
        let died = matches!(finish, Finish::Dead(_));
        self.change(token.letter, |world, row| {
            match &finish {
                Finish::Resolved(Resolution::Dismissed) => {
                    world.end_item(row, ItemOutcome::Skipped, Some("dismissed"), now);
                }
                Finish::Resolved(_) => world.end_item(row, ItemOutcome::Succeeded, None, now),
                Finish::Dead(death) => world.died_anew(row, death, now),
                Finish::Retry { .. } | Finish::Released { .. } => {}
            }
            row.finish(held, finish, now);
        });
        if died {
            self.take_key(token.letter);
        }
        Finished::Applied
    }

    fn next_due(&self, consumers: &[String], now: Timestamp) -> Option<Timestamp> {
        let first = |line: &BTreeSet<Place>| line.first().map(|(at, ..)| *at);
        let due = if consumers.is_empty() {
            self.lines.values().filter_map(first).min()
        } else {
            consumers.iter().filter_map(|name| self.lines.get(name)).filter_map(first).min()
        };
        let release = self
            .campaigns
            .iter()
            .filter(|campaign| campaign.has_queued(consumers))
            .filter_map(|campaign| campaign.next_release(now))
            .min();
        due.into_iter().chain(release).min()
    }

    fn run_schedule(&mut self, run: &ScheduleRun, now: Timestamp) -> (u64, Duration) {
        let schedule = &run.schedule;
        if !schedule.enabled {
            return (0, Duration::MAX);
        }
        let next = self.schedules.get(&run.consumer).map(|last| last.after(schedule.every));
        if let Some(next) = next.filter(|next| *next > now) {
            return (0, next.since(now));
        }
        self.schedules.insert(run.consumer.clone(), now);
        let filter = Filter::new().with_consumer(run.consumer.clone());
        let eligible: Vec<_> = self
            .matching(&filter)
            .filter(|letter| schedule.takes(letter))
            .take(schedule.batch as usize)
            .map(|letter| letter.id)
            .collect();
        for id in &eligible {
            self.change(*id, |_, row| rules::schedule(&mut row.letter, now));
        }
        (eligible.len() as u64, schedule.every)
    }
}
