//! Vital signs, which need no letters.

use dlq_core::store::{Vitals, Waiting};
use dlq_core::{Filter, Timestamp};
use futures_util::future::{try_join, try_join_all, try_join4};

use super::Inner;
use super::due::{LINE, until};
use super::fault::Result;
use super::names;
use super::scripts::number;

impl Inner {
    pub(super) async fn vitals(&self) -> Result<Vitals> {
        let names = &self.link.names;
        let processed = async {
            let mut cmd = redis::cmd("XLEN");
            cmd.arg(&names.processed);
            Ok(number(self.link.command(&cmd).await?))
        };
        let filter = Filter::new();
        let (now, stats, live, processed) =
            try_join4(self.now(), self.stats(&filter), self.link.operations(&[]), processed)
                .await?;
        let mut vitals = Vitals::new(now);
        vitals.oldest_unresolved = stats.oldest_unresolved;
        vitals.newest = stats.newest;
        vitals.processed = processed;
        let live = live.into_iter().filter_map(|(_, stored)| Some(stored?.operation));
        vitals.operations = live.collect();
        let consumers = self.link.field_names(&names.lines).await?;
        let lines = consumers.into_iter().map(|consumer| self.line(consumer, now));
        for (waiting, latest) in try_join_all(lines).await? {
            vitals.waiting.extend(waiting);
            vitals.latest.extend(latest);
        }
        Ok(vitals)
    }

    /// The letters of a consumer that have waited longest, and the one that is due last.
    async fn line(
        &self,
        consumer: String,
        now: Timestamp,
    ) -> Result<(Vec<Waiting>, Option<Waiting>)> {
        let line = names::line(&consumer);
        let waits = |member: &Vec<u8>| {
            let status = names::status_of(member.last().copied().unwrap_or_default());
            let since = names::time(&member[LINE..]).unwrap_or_default();
            Waiting { status, consumer: consumer.clone(), since }
        };
        let due = (names::from(&line), until(&line, now));
        let all = (names::from(&line), names::to(&line));
        let (due, last) = try_join(
            // The line is in the order of time, so the first members are those that have waited longest.
            self.link.members(due, false, Vitals::MOST as usize),
            self.link.members(all, true, 1),
        )
        .await?;
        Ok((due.iter().map(waits).collect(), last.first().map(waits)))
    }
}
