//! Actions on letters and operations, for the pages and for the HTTP interface.

use std::sync::Arc;
use std::time::Duration;

use dlq_core::policy::duration;
use dlq_core::replay::ReplayPlan;
use dlq_core::search::{Search, SearchPage, SearchRequest};
use dlq_core::store::{
    ArchiveFilter, ArchivePage, ArchiveRequest, AuditEntry, AuditRequest, Control, Edit, EditError,
    Group, GroupKey, GroupRecord, GroupState, GroupUpdate, Maintenance as _, Mark, Marked,
    Operation, OperationSpec, Pace, Plan, Presence, Selection, Target, Triage, TriagedGroup,
};
use dlq_core::{
    Binding, Clock as _, DeadLetter, DeadLetters, Filter, OperationId, Order, PageRequest,
    SystemClock, Timestamp,
};

use crate::access::Role;
use crate::call::Call;
use crate::door::from_base64;
use crate::filter::{self, When, letter_id};
use crate::log::{LogReplay, PlannedReplay, Sending};
use crate::mask::MASK;
use crate::refusal::Refusal;

/// Number of letters, items or entries that are listed unless told otherwise.
pub(crate) const PAGE: u32 = 50;
/// Number of them that are listed at most.
pub(crate) const LONGEST_PAGE: u32 = 500;
/// Number of letters that are deleted at most unless told otherwise, as by the command.
const MOST_DELETED: u64 = 10_000;
/// Number of operations among which one is looked for by its first digits.
// Stores look operations up by whole ids alone, and people copy digits of those that they see in a list.
const LATEST: u32 = 1_000;

/// Returns how many are to be listed.
pub(crate) fn limit(call: &Call, unless_said: u32) -> Result<u32, Refusal> {
    let limit = call.params.get("limit")?.unwrap_or(unless_said);
    // A larger limit is refused rather than cut: a program that asks for 10,000 would take 500 for all there are.
    if limit == 0 || limit > LONGEST_PAGE {
        return Err(Refusal::invalid(format!(
            "`limit` is {limit}; it is from 1 to {LONGEST_PAGE}"
        )));
    }
    Ok(limit)
}

/// Returns the page of letters that is asked for.
pub(crate) fn page_request(call: &Call) -> Result<PageRequest, Refusal> {
    let order =
        if call.params.is("oldest-first") { Order::OldestFirst } else { Order::NewestFirst };
    let after = call.params.get("cursor")?;
    Ok(PageRequest::new().limit(limit(call, PAGE)?).order(order).after(after))
}

/// Returns a part of a search, as large as a page may be and may take.
pub(crate) async fn search(
    call: &Call,
    search: &Search,
    filter: Filter,
    request: PageRequest,
) -> Result<SearchPage, Refusal> {
    let mut part = SearchRequest::new().limit(request.limit).order(request.order);
    // A page that reads no further than this may have no letters and still a next one, with which the search goes on.
    (part.read_at_most, part.after) = (filter::READ_FOR_PAGE, request.after);
    Ok(call.letters()?.search(search, filter, part).await?)
}

/// The letter that the path names.
pub(crate) async fn letter(call: &Call) -> Result<DeadLetter, Refusal> {
    let letters = call.letters()?;
    let id = letter_id(letters, call.path("id")).await?;
    Ok(letters.get(id).await?)
}

/// The operation that the path names.
pub(crate) async fn operation(call: &Call) -> Result<Operation, Refusal> {
    let letters = call.letters()?;
    let id = operation_id(letters, call.path("id")).await?;
    Ok(letters.operation(id).await?)
}

/// The operation whose id begins with these digits, among the latest.
async fn operation_id(letters: &DeadLetters, digits: &str) -> Result<OperationId, Refusal> {
    if let Ok(id) = digits.parse() {
        return Ok(id);
    }
    let digits = digits.to_ascii_lowercase();
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(Refusal::invalid("the id of an operation has hexadecimal digits only"));
    }
    let latest = letters.operations(LATEST).await?.into_iter().map(|operation| operation.id);
    let found: Vec<_> = latest.filter(|id| id.to_string().starts_with(&digits)).collect();
    match found.as_slice() {
        [id] => Ok(*id),
        [] => Err(Refusal::not_found(format!(
            "none of the latest {LATEST} operations has an id that begins with `{digits}`"
        ))),
        _ => Err(Refusal::conflict(format!(
            "more than one operation has an id that begins with `{digits}`; give more digits"
        ))),
    }
}

/// Letters that a change is about.
#[derive(Debug)]
pub(crate) struct Chosen {
    /// Without what comes from now on.
    pub(crate) filter: Filter,
    pub(crate) count: u64,
}

impl Chosen {
    /// Returns the letters that the filter of the request means now.
    pub(crate) async fn read(call: &Call) -> Result<Self, Refusal> {
        let letters = call.letters()?;
        let filter = chosen_filter(call, letters).await?;
        // What is stored from now on is not meant any more; letters that change their status may still come and go,
        // which `expect` notices.
        let count = letters.count(filter.clone()).await?;
        Ok(Self { filter, count })
    }

    /// Returns the selection, unless another number of letters was agreed to.
    fn agreed(self, call: &Call, is_asked: bool) -> Result<Selection, Refusal> {
        agree(call, is_asked, self.count)?;
        Ok(Selection::matching(self.filter)?)
    }
}

async fn chosen_filter(call: &Call, letters: &DeadLetters) -> Result<Filter, Refusal> {
    let filter = filter::read(call).await?;
    if !call.params.is("all") {
        // It is made to be refused: an empty filter is an error of it.
        let _ = Selection::matching(filter.clone())?;
    }
    // This comes after the refusal of an empty filter, as it asks the store.
    filter::must_exist(letters, &filter).await?;
    filter::until_now(letters, filter).await
}

/// Refuses a change if another number of letters was agreed to, or none where a page has to ask for it.
fn agree(call: &Call, is_asked: bool, count: u64) -> Result<(), Refusal> {
    match call.params.get::<u64>("expect")? {
        Some(expected) if expected == count => Ok(()),
        Some(expected) => Err(Refusal::conflict(format!(
            "{count} letters match now, and {expected} were agreed to; nothing was changed; look again"
        ))),
        None if is_asked => Err(Refusal::refused(format!(
            "{count} letters match, and nothing was changed: type the number of letters to go on"
        ))),
        None => Ok(()),
    }
}

/// Marks letters. `is_asked` says that the number of letters has to be given.
pub(crate) async fn mark(call: &Call, is_asked: bool) -> Result<(Mark, Marked), Refusal> {
    let mark = call.params.get("mark")?.unwrap_or(Mark::Quarantined);
    let selection = Chosen::read(call).await?.agreed(call, is_asked)?;
    let marked = call.letters()?.store().mark(selection, mark, call.actor()).await?;
    Ok((mark, marked))
}

/// Deletes letters, no more than were allowed: a filter that means more than was thought is noticed before they are gone.
pub(crate) async fn delete(call: &Call, is_asked: bool) -> Result<Marked, Refusal> {
    let chosen = Chosen::read(call).await?;
    let max = call.params.get("max")?.unwrap_or(MOST_DELETED);
    // The bound holds besides `expect`, which programs may leave out.
    if max != 0 && chosen.count > max {
        return Err(Refusal::refused(format!(
            "{count} letters would be deleted, and {max} at most are deleted at once; narrow the filter, or say max={count}",
            count = chosen.count
        )));
    }
    let selection = chosen.agreed(call, is_asked)?;
    let letters = call.letters()?;
    if call.params.is("for-good") {
        return Ok(letters.delete_for_good(selection, call.actor()).await?);
    }
    Ok(letters.delete(selection, call.actor()).await?)
}

/// Returns which deleted letters are meant.
fn archive_filter(call: &Call) -> Result<ArchiveFilter, Refusal> {
    let params = &call.params;
    let mut letters = Filter::new();
    // Ids are taken whole: a store looks up digits among its letters alone, and these are in none any more.
    letters.ids = params.get_all("id")?;
    letters.consumers = params.all("consumer").map(str::to_owned).collect();
    let mut filter = ArchiveFilter::new().letters(letters);
    filter.deleted_by = params.text("by").map(str::to_owned);
    filter.deleted_since = params.get::<When>("since")?.map(|when| when.0);
    filter.deleted_until = params.get::<When>("until")?.map(|when| when.0);
    Ok(filter)
}

/// Returns a page of the letters that were deleted.
pub(crate) async fn archived(call: &Call) -> Result<ArchivePage, Refusal> {
    let request = ArchiveRequest::latest(limit(call, PAGE)?).filter(archive_filter(call)?);
    let request = request.after(call.params.get("cursor")?);
    Ok(call.letters()?.archived(request).await?)
}

/// Restores letters that were deleted.
pub(crate) async fn restore(call: &Call) -> Result<Marked, Refusal> {
    let filter = archive_filter(call)?;
    // The check is made here as well as in the page, since the archive has no selection that would refuse an empty
    // filter.
    if filter.is_empty() && !call.params.is("all") {
        return Err(Refusal::refused(
            "no letters are named, and nothing was changed; name letters, or say all=true",
        ));
    }
    Ok(call.letters()?.undelete(filter, call.actor()).await?)
}

/// Returns the replay that is asked for.
async fn spec(call: &Call) -> Result<OperationSpec, Refusal> {
    let filter = chosen_filter(call, call.letters()?).await?;
    let params = &call.params;
    let mut spec = OperationSpec::replay(filter);
    match params.text("to").unwrap_or("handler") {
        "handler" => {}
        to => {
            // An operation that no process sends would wait for ever and hold its letters back from their handlers.
            if call.console.via.is_empty() {
                return Err(Refusal::refused(
                    "letters go back to their handlers alone: nobody here sends letters to brokers; start the console with brokers \
                     (dlq serve --console --replay --via URL), or leave `to` out",
                ));
            }
            spec = spec.target(target(to)?, call.console.via.iter().cloned());
            if let Some(wait) = params.text("canary-wait") {
                spec = spec.canary_wait(span("canary-wait", wait)?);
            }
        }
    }
    if let Some(limit) = most(call)? {
        spec = spec.limit(limit);
    }
    if let Some(pace) = params.get("rate")? {
        spec = spec.pace(pace);
    }
    if let Some(canary) = params.get("canary")? {
        spec = spec.canary(canary);
    }
    if let Some(max) = params.get("max-replays")? {
        spec = spec.max_replays(max);
    }
    Ok(spec)
}

/// Reads the destination of a replay.
fn target(to: &str) -> Result<Target, Refusal> {
    Ok(match to {
        "handler" => Target::Handler,
        "origin" => Target::Origin,
        "" => return Err(Refusal::invalid("`to` is empty; say handler, origin or a subject")),
        subject => Target::Subject(subject.to_owned()),
    })
}

/// Reads how many letters a replay sends at most.
fn most(call: &Call) -> Result<Option<u64>, Refusal> {
    let limit = call.params.get::<u64>("limit")?;
    // Elsewhere 0 stands for no limit, so that it could mean all letters or none here.
    if limit == Some(0) {
        return Err(Refusal::invalid("`limit` is 0; say how many letters, or leave it out"));
    }
    Ok(limit)
}

fn span(name: &str, text: &str) -> Result<Duration, Refusal> {
    duration::parse(text).map_err(|error| Refusal::invalid(format!("`{name}`: {error}")))
}

/// Replay that is asked for, with what it would do.
#[derive(Debug)]
pub(crate) struct Planned {
    pub(crate) spec: OperationSpec,
    pub(crate) plan: Plan,
    /// Consumers that the letters would wait for.
    pub(crate) unattended: Vec<String>,
}

/// Returns what the replay that is asked for would do.
pub(crate) async fn plan(call: &Call) -> Result<Planned, Refusal> {
    let (spec, letters) = (spec(call).await?, call.letters()?);
    let plan = letters.plan(spec.clone()).await?;
    let unattended = letters.unattended_by(&spec).await?;
    Ok(Planned { spec, plan, unattended })
}

/// Starts the replay that is asked for, unless it would send nothing.
pub(crate) async fn replay(
    call: &Call,
    is_asked: bool,
) -> Result<(Plan, Option<Operation>), Refusal> {
    let Planned { spec, plan, .. } = plan(call).await?;
    // The plan leaves out letters that cannot be sent, so its number is asked for, and not that of the filter.
    agree(call, is_asked, plan.count)?;
    // An operation without letters would end at once and stand in the list as one that did something.
    if plan.count == 0 {
        return Ok((plan, None));
    }
    let operation = call.letters()?.replay(spec, call.actor()).await?;
    Ok((plan, Some(operation)))
}

/// Replay of a log that is asked for, with what it would do.
#[derive(Debug)]
pub(crate) struct PlannedAtLog {
    pub(crate) asked: LogReplay,
    pub(crate) planned: PlannedReplay,
}

/// Returns what the replay of a log that is asked for would do.
pub(crate) async fn plan_of_log(call: &Call) -> Result<PlannedAtLog, Refusal> {
    let params = &call.params;
    // A log does not learn what becomes of a letter that it has sent back.
    if let Some(name) =
        ["canary", "canary-wait"].into_iter().find(|name| params.text(name).is_some())
    {
        return Err(Refusal::refused(format!(
            "`{name}` needs a store, which knows what becomes of letters; leave it out, or ingest the log into a store"
        )));
    }
    let filter = chosen_filter(call, call.letters()?).await?;
    let target = target(params.text("to").unwrap_or("handler"))?;
    let mut asked = LogReplay::new(filter, target, call.visitor.name.clone());
    asked.limit = most(call)?;
    asked.pace = params.get("rate")?;
    if let Some(max) = params.get("max-replays")? {
        asked.max_replays = max;
    }
    let planned = call.log()?.plan(asked.clone()).await?;
    Ok(PlannedAtLog { asked, planned })
}

/// Begins the replay of a log that is asked for, unless it would send nothing.
pub(crate) async fn replay_of_log(
    call: &Call,
    is_asked: bool,
) -> Result<(ReplayPlan, Option<Arc<Sending>>), Refusal> {
    let PlannedAtLog { asked, planned } = plan_of_log(call).await?;
    let plan = planned.plan.clone();
    agree(call, is_asked, plan.letters)?;
    if plan.letters == 0 {
        return Ok((plan, None));
    }
    let note = call.params.text("note").unwrap_or_default().trim().to_owned();
    let sending = call.log()?.start(planned, asked.target, asked.by, note)?;
    Ok((plan, Some(sending)))
}

/// The latest replay of the log that the path names.
pub(crate) fn sending(call: &Call) -> Result<Arc<Sending>, Refusal> {
    let latest = call.log()?.sending();
    latest.ok_or_else(|| {
        Refusal::not_found("nothing of this log was sent back since the process was started")
    })
}

/// Stops the replay of the log that the path names.
pub(crate) fn stop_replay(call: &Call) -> Result<Arc<Sending>, Refusal> {
    let sending = sending(call)?;
    if sending.state().is_over() {
        return Err(Refusal::conflict("the replay has ended already"));
    }
    sending.ask_to_stop();
    Ok(sending)
}

/// Steers the operation that the path names.
pub(crate) async fn steer(call: &Call, control: Control) -> Result<Operation, Refusal> {
    let letters = call.letters()?;
    let id = operation_id(letters, call.path("id")).await?;
    Ok(letters.control(id, control, call.actor()).await?)
}

/// Sets the rate of the operation that the path names.
pub(crate) async fn set_rate(call: &Call) -> Result<Operation, Refusal> {
    let text = call.params.text("rate").unwrap_or_default();
    let pace = Pace::or_none(text)
        .map_err(|error| Refusal::invalid(format!("`rate`: {error}, or `none` for no limit")))?;
    let letters = call.letters()?;
    let id = operation_id(letters, call.path("id")).await?;
    Ok(letters.set_pace(id, pace, call.actor()).await?)
}

/// Edit of a letter, with the letter as it is and as it would be.
#[derive(Debug)]
pub(crate) struct Edited {
    pub(crate) before: DeadLetter,
    pub(crate) after: DeadLetter,
    edit: Edit,
}

impl Edited {
    fn new(before: DeadLetter, edit: Edit) -> Result<Self, Refusal> {
        // The edit is applied to a copy for the preview; the store applies it once more to what it has then.
        let after = before.clone().with_message(edit.apply(&before.message)?);
        Ok(Self { before, after, edit })
    }

    pub(crate) fn is_change(&self) -> bool {
        self.before.message != self.after.message
    }

    /// Makes the edit. The store refuses it if payload or key are no longer those that were looked at.
    pub(crate) async fn make(self, call: &Call) -> Result<DeadLetter, Refusal> {
        // Another edit, or a death with other bytes, between the look and this refuses the edit instead of being
        // overwritten.
        let edit = self.edit.expecting(&self.before);
        Ok(call.letters()?.edit(self.before.id, edit, call.actor()).await?)
    }
}

/// Returns the edit that is asked for.
pub(crate) async fn edit(call: &Call) -> Result<Edited, Refusal> {
    let params = &call.params;
    let before = letter(call).await?;
    // The page was looked at some time ago, so the binding that it showed is compared and not one from a moment ago.
    is_as_seen(call, &before)?;
    let payloads = [
        params.text("payload-text").map(|text| Ok(text.as_bytes().to_vec())),
        params.text("payload-base64").map(from_base64),
    ];
    let mut edit = Edit::new();
    let mut said = 0;
    for payload in payloads.into_iter().flatten() {
        edit = edit.payload(payload?);
        said += 1;
    }
    if params.is("no-payload") {
        edit = edit.no_payload();
        said += 1;
    }
    if said > 1 {
        return Err(Refusal::invalid(
            "more than one payload is given; say one of payload-text, payload-base64 and no-payload",
        ));
    }
    for name in params.all("remove-header") {
        edit = edit.remove_header(name.to_owned());
    }
    for header in params.all("header") {
        let Some((name, value)) = header.split_once('=').filter(|(name, _)| !name.is_empty())
        else {
            return Err(Refusal::invalid("`header` has no name or no value; write NAME=VALUE"));
        };
        edit = edit.set_header(name.to_owned(), value.to_owned());
    }
    if params.is("allow-invalid") {
        edit = edit.allow_invalid();
    }
    let edited = Edited::new(before, edit)?;
    if call.console.mask.is_written(&edited.before.message, &edited.after.message) {
        return Err(Refusal::refused(format!(
            "the edit would write `{MASK}` where rules mask a value: what was shown masked is not what is there; reveal the letter, and \
             edit that"
        )));
    }
    Ok(edited)
}

/// Refuses an edit of a letter that is not what was looked at.
fn is_as_seen(call: &Call, letter: &DeadLetter) -> Result<(), Refusal> {
    match call.params.get::<Binding>("binding")? {
        Some(seen) if seen != Binding::of(&letter.id, &letter.message) => {
            Err(EditError::Changed.into())
        }
        _ => Ok(()),
    }
}

/// Returns the edit that undoes the latest one.
pub(crate) async fn undo(call: &Call) -> Result<Edited, Refusal> {
    let letter = letter(call).await?;
    is_as_seen(call, &letter)?;
    let of_letter = |entry: &AuditEntry| {
        // Edits of others may hold its id in their payloads, and one that changed nothing cannot be undone.
        let subject = serde_json::from_str::<serde_json::Value>(&entry.subject).unwrap_or_default();
        let is_changed = subject.get("payload").is_some() || subject.get("headers").is_some();
        is_changed && subject["letter"] == letter.id.to_string()
    };
    let mut request = AuditRequest::latest(100).letter(letter.id).action("edit");
    loop {
        // The store's own entries are read and not masked ones: what comes back has to be what was there.
        let entries = call.letters()?.store().audit(request.clone()).await?;
        if let Some(entry) = entries.iter().find(|entry| of_letter(entry)) {
            let edit = Edit::undoing(&entry.subject, &letter)?;
            return Edited::new(letter, edit);
        }
        let Some(last) = entries.last() else { break };
        // Letters that were revealed often have many entries that changed nothing, behind which the edit stands.
        request = request.before(last.number);
    }
    Err(Refusal::refused("the letter was not edited; there is nothing to undo"))
}

/// Returns the whole letter that the path names, once the audit says who looked at it and why. What rules mask of it is
/// for the role `admin` alone.
///
/// The store has no entries of its own for looking. An edit that changes nothing is one: it is kept with the reason, and
/// touches nothing.
pub(crate) async fn reveal(call: &Call) -> Result<DeadLetter, Refusal> {
    let letter = letter(call).await?;
    let mut by = call.actor();
    let note = by.note.take().unwrap_or_default();
    let by = by.with_note(format!("revealed, not changed: {note}"));
    // The entry is written before the letter is shown: if the process dies in between, somebody is named who saw
    // nothing, and never the other way round.
    let looked = call.letters()?.edit(letter.id, Edit::new(), by).await;
    looked
        .map_err(|error| {
            let refusal = Refusal::from(error);
            let message = format!(
                "the letter is not revealed, since the audit cannot say so: {}",
                refusal.message
            );
            Refusal { message, ..refusal }
        })
        .map(|letter| if call.may(Role::Admin) { letter } else { call.masked(letter) })
}

/// Groups of the states that are asked for, and how many there are of others.
#[derive(Debug)]
pub(crate) struct Groups {
    pub(crate) shown: Vec<TriagedGroup>,
    pub(crate) others: usize,
    /// True if more are of these states than were asked for.
    pub(crate) has_more: bool,
}

/// Returns at most `limit` groups of the states that are asked for.
pub(crate) async fn groups(call: &Call, mut filter: Filter, limit: u32) -> Result<Groups, Refusal> {
    let began = call.params.get::<When>("began")?.map(|when| when.0);
    // A group that began then has no letter from before.
    filter.since = filter.since.max(began);
    let states = call.params.get_all::<GroupState>("state")?;
    let is_meant = |state: GroupState| {
        if states.is_empty() { state.is_open() } else { states.contains(&state) }
    };
    // Closed groups must not take the places of open ones.
    let mut all = call.letters()?.triaged_groups(filter, limit.max(1_000)).await?;
    all.retain(|it| began.is_none_or(|began| it.group.first_seen >= began));
    let (mut shown, others): (Vec<_>, Vec<_>) = all.into_iter().partition(|it| is_meant(it.state));
    let has_more = shown.len() > limit as usize;
    shown.truncate(limit as usize);
    Ok(Groups { shown, others: others.len(), has_more })
}

/// Returns at most `limit` groups of a log, of which nothing is known but the letters.
pub(crate) async fn groups_of_log(
    call: &Call,
    filter: Filter,
    limit: u32,
) -> Result<Vec<Group>, Refusal> {
    let asked = ["state", "began"].into_iter().find(|name| call.params.text(name).is_some());
    if let Some(name) = asked {
        return Err(Refusal::refused(format!(
            "`{name}` is of a store, and a log of a broker keeps nothing of groups; ingest it into a store"
        )));
    }
    Ok(call.letters()?.groups(filter, limit).await?)
}

/// The group that the request names.
pub(crate) fn group_key(call: &Call) -> Result<GroupKey, Refusal> {
    let lacking = || Refusal::invalid("`fingerprint` and `consumer` name a group");
    let fingerprint = call.params.get("fingerprint")?.ok_or_else(lacking)?;
    let consumer = call.params.text("consumer").ok_or_else(lacking)?;
    Ok(GroupKey::new(consumer, fingerprint))
}

/// Returns what is known of a group, with its letters if it has any.
pub(crate) async fn group(
    call: &Call,
    key: &GroupKey,
) -> Result<(Option<TriagedGroup>, GroupRecord), Refusal> {
    let letters = call.letters()?;
    // A group is known by its record also when its last letter has gone, so the record is read in any case.
    let group = letters.triaged_groups(key.filter(), 1).await?.into_iter().next();
    Ok((group, letters.group_record(key.clone()).await?))
}

/// Decides about the group that the request names, and returns which it is.
pub(crate) async fn triage(call: &Call) -> Result<GroupKey, Refusal> {
    let params = &call.params;
    let mut update = GroupUpdate::new();
    let time = params.text("for").filter(|text| !text.trim().is_empty());
    // A form sends empty fields: `decision` empty leaves the decision as it is.
    update.triage = match params.text("decision").unwrap_or_default() {
        "" => None,
        "new" => Some(Triage::New),
        "acknowledged" => Some(Triage::Acknowledged),
        "resolved" => Some(Triage::Resolved),
        "snoozed" => {
            let time = time.ok_or_else(|| {
                Refusal::invalid("`for` says how long a group is snoozed, e.g. 2h or 7d")
            })?;
            Some(Triage::Snoozed(SystemClock.now().after(span("for", time)?)))
        }
        _ => {
            return Err(Refusal::invalid("`decision` is new, acknowledged, snoozed or resolved"));
        }
    };
    update.owner = params.text("owner").map(|owner| owner.trim().to_owned());
    update.note = params.text("text").map(|text| text.trim().to_owned());
    // An update of nothing would still write an entry into the audit.
    if update.is_empty() {
        return Err(Refusal::invalid("nothing is asked for; say decision, owner or text"));
    }
    let key = group_key(call)?;
    call.letters()?.update_group(key.clone(), update, call.actor()).await?;
    Ok(key)
}

/// Returns the consumers that are asked for, and the time by the store's clock.
pub(crate) async fn consumers(call: &Call) -> Result<(Vec<Presence>, Timestamp), Refusal> {
    // Consumers report by the store's clock, and this machine's may be minutes off, which is longer than a minute of
    // silence.
    let (mut present, now) = call.letters()?.consumers().await?;
    let is_gone = call.params.is("gone");
    present.retain(|it| !is_gone || !it.is_alive(now));
    Ok((present, now))
}

/// Returns the entries of the audit that are asked for.
pub(crate) async fn audit(call: &Call) -> Result<Vec<AuditEntry>, Refusal> {
    let (params, letters) = (&call.params, call.letters()?);
    let mut request = AuditRequest::latest(limit(call, PAGE)?);
    if let Some(digits) = params.text("letter") {
        request = about(letters, request, letter_id(letters, digits).await?).await?;
    }
    if let Some(digits) = params.text("op") {
        request = request.operation(operation_id(letters, digits).await?);
    }
    request.by = params.text("by").map(str::to_owned);
    request.action = params.text("action").map(str::to_owned);
    request.since = params.get::<When>("since")?.map(|when| when.0);
    request.until = params.get::<When>("until")?.map(|when| when.0);
    request.before = params.get("before")?;
    Ok(masked(call, letters.store().audit(request).await?))
}

/// Returns a request for what was done to a letter, or to all letters of its present operation.
async fn about(
    letters: &DeadLetters,
    request: AuditRequest,
    id: dlq_core::LetterId,
) -> Result<AuditRequest, Refusal> {
    let page = letters.list(Filter::new().with_id(id), PageRequest::new().limit(1)).await?;
    let mut request = request.letter(id);
    // A replay of a filter does not name its letters, so that what was done to the operation is looked up too.
    request.operation = page.letters.first().and_then(|letter| letter.state.operation);
    Ok(request)
}

/// Returns the latest entries of the audit about a letter.
pub(crate) async fn audit_of(
    call: &Call,
    letter: &DeadLetter,
    limit: u32,
) -> Result<Vec<AuditEntry>, Refusal> {
    let mut request = AuditRequest::latest(limit).letter(letter.id);
    request.operation = letter.state.operation;
    Ok(masked(call, call.letters()?.store().audit(request).await?))
}

fn masked(call: &Call, mut entries: Vec<AuditEntry>) -> Vec<AuditEntry> {
    for entry in &mut entries {
        *entry = call.console.mask.entry(entry);
    }
    entries
}
