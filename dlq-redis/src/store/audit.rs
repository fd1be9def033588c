//! The audit: actions of operators, and messages that consumers processed.

use dlq_core::store::{AuditEntry, ProcessedEvent};
use redis::Value;

use super::Inner;
use super::codec::json;
use super::fault::{Fault, Result};
use super::run::REMEMBERED;
use super::scripts::{self, array, bytes, number};

impl Inner {
    /// The latest entries before the one of this number, newest first. Steps of one call have added to what their entry says.
    pub(super) async fn read_audit(
        &self,
        before: Option<u64>,
        limit: u32,
    ) -> Result<Vec<AuditEntry>> {
        let names = &self.link.names;
        let mut length = redis::cmd("LLEN");
        length.arg(&names.audit);
        let length = number(self.link.command(&length).await?);
        // The first is number 1.
        let length = before.map_or(length, |before| length.min(before.saturating_sub(1)));
        let first = length.saturating_sub(u64::from(limit));
        if first == length {
            return Ok(Vec::new());
        }
        let mut range = redis::cmd("LRANGE");
        range.arg(&names.audit).arg(first).arg(length - 1);
        let found = array(self.link.command(&range).await?);
        let numbers: Vec<_> = (first..length).map(|number| number.to_string()).collect();
        // An entry is never changed, so what later steps add stands beside it.
        let more = self.link.fields(&names.audit_more, &numbers).await?;
        let entry = |((number, value), more): ((u64, Value), Option<Vec<u8>>)| {
            let text = bytes(value).unwrap_or_default();
            let mut entry: AuditEntry = serde_json::from_slice(&text)
                .map_err(|error| Fault::corrupt("entry of the audit", error))?;
            let more = more.and_then(|more| String::from_utf8(more).ok()?.parse::<u64>().ok());
            entry.number = number;
            entry.affected = entry.affected.saturating_add(more.unwrap_or(0));
            Ok(entry)
        };
        let mut entries: Vec<_> =
            (first + 1..).zip(found).zip(more).map(entry).collect::<Result<_>>()?;
        entries.reverse();
        Ok(entries)
    }

    pub(super) async fn write_processed(&self, events: &[ProcessedEvent]) -> Result<()> {
        for events in events.chunks(1_000) {
            // Each chunk has a token, so that one whose answer was lost is not appended twice.
            let call = self.link.call(&scripts::PROCESSED).arg(super::token()).arg(REMEMBERED);
            let call = events.iter().fold(call, |call, event| call.arg(json(event)));
            self.durably(&call).await?.1?;
        }
        Ok(())
    }

    /// The latest rows, newest first.
    pub(super) async fn read_processed(&self, limit: u32) -> Result<Vec<ProcessedEvent>> {
        let mut cmd = redis::cmd("XREVRANGE");
        cmd.arg(&self.link.names.processed).arg("+").arg("-").arg("COUNT").arg(limit);
        if limit == 0 {
            return Ok(Vec::new());
        }
        let event = |value: Value| {
            let fields = array(value).into_iter().nth(1).map(array).unwrap_or_default();
            let text = fields.into_iter().nth(1).and_then(bytes).unwrap_or_default();
            serde_json::from_slice(&text)
                .map_err(|error| Fault::corrupt("row of the processing audit", error))
        };
        array(self.link.command(&cmd).await?).into_iter().map(event).collect()
    }
}
