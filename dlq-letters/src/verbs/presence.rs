//! Consumers that are there.

use dlq_core::Timestamp;
use dlq_core::store::{Heartbeat, Presence};

use super::{each, json};
use crate::{DocumentKey, DocumentKind, Needs, Rows, Stop, Verb};

/// Records a heartbeat.
#[derive(Debug)]
pub(crate) struct Beat(pub(crate) Heartbeat);

impl Verb for Beat {
    type Output = ();

    fn needs(&self, needs: &mut Needs) {
        needs.documents.insert(DocumentKey::presence(&self.0));
    }

    fn decide(&self, rows: &mut Rows) -> Result<(), Stop> {
        let (key, now) = (DocumentKey::presence(&self.0), rows.now());
        // A record that another version wrote, and this one cannot read, is made anew.
        let known = rows.document(&key)?.and_then(read);
        let is_new = known.is_none();
        let mut presence = known.unwrap_or_else(|| Presence::new(self.0.clone(), now));
        presence.heartbeat = self.0.clone();
        presence.last_seen = now;
        rows.set_document(key, Some(json(&presence)));
        // Whoever comes takes away those that are long gone, so that nobody else has to.
        if is_new { forget(rows, now) } else { Ok(()) }
    }
}

fn forget(rows: &mut Rows, now: Timestamp) -> Result<(), Stop> {
    let is_old = |text: &str| read(text).is_none_or(|it| it.last_seen.after(Presence::KEPT) < now);
    let all = rows.documents(DocumentKind::Presence)?.iter();
    let old: Vec<_> = all.filter(|(_, text)| is_old(text)).map(|(key, _)| key.clone()).collect();
    each(old, |key| {
        // It may have come back since it was listed.
        if rows.document(&key)?.is_some_and(is_old) {
            rows.set_document(key, None);
        }
        Ok(())
    })?;
    Ok(())
}

/// Forgets a consumer that has stopped.
#[derive(Debug)]
pub(crate) struct SignOff(pub(crate) Heartbeat);

impl Verb for SignOff {
    type Output = ();

    fn needs(&self, needs: &mut Needs) {
        needs.documents.insert(DocumentKey::presence(&self.0));
    }

    fn decide(&self, rows: &mut Rows) -> Result<(), Stop> {
        let key = DocumentKey::presence(&self.0);
        if rows.document(&key)?.is_some() {
            rows.set_document(key, None);
        }
        Ok(())
    }
}

/// Lists the consumers that were heard of.
#[derive(Debug)]
pub(crate) struct Present;

impl Verb for Present {
    type Output = (Vec<Presence>, Timestamp);

    fn needs(&self, needs: &mut Needs) {
        needs.listed.insert(DocumentKind::Presence);
    }

    fn decide(&self, rows: &mut Rows) -> Result<Self::Output, Stop> {
        let now = rows.now();
        let all = rows.documents(DocumentKind::Presence)?.iter();
        // One that a later version wrote in another form is left out, rather than hiding the others.
        let mut present: Vec<_> = all.filter_map(|(_, text)| read(text)).collect();
        present.sort_by(|one, other| {
            let order = |it: &Presence| (it.heartbeat.consumer.clone(), it.since);
            order(one).cmp(&order(other))
        });
        Ok((present, now))
    }
}

fn read(text: &str) -> Option<Presence> {
    serde_json::from_str(text).ok()
}
