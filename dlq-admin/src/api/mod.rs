//! HTTP interface for programs: the documents that the command prints with `-o json`.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use dlq_core::store::{Control, GroupKey, Hours, Presence};
use serde_json::{Value, json};

use crate::access::Role;
use crate::actions::{self, Chosen, PAGE, Planned, limit};
use crate::call::{self, Call, respond};
use crate::door::file_name;
use crate::events::{Origin, Topic};
use crate::refusal::Refusal;
use crate::shown::{Document, audit_entry, replay_plan};
use crate::{Served, filter, hidden, openapi};

/// Returns the document of an error.
pub(crate) fn refused(refusal: &Refusal) -> Response {
    let status = refusal.status;
    let error = json!({ "error": { "status": status.as_u16(), "message": refusal.message } });
    let text = serde_json::to_vec(&Document::new(&error)).unwrap_or_default();
    let mut response = respond(status, "application/json", text);
    let headers = response.headers_mut();
    if status == StatusCode::UNAUTHORIZED {
        // HTTP asks for it with 401, and browsers show no dialog for this scheme.
        headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    if let Some(seconds) = refusal.retry_after {
        headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

pub(crate) async fn openapi(_: Call) -> Result<Response, Refusal> {
    let text = serde_json::to_vec_pretty(&openapi::document()).unwrap_or_default();
    Ok(respond(StatusCode::OK, "application/json", text))
}

pub(crate) async fn stores(call: Call) -> Result<Response, Refusal> {
    let stores = &call.console.stores;
    let names: Vec<_> = stores.iter().map(|(name, _)| name).collect();
    let logs = stores.iter().filter(|(_, served)| matches!(served, Served::Log(_)));
    let logs: Vec<_> = logs.map(|(name, _)| name).collect();
    let visitor = &call.visitor;
    call::json(&json!({
        "stores": names,
        "logs": logs,
        "name": visitor.name,
        "role": visitor.role.as_str(),
    }))
}

pub(crate) async fn list(call: Call) -> Result<Response, Refusal> {
    let (filter, search) = filter::read_apart(&call).await?;
    let request = actions::page_request(&call)?;
    // A list goes on by pages of what is stored, a search by what it has read, so they have different documents.
    if !search.is_empty() {
        return call::json(&actions::search(&call, &search, filter, request).await?);
    }
    call::json(&call.letters()?.list(filter, request).await?)
}

pub(crate) async fn letter(call: Call) -> Result<Response, Refusal> {
    let letter = actions::letter(&call).await?;
    // The size is taken before the masks, as the mask of a payload has another one.
    let size = letter.message.payload().map(bytes::Bytes::len);
    let letter = call.masked(letter);
    if call.may(Role::Operate) {
        return call::json(&letter);
    }
    // Masks come first and hiding second: both hold for the role `read`.
    let mut document = serde_json::to_value(hidden::letter(&letter)).unwrap_or_default();
    document["payload_size"] = json!(size);
    document["hidden"] = json!(hidden::FIELDS);
    call::json(&document)
}

pub(crate) async fn payload(call: Call) -> Result<Response, Refusal> {
    let letter = call.masked(actions::letter(&call).await?);
    let Some(payload) = letter.message.payload() else {
        return Err(Refusal::not_found("the message has no payload"));
    };
    // Never the type of the payload, which may be HTML: a browser has to save it, and show nothing of it under our
    // origin.
    let mut response = respond(StatusCode::OK, "application/octet-stream", payload.clone());
    let disposition =
        format!("attachment; filename=\"{}.payload\"", file_name(&letter.id.to_string()));
    if let Ok(disposition) = HeaderValue::from_str(&disposition) {
        response.headers_mut().insert(header::CONTENT_DISPOSITION, disposition);
    }
    Ok(response)
}

pub(crate) async fn reveal(call: Call) -> Result<Response, Refusal> {
    call::json(&actions::reveal(&call).await?)
}

pub(crate) async fn edit(call: Call) -> Result<Response, Refusal> {
    let edited = actions::edit(&call).await?;
    edit_or_say(&call, edited).await
}

pub(crate) async fn undo(call: Call) -> Result<Response, Refusal> {
    let edited = actions::undo(&call).await?;
    edit_or_say(&call, edited).await
}

async fn edit_or_say(call: &Call, edited: actions::Edited) -> Result<Response, Refusal> {
    // An edit that changes nothing would stand in the audit like a letter that was revealed.
    if call.params.is("dry-run") || !edited.is_change() {
        return call::json(&json!({ "edited": false, "letter": call.masked(edited.after) }));
    }
    let letter = call.masked(edited.make(call).await?);
    call::json(&json!({ "edited": true, "letter": letter }))
}

pub(crate) async fn count(call: Call) -> Result<Response, Refusal> {
    let letters = call.letters()?;
    let filter = filter::read(&call).await?;
    call::json(&json!({ "count": letters.count(filter).await? }))
}

pub(crate) async fn groups(call: Call) -> Result<Response, Refusal> {
    let filter = filter::read(&call).await?;
    if call.is_log() {
        let groups = actions::groups_of_log(&call, filter, limit(&call, 20)?).await?;
        return call::json(&json!({ "groups": groups }));
    }
    let groups = actions::groups(&call, filter, limit(&call, 20)?).await?;
    call::json(&json!({ "groups": groups.shown }))
}

pub(crate) async fn group(call: Call) -> Result<Response, Refusal> {
    let key = actions::group_key(&call)?;
    group_document(&call, key).await
}

pub(crate) async fn triage(call: Call) -> Result<Response, Refusal> {
    let key = actions::triage(&call).await?;
    group_document(&call, key).await
}

async fn group_document(call: &Call, key: GroupKey) -> Result<Response, Refusal> {
    let (group, record) = actions::group(call, &key).await?;
    match group {
        Some(group) => call::json(&group),
        // Of a group without letters there is the record alone.
        None => call::json(&json!({
            "consumer": key.consumer,
            "fingerprint": key.fingerprint,
            "count": 0,
            "record": record,
        })),
    }
}

pub(crate) async fn consumers(call: Call) -> Result<Response, Refusal> {
    let (present, now) = actions::consumers(&call).await?;
    let document = |it: &Presence| {
        let mut document = serde_json::to_value(it).unwrap_or_default();
        document["is_alive"] = it.is_alive(now).into();
        document
    };
    let consumers: Vec<_> = present.iter().map(document).collect();
    call::json(&json!({ "consumers": consumers }))
}

pub(crate) async fn stats(call: Call) -> Result<Response, Refusal> {
    let letters = call.letters()?;
    let filter = filter::read(&call).await?;
    call::json(&letters.stats(filter).await?)
}

pub(crate) async fn hours(call: Call) -> Result<Response, Refusal> {
    let letters = call.letters()?;
    let filter = filter::read(&call).await?;
    let hours = call.params.get("hours")?.unwrap_or(Hours::WEEK);
    if hours == 0 || hours > Hours::MOST {
        return Err(Refusal::invalid(format!(
            "`hours` is {hours}; it is from 1 to {}",
            Hours::MOST
        )));
    }
    call::json(&letters.hours(filter, hours).await?)
}

pub(crate) async fn plan(call: Call) -> Result<Response, Refusal> {
    if call.is_log() {
        let planned = actions::plan_of_log(&call).await?.planned;
        return call::json(&json!({ "plan": replay_plan(&planned.plan) }));
    }
    let Planned { spec, plan, unattended } = actions::plan(&call).await?;
    call::json(&json!({ "plan": plan, "spec": spec, "unattended": unattended }))
}

pub(crate) async fn replay(call: Call) -> Result<Response, Refusal> {
    if call.is_log() {
        let (plan, sending) = actions::replay_of_log(&call, false).await?;
        let plan = sending.is_none().then(|| replay_plan(&plan));
        let sending = sending.map(|sending| sending.document());
        return call::json(&json!({ "replay": sending, "plan": plan }));
    }
    match actions::replay(&call, false).await? {
        (_, Some(operation)) => call::json(&operation),
        // A program that replays what is left finds nothing in the end, which is no error.
        (plan, None) => call::json(&json!({ "id": null, "plan": plan })),
    }
}

pub(crate) async fn latest_replay(call: Call) -> Result<Response, Refusal> {
    let latest = call.log()?.sending().map(|sending| sending.document());
    call::json(&json!({ "replay": latest }))
}

pub(crate) async fn latest_replay_events(call: Call) -> Result<Response, Refusal> {
    let sending = actions::sending(&call)?;
    let topic = Topic::Replay { store: store_name(&call), began: sending.began };
    call.console.events.listen(topic, Origin::Replay(sending)).await
}

pub(crate) async fn stop_replay(call: Call) -> Result<Response, Refusal> {
    let stopped = actions::stop_replay(&call)?;
    call::json(&json!({ "replay": stopped.document() }))
}

pub(crate) async fn mark(call: Call) -> Result<Response, Refusal> {
    // The mark is read first, so that a word that is none is refused by a dry run too.
    call.params.get::<dlq_core::store::Mark>("mark")?;
    if call.params.is("dry-run") {
        return dry_run(&call).await;
    }
    call::json(&actions::mark(&call, false).await?.1)
}

pub(crate) async fn delete(call: Call) -> Result<Response, Refusal> {
    if call.params.is("dry-run") {
        return dry_run(&call).await;
    }
    call::json(&actions::delete(&call, false).await?)
}

pub(crate) async fn archive(call: Call) -> Result<Response, Refusal> {
    call::json(&actions::archived(&call).await?)
}

pub(crate) async fn restore(call: Call) -> Result<Response, Refusal> {
    call::json(&actions::restore(&call).await?)
}

async fn dry_run(call: &Call) -> Result<Response, Refusal> {
    let chosen = Chosen::read(call).await?;
    let page = dlq_core::PageRequest::new().limit(10);
    let sample = call.letters()?.list(chosen.filter, page).await?.letters;
    call::json(&json!({ "count": chosen.count, "sample": sample }))
}

pub(crate) async fn operations(call: Call) -> Result<Response, Refusal> {
    let operations = call.letters()?.operations(limit(&call, 20)?).await?;
    call::json(&json!({ "operations": operations }))
}

pub(crate) async fn operation(call: Call) -> Result<Response, Refusal> {
    let operation = actions::operation(&call).await?;
    let after = call.params.get("after")?.unwrap_or(0);
    let page = call.letters()?.items(operation.id, after, limit(&call, PAGE)?).await?;
    call::json(&json!({ "operation": operation, "items": page.items, "next": page.next }))
}

pub(crate) async fn items(call: Call) -> Result<Response, Refusal> {
    let operation = actions::operation(&call).await?;
    let after = call.params.get("after")?.unwrap_or(0);
    call::json(&call.letters()?.items(operation.id, after, limit(&call, PAGE)?).await?)
}

pub(crate) async fn pause(call: Call) -> Result<Response, Refusal> {
    call::json(&actions::steer(&call, Control::Pause).await?)
}

pub(crate) async fn resume(call: Call) -> Result<Response, Refusal> {
    call::json(&actions::steer(&call, Control::Resume).await?)
}

pub(crate) async fn cancel(call: Call) -> Result<Response, Refusal> {
    call::json(&actions::steer(&call, Control::Cancel).await?)
}

pub(crate) async fn rate(call: Call) -> Result<Response, Refusal> {
    call::json(&actions::set_rate(&call).await?)
}

pub(crate) async fn audit(call: Call) -> Result<Response, Refusal> {
    let is_whole = call.may(Role::Operate);
    let entries = actions::audit(&call).await?;
    let shown = if is_whole { audit_entry } else { hidden::entry };
    let entries: Vec<Value> = entries.iter().map(shown).collect();
    call::json(&json!({ "entries": entries }))
}

pub(crate) async fn events(call: Call) -> Result<Response, Refusal> {
    let letters = Origin::Letters(call.letters()?.clone());
    let topic = Topic::Overview { store: store_name(&call) };
    call.console.events.listen(topic, letters).await
}

pub(crate) async fn operation_events(call: Call) -> Result<Response, Refusal> {
    let id = actions::operation(&call).await?.id;
    let letters = Origin::Letters(call.letters()?.clone());
    let topic = Topic::Operation { store: store_name(&call), id };
    call.console.events.listen(topic, letters).await
}

fn store_name(call: &Call) -> String {
    call.store.as_ref().map_or_else(String::new, |(name, _)| name.clone())
}
