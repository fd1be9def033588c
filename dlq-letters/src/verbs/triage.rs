//! Records of groups of errors.

use std::sync::Arc;

use dlq_core::store::{Actor, GroupKey, GroupRecord, GroupUpdate};
use dlq_core::{StoreError, StoreErrorKind};

use super::each;
use crate::groups::{look, read, write};
use crate::{DocumentKey, Needs, Rows, Stop, Verb};

/// Returns the records of groups.
#[derive(Debug)]
pub(crate) struct GroupRecords(pub(crate) Arc<[GroupKey]>);

impl Verb for GroupRecords {
    type Output = Vec<GroupRecord>;

    fn needs(&self, needs: &mut Needs) {
        needs.glimpses.extend(self.0.iter().map(DocumentKey::group));
    }

    fn decide(&self, rows: &mut Rows) -> Result<Self::Output, Stop> {
        each(self.0.iter(), |key| Ok(look(rows, key)?.unwrap_or_default()))
    }
}

/// Changes the record of a group.
#[derive(Debug)]
pub(crate) struct UpdateGroup {
    pub(crate) key: GroupKey,
    pub(crate) update: GroupUpdate,
    pub(crate) by: Actor,
}

impl UpdateGroup {
    pub(crate) const DURING: &str = "update the group of errors";
}

impl Verb for UpdateGroup {
    type Output = GroupRecord;
    // The audit would have two entries.
    const ONCE: bool = true;

    fn needs(&self, needs: &mut Needs) {
        needs.documents.insert(DocumentKey::group(&self.key));
    }

    fn decide(&self, rows: &mut Rows) -> Result<Self::Output, Stop> {
        if let Some(problem) = self.update.problem() {
            let error = StoreError::new(StoreErrorKind::Refused, Self::DURING);
            return Err(error.with_detail(problem).into());
        }
        let mut record = read(rows, &self.key)?.unwrap_or_default();
        let is_changed = record.apply(&self.update, &self.by.who, rows.now());
        let subject = serde_json::json!({ "group": self.key, "update": self.update });
        let affected = u64::from(is_changed);
        if self.update.is_audited() {
            rows.note_action(&self.by, "triage", subject.to_string(), affected, None);
        }
        if is_changed {
            write(rows, &self.key, &record);
        }
        Ok(record)
    }
}
