//! Every verb, written once. [`engine`](crate::engine) makes the calls of a store of them.

mod archive;
mod claim;
mod dedup;
mod dispatch;
mod hold;
mod log;
mod maintenance;
mod operate;
mod presence;
mod put;
mod schedule;
mod triage;
mod walk;

pub(crate) use archive::{EmptyArchive, ListArchive, Undelete, Undeleted};
pub(crate) use claim::ClaimDue;
pub(crate) use dedup::{Collapse, Group, Seen, Survey};
pub(crate) use dispatch::{Record, Succeed, Take};
pub(crate) use hold::{EndClaims, Extend};
pub(crate) use log::{Add, Carry, Forget};
pub(crate) use maintenance::{DeletePage, EditLetter, Entry, MarkPage, Step};
pub(crate) use operate::{Begun, Freeze, SetPace, Start, Steer, Withdraw, unknown};
pub(crate) use presence::{Beat, Present, SignOff};
pub(crate) use put::{Enqueue, Put, Restore};
pub(crate) use schedule::{RunSchedule, Scheduled};
pub(crate) use triage::{GroupRecords, UpdateGroup};
pub(crate) use walk::Walk;

use crate::Stop;

/// Decides about each item, and goes on past one that lacks rows, so that everything that is missing is loaded at once.
fn each<I, T>(
    items: impl IntoIterator<Item = I>,
    mut decide: impl FnMut(I) -> Result<T, Stop>,
) -> Result<Vec<T>, Stop> {
    let items = items.into_iter();
    let mut answers = Vec::with_capacity(items.size_hint().0);
    let mut is_missing = false;
    for item in items {
        match decide(item) {
            Ok(answer) => answers.push(answer),
            Err(Stop::Missing) => is_missing = true,
            // A refusal ends the attempt. `Rows::attempt` drops it while rows are missing.
            Err(failed) => return Err(failed),
        }
    }
    if is_missing { Err(Stop::Missing) } else { Ok(answers) }
}

/// Returns what the record of what operators did says a call was about.
pub(crate) fn json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).expect("the types have no map with keys other than text")
}
