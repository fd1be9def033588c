//! Number of letters that wait to be claimed, and the time of the next.

use std::time::Duration;

use dlq_core::Timestamp;
use dlq_core::store::Due;
use futures_util::future::{try_join, try_join_all, try_join3};

use super::Inner;
use super::fault::Result;
use super::names::{self, Bytes};
use super::scripts::number;

/// Length of a part of the index that is a line.
pub(super) const LINE: usize = 17;

impl Inner {
    /// When the next letter of these consumers can be claimed, or released by an operation.
    pub(super) async fn find_next_due(&self, consumers: &[String]) -> Result<Option<Timestamp>> {
        // A line is in the order of time, so its first member tells when the next letter of a consumer is due.
        let first = try_join_all(names::lines(consumers).into_iter().map(|line| async move {
            let bounds = (names::from(&line), names::to(&line));
            let found = self.link.members(bounds, false, 1).await?;
            Ok(found.first().and_then(|member| names::time(&member[LINE..])))
        }));
        let (now, first, live) = try_join3(self.now(), first, self.link.operations(&[])).await?;
        let mut next = first.into_iter().flatten().min();
        for stored in live.into_iter().filter_map(|(_, stored)| stored) {
            let Some(release) = stored.operation.next_to_handlers(now) else { continue };
            let parts = self.queued(stored.operation.id, consumers).await?;
            // A release without a letter in the queue would wake consumers for nothing.
            let has_some = try_join_all(
                parts
                    .iter()
                    .map(|part| self.link.members((names::from(part), names::to(part)), false, 1)),
            );
            if has_some.await?.iter().any(|found| !found.is_empty()) {
                next = next.into_iter().chain([release]).min();
            }
        }
        Ok(next)
    }

    /// Counted along the lines, no further than [`Due::MOST`] letters of all together.
    pub(super) async fn due_by_consumer(&self, overdue: Duration) -> Result<Vec<Due>> {
        let names = &self.link.names;
        let (now, consumers) = try_join(self.now(), self.link.field_names(&names.lines)).await?;
        let line = names::any_line();
        let (lower, upper) = (names::from(&line), until(&line, now));
        let mut last = redis::cmd("ZRANGEBYLEX");
        last.arg(&names.index).arg(&lower).arg(&upper).arg("LIMIT").arg(Due::MOST - 1).arg(1);
        let last = super::scripts::array(self.link.command(&last).await?);
        let last = last.into_iter().next().and_then(super::scripts::bytes);
        let end = |line: &[u8]| match &last {
            Some(member) => [b"[", line, &member[LINE..]].concat(),
            None => until(line, now),
        };
        let latest = now.before(overdue);
        let of_each = consumers.into_iter().map(|consumer| {
            let line = names::line(&consumer);
            let all = (names::from(&line), end(&line));
            let old = (names::from(&line), until(&line, latest).min(end(&line)));
            async move {
                let (letters, old) = try_join(self.between(&all), self.between(&old)).await?;
                let first = self.link.members(all, false, 1).await?;
                let since = first.first().and_then(|member| names::time(&member[LINE..]));
                // The two were not counted at the same moment: more letters may have been there for the second.
                let due = |since| Due { consumer, letters, overdue: old.min(letters), since };
                Ok::<_, super::fault::Fault>(since.map(due))
            }
        });
        Ok(try_join_all(of_each).await?.into_iter().flatten().collect())
    }

    async fn between(&self, (lower, upper): &(Bytes, Bytes)) -> Result<u64> {
        let mut cmd = redis::cmd("ZLEXCOUNT");
        cmd.arg(&self.link.names.index).arg(lower).arg(upper);
        Ok(number(self.link.command(&cmd).await?))
    }
}

/// The upper bound of letters in line that can be claimed at `at`.
pub(super) fn until(line: &[u8], at: Timestamp) -> Bytes {
    // The place and the status of a letter follow the time, in 25 bytes. 26 of the highest lie behind any of them.
    [b"(", line, &names::ordered(at), &[u8::MAX; 26]].concat()
}
