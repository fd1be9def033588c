//! The automatic schedule.

use std::sync::Arc;
use std::time::Duration;

use dlq_core::store::{Schedule, rules};

use super::each;
use crate::{Changed, Depth, Needs, Rows, Select, Stop, Verb};

/// Makes letters due by the automatic schedule.
#[derive(Debug)]
pub(crate) struct RunSchedule {
    pub(crate) consumer: String,
    pub(crate) schedule: Arc<Schedule>,
    /// The most letters.
    pub(crate) limit: u64,
    /// True for a further page of a run that has begun.
    pub(crate) is_more: bool,
}

/// What came of a look at the schedule.
#[derive(Debug)]
pub(crate) enum Scheduled {
    /// It is not time yet.
    In(Duration),
    /// It ran, and made letters due.
    Ran(u64),
}

impl Verb for RunSchedule {
    type Answer = Scheduled;

    fn needs(&self, needs: &mut Needs) {
        // Most calls come too early, and need nothing else.
        needs.schedules.insert(self.consumer.clone());
    }

    fn decide(&self, rows: &mut Rows) -> Result<Self::Answer, Stop> {
        let now = rows.now();
        if !self.is_more {
            let next = rows.last_run(&self.consumer)?.map(|last| last.after(self.schedule.every));
            if let Some(next) = next.filter(|next| *next > now) {
                return Ok(Scheduled::In(next.since(now)));
            }
            rows.set_last_run(&self.consumer);
        }
        let select = Select::Eligible {
            consumer: self.consumer.clone(),
            schedule: Arc::clone(&self.schedule),
            limit: self.limit,
        };
        let found = rows.select(&select, Depth::Head)?;
        let made = each(found, |item| {
            let Some(mut row) = rows.take(item.letter, Depth::Head)? else { return Ok(false) };
            let is_eligible = self.schedule.takes(&row.letter);
            if is_eligible {
                rules::schedule(&mut row.letter, now);
                rows.update(row, Changed::State);
            }
            Ok(is_eligible)
        })?;
        Ok(Scheduled::Ran(made.into_iter().filter(|made| *made).count() as u64))
    }
}
