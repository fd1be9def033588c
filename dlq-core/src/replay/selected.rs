use std::fmt;

use super::{ReplayPlan, ReplayRules, Skipped};
use crate::store::reading::Row;
use crate::{DeadLetter, Death, OperationId};

/// Number of letters that a plan shows.
const SAMPLE: usize = 10;

/// Letters that match, in the order of their places, by what becomes of them.
pub struct Selected<'a, P> {
    /// The letters that are sent.
    pub send: Vec<&'a Row<P>>,
    /// The letters that are not sent, each with the reason.
    pub skip: Vec<(&'a Row<P>, Skipped)>,
}

impl<P: Copy + Ord> Selected<'_, P> {
    /// Returns the last place of a letter that was looked at.
    #[must_use]
    pub fn last(&self) -> Option<P> {
        let skipped = self.skip.iter().map(|(row, _)| *row);
        self.send.iter().copied().chain(skipped).map(|row| row.place).max()
    }

    /// Begins a plan with the letters of it that would be sent, and those that would not.
    pub fn plan(&self) -> ReplayPlan {
        let mut plan = ReplayPlan { letters: self.send.len() as u64, ..ReplayPlan::default() };
        plan.sample = self.send.iter().take(SAMPLE).map(|row| row.summary()).collect();
        for (_, why) in &self.skip {
            *plan.skipped.entry(*why).or_default() += 1;
        }
        plan
    }
}

impl<P> fmt::Debug for Selected<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (send, skip) = (self.send.len(), self.skip.len());
        f.debug_struct("Selected").field("send", &send).field("skip", &skip).finish()
    }
}

impl ReplayRules {
    /// Decides which of `rows` are sent, oldest first, up to the limit. `sent_by` has sent a death back last; `barred` says
    /// why a letter can go nowhere.
    #[must_use]
    pub fn select<'a, P: Copy + Ord>(
        &self,
        rows: impl IntoIterator<Item = &'a Row<P>>,
        sent_by: impl Fn(&Death) -> Option<OperationId>,
        barred: impl Fn(&DeadLetter) -> Option<Skipped>,
    ) -> Selected<'a, P> {
        let mut rows: Vec<_> = rows.into_iter().collect();
        rows.sort_unstable_by_key(|row| row.place);
        let mut selected = Selected { send: Vec::new(), skip: Vec::new() };
        for row in rows {
            let letter = &row.letter;
            let why = self.skipped(letter, sent_by(&letter.death())).or_else(|| barred(letter));
            if let Some(why) = why {
                selected.skip.push((row, why));
            } else if (selected.send.len() as u64) < self.limit {
                selected.send.push(row);
            } else {
                // Letters behind the limit are neither sent nor skipped, so that `last` is the end of what was decided.
                break;
            }
        }
        selected
    }
}
