//! The calls of a store over any [`Backend`]: verbs in pages of what one step may change. [`store!`](crate::store) makes the
//! traits of `dlq-core` of them.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use dlq_core::store::rules::DedupKey;
use dlq_core::store::{
    Actor, ArchiveFilter, ArchivePage, ArchiveRequest, AuditEntry, AuditRequest, Claim,
    ClaimRequest, ClaimToken, Cleaned, Cleanup, Control, Edit, Finish, Finished, GroupKey,
    GroupRecord, GroupUpdate, Heartbeat, Mark, Marked, Operation, OperationSpec, Pace, Plan,
    Presence, Receipt, ScheduleRun, Selection, Target, count_quarantined,
};
use dlq_core::{
    DeadLetter, DelayedRetry, Filter, LetterId, OperationId, Reason, StoreError, StoreErrorKind,
    Timestamp,
};

use crate::verbs::{
    Beat, Begun, ClaimDue, Collapse, DeletePage, EditLetter, EmptyArchive, EndClaims, Enqueue,
    Entry, Extend, Freeze, Group, GroupRecords, ListArchive, MarkPage, Present, Put, Restore,
    RunSchedule, Scheduled, Seen, SetPace, SignOff, Start, Steer, Step, Survey, Undelete,
    Undeleted, UpdateGroup, Walk, Withdraw, json, unknown,
};
use crate::{Backend, Limits, Verb};

/// Puts letters; see [`Sink::put`](dlq_core::store::Sink::put).
pub async fn put<B: Backend>(
    backend: &B,
    letters: Vec<DeadLetter>,
) -> Result<Vec<Receipt>, StoreError> {
    const DURING: &str = "put letters";
    // The others are stored first, or a letter that is too large would hold them up for ever.
    let (letters, large) = split_large(backend.limits(), letters, DURING);
    let mut receipts = Vec::with_capacity(letters.len());
    let mut letters = letters.into_iter().peekable();
    // Each page is a step of its own. If the process dies in between, the caller puts all letters again, and those that
    // are stored change nothing (G2).
    while letters.peek().is_some() {
        let page = page_of(&mut letters, backend.limits());
        // A statement for many rows knows no order among them, so a page with two deaths of one letter goes to the verb.
        let is_new = if have_different_ids(&page) {
            backend.put_new(&page).await?
        } else {
            vec![false; page.len()]
        };
        let rest = page.into_iter().zip(&is_new).filter(|(_, is_new)| !**is_new);
        let rest: Vec<_> = rest.map(|(letter, _)| letter).collect();
        let mut looked_at =
            if rest.is_empty() { Vec::new() } else { backend.run(DURING, Put(rest)).await?.answer }
                .into_iter();
        // The verb answers in the order of the letters that were not new, so its receipts fill the gaps in turn.
        let receipt = |is_new| if is_new { Some(Receipt::Stored) } else { looked_at.next() };
        receipts.extend(is_new.into_iter().filter_map(receipt));
    }
    // The receipts of the others are dropped with the error. Whoever puts all of them again learns that these are
    // there.
    large.map_or(Ok(receipts), Err)
}

/// Writes a retry record; see [`RetryQueue::enqueue`](dlq_core::RetryQueue::enqueue).
pub async fn enqueue<B: Backend>(
    backend: &B,
    delayed_retry: DelayedRetry,
) -> Result<(), StoreError> {
    backend.run("enqueue a message", Enqueue(delayed_retry)).await?;
    Ok(())
}

/// Restores letters; see [`Maintenance::restore`](dlq_core::store::Maintenance::restore).
pub async fn restore<B: Backend>(
    backend: &B,
    letters: Vec<DeadLetter>,
    by: Actor,
) -> Result<Vec<Receipt>, StoreError> {
    const DURING: &str = "restore letters";
    let (letters, large) = split_large(backend.limits(), letters, DURING);
    let mut receipts = Vec::with_capacity(letters.len());
    let mut letters = letters.into_iter().peekable();
    loop {
        // Where there is nothing to restore the audit says so.
        let page = page_of(&mut letters, backend.limits());
        let restore = Restore { letters: page, by: by.clone() };
        // Each page has an entry of its own in the audit, so that the audit is right wherever the process dies.
        // Restoring again changes nothing about the pages before.
        receipts.extend(backend.run(DURING, restore).await?.answer);
        if letters.peek().is_none() {
            return large.map_or(Ok(receipts), Err);
        }
    }
}

/// Claims letters; see [`Claims::claim`](dlq_core::store::Claims::claim).
pub async fn claim<B: Backend>(
    backend: &B,
    request: ClaimRequest,
) -> Result<Vec<Claim>, StoreError> {
    let page = u32::try_from(backend.limits().page()).unwrap_or(u32::MAX);
    let (mut left, mut claims) = (request.limit, Vec::new());
    while left > 0 {
        let mut part = request.clone();
        part.limit = left.min(page);
        let wanted = part.limit as usize;
        match claim_some(backend, part).await {
            Ok(some) => {
                // A part that is not full ends the call: asking again would mostly find nothing, and the next claim takes
                // whatever is left.
                let is_last = some.len() < wanted;
                claims.extend(some);
                if is_last {
                    break;
                }
                left -= page.min(left);
            }
            Err(error) if claims.is_empty() => return Err(error),
            Err(error) => {
                // What was claimed before is held, and somebody must run it.
                tracing::warn!(%error, claimed = claims.len(), "claimed fewer letters than wanted");
                break;
            }
        }
    }
    Ok(claims)
}

async fn claim_some<B: Backend>(
    backend: &B,
    request: ClaimRequest,
) -> Result<Vec<Claim>, StoreError> {
    if let Some(claims) = backend.claim_due(&request).await? {
        return Ok(claims);
    }
    let claimed = backend.run("claim letters", ClaimDue::new(request)).await?.answer;
    // A verb may decide several times. Letters are counted here, when its changes are durable.
    for (event, reason) in claimed.capped {
        count_quarantined(event.as_deref(), reason);
    }
    Ok(claimed.claims)
}

/// Runs the automatic schedule; see [`Claims::run_schedule`](dlq_core::store::Claims::run_schedule).
pub async fn run_schedule<B: Backend>(
    backend: &B,
    run: ScheduleRun,
) -> Result<(u64, Duration), StoreError> {
    let ScheduleRun { consumer, schedule } = run;
    if !schedule.enabled {
        return Ok((0, Duration::MAX));
    }
    let schedule = Arc::new(schedule);
    let (mut left, mut made) = (u64::from(schedule.batch), 0);
    loop {
        let limit = left.min(backend.limits().page());
        // The first page alone looks at the time and records the run. If the process dies after it, the rest of the batch
        // waits for the next run.
        let is_more = left < u64::from(schedule.batch);
        let (consumer, schedule) = (consumer.clone(), Arc::clone(&schedule));
        let every = schedule.every;
        let step = RunSchedule { consumer, schedule, limit, is_more };
        match backend.run("run the schedule", step).await?.answer {
            Scheduled::In(wait) => return Ok((0, wait)),
            Scheduled::Ran { made: some, terminal } => {
                made += some;
                for event in &terminal {
                    count_quarantined(event.as_deref(), Reason::TerminalError);
                }
                // Letters that were quarantined use up the batch, too: it bounds how many letters a run changes.
                let some = some + terminal.len() as u64;
                left -= some.min(left);
                // A backend may select letters that the schedule then passes over, so a short page can hide others
                // behind it. Those wait for the next run.
                if some < limit || left == 0 {
                    return Ok((made, every));
                }
            }
        }
    }
}

/// Extends leases; see [`Claims::extend`](dlq_core::store::Claims::extend).
pub async fn extend<B: Backend>(
    backend: &B,
    tokens: Vec<ClaimToken>,
    lease: Duration,
) -> Result<Vec<bool>, StoreError> {
    let mut answers = Vec::with_capacity(tokens.len());
    for tokens in tokens.chunks(chunk(backend)) {
        answers.extend(match backend.extend_held(tokens, lease).await? {
            Some(extended) => extended,
            None => {
                let tokens = tokens.to_vec();
                backend.run("extend claims", Extend { tokens, lease }).await?.answer
            }
        });
    }
    Ok(answers)
}

/// Ends claims; see [`Claims::finish`](dlq_core::store::Claims::finish).
pub async fn finish<B: Backend>(
    backend: &B,
    finishes: Vec<(ClaimToken, Finish)>,
) -> Result<Vec<Finished>, StoreError> {
    let mut answers = Vec::with_capacity(finishes.len());
    let mut finishes = finishes.into_iter().peekable();
    // Each page is durable by itself. If the process dies in between, the leases of the later claims end and their
    // letters are handed out again, with a crash counted.
    while finishes.peek().is_some() {
        let finishes: Vec<_> = finishes.by_ref().take(chunk(backend)).collect();
        // Two of one letter are taken in order, and the second knows of the first.
        let ids: HashSet<_> = finishes.iter().map(|(token, _)| token.letter).collect();
        let ended = if ids.len() == finishes.len() {
            backend.finish_plain(&finishes).await?
        } else {
            vec![None; finishes.len()]
        };
        let rest = finishes.into_iter().zip(&ended).filter(|(_, ended)| ended.is_none());
        let rest: Vec<_> = rest.map(|(finish, _)| finish).collect();
        let mut others = if rest.is_empty() {
            Vec::new()
        } else {
            backend.run("finish claims", EndClaims(rest)).await?.answer
        }
        .into_iter();
        answers.extend(ended.into_iter().filter_map(|ended| ended.or_else(|| others.next())));
    }
    Ok(answers)
}

/// Says what a replay would send; see [`Operations::plan`](dlq_core::store::Operations::plan).
pub async fn plan<B: Backend>(backend: &B, spec: OperationSpec) -> Result<Plan, StoreError> {
    serve(&spec, "plan the replay")?;
    backend.plan(spec).await
}

/// Starts an operation; see [`Operations::start`](dlq_core::store::Operations::start).
pub async fn start<B: Backend>(
    backend: &B,
    spec: OperationSpec,
    by: Actor,
) -> Result<Operation, StoreError> {
    const DURING: &str = "start the replay";
    serve(&spec, DURING)?;
    let spec = Arc::new(spec);
    // The limit of the operation cuts the last page, since a step freezes every letter that its page has.
    let page = |frozen: u64| {
        let most = spec.limit.unwrap_or(u64::MAX);
        backend.limits().page().min(most.saturating_sub(frozen))
    };
    let walk = Walk::frozen(Arc::clone(&spec)).with_limit(page(0));
    let done = backend.run(DURING, Start { spec: Arc::clone(&spec), by, walk }).await?;
    let (entry, Begun { mut operation, mut next }) = (done.note, done.answer);
    // If the process dies in this loop, the operation stays `preparing` and sends nothing until somebody resumes or
    // cancels it.
    while let Some(walk) = next {
        let (id, frozen) = (operation.id, operation.progress.total);
        let walk = walk.with_limit(page(frozen));
        let freeze = Freeze { operation: id, spec: Arc::clone(&spec), walk, entry };
        let begun = backend.run(DURING, freeze).await.map_err(|error| {
            // The operation exists by now and holds its letters, so the error names it.
            error.with_addition(format_args!(
                "the operation {id} has {frozen} letters and is {}; resume it to send those, or cancel it",
                operation.state
            ))
        })?;
        Begun { operation, next } = begun.answer;
    }
    Ok(operation)
}

/// Steers an operation; see [`Operations::control`](dlq_core::store::Operations::control).
pub async fn control<B: Backend>(
    backend: &B,
    operation: OperationId,
    control: Control,
    by: Actor,
) -> Result<Operation, StoreError> {
    const DURING: &str = "steer the operation";
    let steer = Steer { operation, control, by: by.clone() };
    let steered = backend.run(DURING, steer).await?;
    if control != Control::Cancel {
        return Ok(steered.answer);
    }
    // Nothing is released from here on. Where an earlier cancel was cut off, this one goes on.
    let mut entry = steered.note;
    let limit = backend.limits().page();
    loop {
        let withdraw = Withdraw { operation, by: by.clone(), limit, entry };
        let withdrawn = backend.run(DURING, withdraw).await?;
        // A cancel that is repeated has no entry in the audit yet. The first page that takes letters back makes it, and the
        // others add to it.
        entry = entry.or(withdrawn.note);
        if !withdrawn.answer {
            break;
        }
    }
    // It is read anew, since each letter that was taken back has changed its counts.
    backend.operation(operation).await?.ok_or_else(|| unknown(operation, DURING))
}

/// Sets how fast an operation sends; see [`Operations::set_pace`](dlq_core::store::Operations::set_pace).
pub async fn set_pace<B: Backend>(
    backend: &B,
    operation: OperationId,
    pace: Option<Pace>,
    by: Actor,
) -> Result<Operation, StoreError> {
    let set = SetPace { operation, pace, by };
    Ok(backend.run("set the rate of the operation", set).await?.answer)
}

/// Marks letters; see [`Maintenance::mark`](dlq_core::store::Maintenance::mark).
pub async fn mark<B: Backend>(
    backend: &B,
    selection: Selection,
    mark: Mark,
    by: Actor,
) -> Result<Marked, StoreError> {
    let action = match mark {
        Mark::Pending => "release",
        Mark::Resolved => "resolve",
        _ => "quarantine",
    };
    let filter = Arc::new(selection.filter().clone());
    let walk = Walk::matching(filter).with_limit(backend.limits().page());
    let entry = Entry { by, action, subject: json(&selection).into(), number: None };
    let step = |walk, entry| MarkPage { walk, mark, entry };
    in_steps(backend, ["mark letters", "marked"], walk, entry, step).await
}

/// Returns actions of operators; see [`Maintenance::audit`](dlq_core::store::Maintenance::audit).
pub async fn audit<B: Backend>(
    backend: &B,
    request: AuditRequest,
) -> Result<Vec<AuditEntry>, StoreError> {
    // Of a page few may match, and a small page costs as much as one of a hundred.
    let page = request.limit.clamp(100, 1_000);
    let (mut found, mut before) = (Vec::new(), request.before);
    let is_full = |found: &Vec<_>| found.len() >= request.limit as usize;
    while !is_full(&found) {
        // Matches may be rare, so even a request for one entry reads at least a hundred at once.
        let entries = backend.audit(before, page).await?;
        let Some(last) = entries.last() else { break };
        before = Some(last.number);
        found.extend(entries.into_iter().filter(|entry| request.matches(entry)));
    }
    found.truncate(request.limit as usize);
    Ok(found)
}

/// Returns records of groups of errors; see [`Maintenance::group_records`](dlq_core::store::Maintenance::group_records).
pub async fn group_records<B: Backend>(
    backend: &B,
    groups: Vec<GroupKey>,
) -> Result<Vec<GroupRecord>, StoreError> {
    let mut records = Vec::with_capacity(groups.len());
    for groups in groups.chunks(1_000) {
        let page = GroupRecords(groups.into());
        records.extend(backend.run("read groups of errors", page).await?.answer);
    }
    Ok(records)
}

/// Changes the record of a group of errors; see
/// [`Maintenance::update_group`](dlq_core::store::Maintenance::update_group).
pub async fn update_group<B: Backend>(
    backend: &B,
    key: GroupKey,
    update: GroupUpdate,
    by: Actor,
) -> Result<GroupRecord, StoreError> {
    let update = UpdateGroup { key, update, by };
    Ok(backend.run(UpdateGroup::DURING, update).await?.answer)
}

/// Records that a consumer is there; see [`Maintenance::heartbeat`](dlq_core::store::Maintenance::heartbeat).
pub async fn heartbeat<B: Backend>(backend: &B, heartbeat: Heartbeat) -> Result<(), StoreError> {
    backend.run("record that a consumer is there", Beat(heartbeat.cut())).await?;
    Ok(())
}

/// Records that a consumer has stopped; see [`Maintenance::sign_off`](dlq_core::store::Maintenance::sign_off).
pub async fn sign_off<B: Backend>(backend: &B, heartbeat: Heartbeat) -> Result<(), StoreError> {
    backend.run("record that a consumer has stopped", SignOff(heartbeat)).await?;
    Ok(())
}

/// Returns the consumers that were heard of; see [`Maintenance::consumers`](dlq_core::store::Maintenance::consumers).
pub async fn consumers<B: Backend>(backend: &B) -> Result<(Vec<Presence>, Timestamp), StoreError> {
    Ok(backend.run("list the consumers", Present).await?.answer)
}

/// Deletes letters; see [`Maintenance::delete`](dlq_core::store::Maintenance::delete).
pub async fn delete<B: Backend>(
    backend: &B,
    selection: Selection,
    by: Actor,
) -> Result<Marked, StoreError> {
    let archive = Some(step_bytes(backend));
    delete_matching(backend, selection, by, "delete", archive).await
}

/// Deletes letters without a copy; see [`Maintenance::delete_for_good`](dlq_core::store::Maintenance::delete_for_good).
pub async fn delete_for_good<B: Backend>(
    backend: &B,
    selection: Selection,
    by: Actor,
) -> Result<Marked, StoreError> {
    delete_matching(backend, selection, by, "delete-for-good", None).await
}

/// Deletes letters, and copies them to the archive in steps of at most `archive` bytes where that is given.
async fn delete_matching<B: Backend>(
    backend: &B,
    selection: Selection,
    by: Actor,
    action: &'static str,
    archive: Option<u64>,
) -> Result<Marked, StoreError> {
    let filter = Arc::new(selection.filter().clone());
    let walk = Walk::matching(filter).with_limit(backend.limits().page());
    let entry = Entry { by, action, subject: json(&selection).into(), number: None };
    let why = "deleted by an operator";
    let step = |walk, entry| DeletePage { walk, why, archive, entry };
    in_steps(backend, ["delete letters", "deleted"], walk, entry, step).await
}

/// The most bytes of letters that one step copies to the archive or from it.
fn step_bytes<B: Backend>(backend: &B) -> u64 {
    backend.limits().bytes.min(8 * 1024 * 1024)
}

/// Lists letters of the archive; see [`Maintenance::archived`](dlq_core::store::Maintenance::archived).
pub async fn archived<B: Backend>(
    backend: &B,
    request: ArchiveRequest,
) -> Result<ArchivePage, StoreError> {
    let ArchiveRequest { filter, limit, after, .. } = request;
    let (filter, limit) = (Arc::new(filter), limit.max(1) as usize);
    let (mut found, mut next) = (Vec::new(), after);
    loop {
        let most = limit - found.len();
        let list = ListArchive { filter: Arc::clone(&filter), after: next, most };
        let (some, after) = backend.run("list the archive", list).await?.answer;
        found.extend(some);
        next = after;
        if next.is_none() || found.len() >= limit {
            return Ok(ArchivePage::new(found, next));
        }
    }
}

/// Restores letters from the archive; see [`Maintenance::undelete`](dlq_core::store::Maintenance::undelete).
pub async fn undelete<B: Backend>(
    backend: &B,
    filter: ArchiveFilter,
    by: Actor,
) -> Result<Marked, StoreError> {
    let subject = json(&filter).into();
    let mut entry = Entry { by, action: "undelete", subject, number: None };
    let (filter, bytes) = (Arc::new(filter), step_bytes(backend));
    let (mut marked, mut after) = (Marked::default(), None);
    loop {
        let (filter, most) = (Arc::clone(&filter), chunk(backend));
        let step = Undelete { filter, after, most, bytes, entry: entry.clone() };
        let done = backend.run("restore deleted letters", step).await;
        let done = done.map_err(|error| match marked.changed {
            0 => error,
            letters => error.with_addition(format_args!(
                "{letters} letters were restored before, and the audit says so"
            )),
        })?;
        let Undeleted { marked: some, next } = done.answer;
        marked.changed += some.changed;
        marked.skipped += some.skipped;
        entry.number = entry.number.or(done.note);
        // The walk goes from the newest deletion to older ones, so that it never comes to what is deleted meanwhile.
        after = next;
        if after.is_none() {
            return Ok(marked);
        }
    }
}

async fn empty_archive<B: Backend>(
    backend: &B,
    archived_for: Duration,
    by: Actor,
) -> Result<u64, StoreError> {
    let subject = serde_json::json!({ "archived_for_seconds": archived_for.as_secs_f64() });
    let subject = subject.to_string().into();
    let mut entry = Entry { by, action: "empty-archive", subject, number: None };
    let mut emptied = 0;
    loop {
        let step = EmptyArchive { archived_for, entry: entry.clone() };
        let done = backend.run("empty the archive", step).await?;
        let (some, is_more) = done.answer;
        emptied += some;
        entry.number = entry.number.or(done.note);
        if !is_more {
            return Ok(emptied);
        }
    }
}

/// Deletes what is old; see [`Maintenance::cleanup`](dlq_core::store::Maintenance::cleanup).
pub async fn cleanup<B: Backend>(
    backend: &B,
    cleanup: Cleanup,
    by: Actor,
) -> Result<Cleaned, StoreError> {
    let Cleanup { older_than, filter, include_unresolved, batch, archived_for, .. } = cleanup;
    let subject = serde_json::json!({
        "older_than_seconds": older_than.as_secs_f64(),
        "filter": filter,
        "include_unresolved": include_unresolved,
    });
    let limit = u64::from(batch).min(backend.limits().page());
    let walk = Walk::matching(Arc::new(filter)).older_than(older_than, include_unresolved);
    let walk = walk.with_limit(limit);
    let subject = subject.to_string().into();
    let entry = Entry { by: by.clone(), action: "cleanup", subject, number: None };
    let why = "deleted by a cleanup";
    // These were left for as long as the operator wanted. A copy of them would only take the place they were to give up.
    let step = |walk, entry| DeletePage { walk, why, archive: None, entry };
    let deleted = in_steps(backend, ["clean up", "deleted"], walk, entry, step).await?.changed;
    Ok(Cleaned::new(deleted, empty_archive(backend, archived_for, by).await?))
}

/// Changes letters in several steps, so that others can work in between. `during` is the call, and what it did.
async fn in_steps<B: Backend, V: Verb<Output = Step>>(
    backend: &B,
    during: [&'static str; 2],
    walk: Walk,
    mut entry: Entry,
    step: impl Fn(Walk, Entry) -> V + Send,
) -> Result<Marked, StoreError> {
    let (mut marked, mut next) = (Marked::default(), Some(walk));
    while let Some(walk) = next {
        // Each step commits its letters together with the entry in the audit, so that the entry counts what was changed,
        // also if the process dies before the next step.
        let done = backend.run(during[0], step(walk, entry.clone())).await;
        let done = done.map_err(|error| {
            let (letters, done) = (marked.changed, during[1]);
            if letters == 0 {
                return error;
            }
            let before =
                format_args!("{letters} letters were {done} before, and the audit says so");
            error.with_addition(before)
        })?;
        marked.changed += done.answer.marked.changed;
        marked.skipped += done.answer.marked.skipped;
        entry.number = entry.number.or(done.note);
        next = done.answer.next;
    }
    Ok(marked)
}

/// Edits a letter; see [`Maintenance::edit`](dlq_core::store::Maintenance::edit).
pub async fn edit<B: Backend>(
    backend: &B,
    id: LetterId,
    edit: Edit,
    by: Actor,
) -> Result<DeadLetter, StoreError> {
    let edit = EditLetter { id, edit, by, limits: backend.limits() };
    Ok(backend.run(EditLetter::DURING, edit).await?.answer)
}

/// Collapses letters of the same original; see [`Maintenance::deduplicate`](dlq_core::store::Maintenance::deduplicate).
///
/// The keys are given out before anything is collapsed: letters that arrive meanwhile are merged, and the others of the same
/// original are what the walk has found.
pub async fn deduplicate<B: Backend>(backend: &B, force: bool) -> Result<u64, StoreError> {
    const DURING: &str = "deduplicate";
    // The first survey only counts: a call that would remove too much is refused before anything is changed.
    let (all, groups) = survey(backend, DURING).await?;
    let removed: u64 = groups.values().map(|letters| letters.len() as u64 - 1).sum();
    // So many repetitions most often mean that a producer gives all its messages one id, and what is removed cannot be
    // brought back.
    if removed * 2 > all && !force {
        return Err(StoreError::new(StoreErrorKind::Refused, DURING).with_detail(format!(
            "{removed} of {all} letters would be removed, which is more than half; force it if that is meant"
        )));
    }
    backend.switch_dedup().await?;
    // What had arrived before keys were given out was not merged.
    let (_, groups) = survey(backend, DURING).await?;
    let limit = backend.limits().page();
    let groups = groups.into_values().flat_map(|letters| Group::split(letters, limit));
    let mut groups = groups.peekable();
    let subject = serde_json::json!({ "force": force }).to_string().into();
    let by = Actor::new("store");
    let mut entry = Entry { by, action: "deduplicate", subject, number: None };
    let mut removed = 0;
    loop {
        // Where there is nothing to collapse the audit says so.
        // The first group of a step is taken whatever its size. It has at least two letters, and a store may allow one.
        let (mut some, mut letters) = (Vec::new(), 0);
        while let Some(group) =
            groups.next_if(|group| letters == 0 || letters + group.len() <= limit)
        {
            letters += group.len();
            some.push(group);
        }
        let done = backend.run(DURING, Collapse { groups: some, entry: entry.clone() }).await?;
        removed += done.answer;
        entry.number = entry.number.or(done.note);
        if groups.peek().is_none() {
            return Ok(removed);
        }
    }
}

/// Returns the number of all letters, and those that may be collapsed, by their original and oldest first.
async fn survey<B: Backend>(
    backend: &B,
    during: &'static str,
) -> Result<(u64, BTreeMap<DedupKey, Vec<Seen>>), StoreError> {
    let (mut all, mut groups) = (0, BTreeMap::<_, Vec<_>>::new());
    let walk = Walk::matching(Arc::new(Filter::new())).with_limit(backend.limits().page());
    let mut next = Some(walk);
    // Letters of one original may stand on any pages, so the survey keeps an id and a time of each, and nothing else.
    while let Some(walk) = next {
        let surveyed = backend.run(during, Survey(walk)).await?.answer;
        all += surveyed.letters;
        for (key, seen) in surveyed.found {
            groups.entry(key).or_default().push(seen);
        }
        next = surveyed.next;
    }
    Ok((all, groups))
}

fn serve(spec: &OperationSpec, during: &'static str) -> Result<(), StoreError> {
    // An operation that nobody can send would keep its letters from every other one.
    if spec.target == Target::Handler || !spec.via.is_empty() {
        return Ok(());
    }
    Err(StoreError::new(StoreErrorKind::Refused, during).with_detail(format!(
        "the target is {}, and no broker is named that letters are sent to; name their clusters",
        spec.target
    )))
}

/// Number of letters of a call that one step changes.
pub(crate) fn chunk<B: Backend>(backend: &B) -> usize {
    usize::try_from(backend.limits().page()).unwrap_or(usize::MAX)
}

/// Takes out what is larger than the store takes. Returns the others, and the error about the first.
fn split_large(
    limits: Limits,
    letters: Vec<DeadLetter>,
    during: &'static str,
) -> (Vec<DeadLetter>, Option<StoreError>) {
    // A store without a bound is spared the sum over all headers of each letter.
    if limits.largest == u64::MAX {
        return (letters, None);
    }
    let fits = |letter: &DeadLetter| Limits::size(letter) <= limits.largest;
    let (letters, large): (Vec<_>, Vec<_>) = letters.into_iter().partition(fits);
    (letters, large.first().map(|letter| too_large(letter, limits, during)))
}

pub(crate) fn too_large(letter: &DeadLetter, limits: Limits, during: &'static str) -> StoreError {
    StoreError::new(StoreErrorKind::Refused, during).with_detail(format!(
        "the letter {} has {} bytes, and the store takes at most {}; keep it in another store",
        letter.id,
        Limits::size(letter),
        limits.largest
    ))
}

/// Takes as many letters as one step writes.
fn page_of(
    letters: &mut std::iter::Peekable<std::vec::IntoIter<DeadLetter>>,
    limits: Limits,
) -> Vec<DeadLetter> {
    let (mut page, mut bytes) = (Vec::new(), 0_u64);
    while (page.len() as u64) < limits.page()
        && let Some(letter) = letters.next_if(|letter| {
            if limits.bytes < u64::MAX {
                bytes = bytes.saturating_add(Limits::size(letter));
            }
            // A letter that is larger than a step is written in a step of its own, or nothing behind it would ever be written.
            page.is_empty() || bytes <= limits.bytes
        })
    {
        page.push(letter);
    }
    page
}

fn have_different_ids(letters: &[DeadLetter]) -> bool {
    let mut ids = HashSet::with_capacity(letters.len());
    letters.iter().all(|letter| ids.insert(letter.id))
}
