//! The automatic schedule.

use std::sync::Arc;
use std::time::Duration;

use dlq_core::Reason;
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

/// Result of a look at the schedule.
#[derive(Debug)]
pub(crate) enum Scheduled {
    /// It is not time yet.
    In(Duration),
    /// It ran.
    Ran {
        /// Number of letters that it made due.
        made: u64,
        /// The events of letters that it quarantined, because their errors are terminal.
        terminal: Vec<Option<String>>,
    },
}

impl Verb for RunSchedule {
    type Output = Scheduled;

    fn needs(&self, needs: &mut Needs) {
        // Most calls come too early, and need nothing else.
        needs.schedules.insert(self.consumer.clone());
    }

    fn decide(&self, rows: &mut Rows) -> Result<Self::Output, Stop> {
        let now = rows.now();
        if !self.is_more {
            let next = rows.last_run(&self.consumer)?.map(|last| last.after(self.schedule.every));
            if let Some(next) = next.filter(|next| *next > now) {
                return Ok(Scheduled::In(next.since(now)));
            }
            // The run is recorded in the step that makes its first letters due, so that one process of a consumer runs it.
            rows.set_last_run(&self.consumer);
        }
        let select = Select::Eligible {
            consumer: self.consumer.clone(),
            schedule: Arc::clone(&self.schedule),
            limit: self.limit,
        };
        // The text of an error is in the history.
        let has_terminal = !self.schedule.terminal.is_empty();
        let depth = if has_terminal { Depth::Whole } else { Depth::Head };
        let found = rows.select(&select, depth)?;
        let (mut made, mut terminal) = (0, Vec::new());
        each(found, |item| {
            let Some(mut row) = rows.take(item.letter, depth)? else { return Ok(()) };
            // The selection of a backend may be wider than the rule.
            if !self.schedule.takes(&row.letter) {
                return Ok(());
            }
            if has_terminal && self.schedule.is_terminal(&row.letter) {
                terminal.push(row.letter.message.event().map(str::to_owned));
                rules::quarantine(&mut row.letter, Reason::TerminalError, now);
                rows.update(row, Changed::Run);
            } else {
                made += 1;
                rules::schedule(&mut row.letter, now);
                rows.update(row, Changed::State);
            }
            Ok(())
        })?;
        Ok(Scheduled::Ran { made, terminal })
    }
}
