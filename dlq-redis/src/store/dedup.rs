//! Keys of original messages are given out.

use std::sync::Arc;

use dlq_core::store::rules::DedupKey;
use dlq_core::{Cursor, Filter, Order};
use dlq_letters::{Changed, Depth, Needs, Rows, Select, Stop, Verb};

use super::Inner;
use super::fault::{Fault, Result};

/// Letters of one step.
const PAGE: u64 = 100;

/// Gives keys to a page of letters, oldest first.
#[derive(Debug)]
struct GiveKeys {
    after: Option<Cursor>,
}

impl GiveKeys {
    fn select(&self) -> Select {
        Select::Matching {
            filter: Arc::new(Filter::new()),
            older: None,
            order: Order::OldestFirst,
            after: self.after,
            upto: None,
            limit: PAGE,
        }
    }
}

impl Verb for GiveKeys {
    /// The last letter of a page that was full.
    type Output = Option<Cursor>;

    fn needs(&self, needs: &mut Needs) {
        needs.dedup = true;
        needs.select(self.select(), Depth::Head);
    }

    fn decide(&self, rows: &mut Rows) -> std::result::Result<Self::Output, Stop> {
        let found = rows.select(&self.select(), Depth::Head)?;
        let (mut last, mut is_missing) = (None, false);
        for item in &found {
            let Some(mut row) = rows.take(item.letter, Depth::Head)? else { continue };
            last = Some(Cursor::after(row.letter.state.created_at, row.letter.id));
            if row.is_record() || row.key == DedupKey::of(&row.letter) {
                continue;
            }
            let before = row.key.clone();
            match rows.take_key(&mut row) {
                Ok(()) if row.key != before => rows.update(row, Changed::State),
                Ok(()) => {}
                // Noted and gone on with, so that one more look loads what all letters of the page lack.
                Err(Stop::Missing) => is_missing = true,
                Err(stop) => return Err(stop),
            }
        }
        if is_missing {
            return Err(Stop::Missing);
        }
        Ok(last.filter(|_| found.len() as u64 == PAGE))
    }
}

impl Inner {
    /// Switches deduplication on: from now on whoever writes takes keys. Then letters that are there get theirs, oldest
    /// first.
    pub(super) async fn switch_dedup_on(&self) -> Result<()> {
        // The switch comes first: a commit that was decided before compares it and is decided again, so that the walk
        // misses no letter. A process that dies in the walk leaves letters without keys until it is switched on again.
        let mut cmd = redis::cmd("HSET");
        cmd.arg(&self.link.names.meta).arg("dedup").arg("1");
        self.link.command(&cmd).await?;
        let mut after = None;
        loop {
            let done = Box::pin(self.decide(&GiveKeys { after })).await?;
            let done = done.map_err(|error| Fault::new(error.kind(), error.to_string()))?;
            after = done.answer;
            if after.is_none() {
                return Ok(());
            }
        }
    }
}
