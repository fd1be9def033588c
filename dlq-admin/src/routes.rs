//! The one table of routes: from it come the router, the rights, and the OpenAPI document.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{OriginalUri, RawPathParams, Request};
use axum::http::request::Parts;
use axum::http::{HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::map_response;
use axum::response::Response;
use axum::routing::{MethodFilter, on};

use tokio::time::timeout;

use crate::access::Role;
use crate::call::Call;
use crate::door::{self, Visitor};
use crate::filter::FILTER;
use crate::idempotency::{Key, LONGEST};
use crate::params::{Parameter, Params};
use crate::refusal::Refusal;
use crate::{Console, Served, api, pages};

pub(crate) type Running = Pin<Box<dyn Future<Output = Result<Response, Refusal>> + Send>>;

/// Length of a body, in bytes.
// The largest filter that a page sends names the 500 letters that a search found, which are some tens of KiB.
const BODY: usize = 1024 * 1024;
/// Length of the body of an edit: the store says itself what it does not take.
const EDIT_BODY: usize = 256 * 1024 * 1024;

/// Time limit for a body to arrive.
const ARRIVAL: Duration = Duration::from_secs(120);
/// Length, in bytes, and time limit of a body that somebody sends who has not logged in: others could hold all places of a
/// server otherwise.
const OF_STRANGERS: (usize, Duration) = (8 * 1024, Duration::from_secs(10));

/// Right to use a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Allowed {
    /// Needs no login.
    Everybody,
    /// This role, and those above it.
    From(Role),
}

/// Kind of answer of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Page,
    Api,
}

/// Letters that a route is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Serves {
    Stores,
    /// Stores, and logs of brokers as of their latest reading.
    Both,
    /// Logs of brokers, without their letters: a page that stops a replay does not wait for a reading.
    Logs,
}

impl Serves {
    pub(crate) const fn logs(self) -> bool {
        matches!(self, Self::Both | Self::Logs)
    }

    pub(crate) const fn stores(self) -> bool {
        matches!(self, Self::Both | Self::Stores)
    }
}

/// Route: where it is, who may use it, what it takes and what it does.
#[derive(Clone, Debug)]
pub(crate) struct Route {
    pub(crate) method: Method,
    pub(crate) path: &'static str,
    pub(crate) allowed: Allowed,
    pub(crate) kind: Kind,
    pub(crate) about: &'static str,
    pub(crate) takes: &'static [&'static [Parameter]],
    pub(crate) serves: Serves,
    pub(crate) most: usize,
    pub(crate) run: fn(Call) -> Running,
}

impl Route {
    /// The parameters that it takes.
    pub(crate) fn parameters(&self) -> impl Iterator<Item = &'static Parameter> + Clone {
        let own = self.takes.iter().flat_map(|some| some.iter());
        // A GET changes nothing, so a token in its query would only end up in logs and histories.
        let of_form = if self.method == Method::POST { OF_FORM } else { &[] };
        own.chain(of_form)
    }

    /// The length and the time limit of its body.
    fn limits(&self) -> (usize, Duration) {
        match self.allowed {
            Allowed::Everybody => OF_STRANGERS,
            Allowed::From(_) => (self.most, ARRIVAL),
        }
    }

    pub(crate) fn is_change(&self) -> bool {
        self.method == Method::POST
    }
}

/// Parameters that every form has.
const OF_FORM: &[Parameter] = &[
    Parameter::one(
        "csrf",
        "the token of the session's forms, where a cookie logs in; or the header `X-CSRF-Token`",
    ),
    Parameter::one("idempotency-key", "see the header `Idempotency-Key`"),
];
const PAGE: &[Parameter] = &[
    Parameter::one("limit", "how many letters at most, up to 500; 50 unless said"),
    Parameter::one("cursor", "where the former page ended: its `next`"),
    Parameter::one("oldest-first", "true for the oldest first"),
];
const STATE: &[Parameter] = &[Parameter::many(
    "state",
    "new, regressed, acknowledged, snoozed or resolved; the first three unless said",
)];
const BEGAN: &[Parameter] = &[Parameter::one(
    "began",
    "only groups whose first letter was stored at or after this: a time or an age",
)];
const GONE: &[Parameter] =
    &[Parameter::one("gone", "true for those of whom nothing was heard for a minute")];
const GROUP: &[Parameter] = &[
    Parameter::required("fingerprint", "the group"),
    Parameter::required("consumer", "its consumer"),
];
const TRIAGE: &[Parameter] = &[
    Parameter::one(
        "decision",
        "new, acknowledged, snoozed or resolved; the present one unless said",
    ),
    Parameter::one("for", "with snoozed: how long, e.g. 2h or 7d"),
    Parameter::one("owner", "who cares for it; an empty text for nobody"),
    Parameter::one("text", "a note for those who look at it next; an empty text for none"),
];
const LIMIT: &[Parameter] = &[Parameter::one("limit", "how many at most, up to 500")];
const ITEMS: &[Parameter] = &[
    Parameter::one("limit", "how many letters at most, up to 500; 50 unless said"),
    Parameter::one("after", "where the former page ended: its `next`"),
];
pub(crate) const AUDIT: &[Parameter] = &[
    Parameter::one(
        "letter",
        "only what names this letter, and what was done with its present operation",
    ),
    Parameter::one("op", "only what started or steered this operation"),
    Parameter::one("by", "only what this person or program did: ana, or ana@ops-host"),
    Parameter::one("action", "only this, e.g. replay, edit or delete"),
    Parameter::one("since", "at or after: a time or an age"),
    Parameter::one("until", "before: a time or an age"),
    Parameter::one("before", "the number of the last entry of the former page"),
    Parameter::one("limit", "how many at most, up to 500; 50 unless said"),
];
const NOTE: &[Parameter] = &[Parameter::required("note", "the reason, which is kept in the audit")];
/// Reason that somebody has typed before they are asked for it.
const NOTE_SO_FAR: &[Parameter] = &[Parameter::one("note", "the reason, as far as there is one")];
const CHANGE: &[Parameter] = &[
    Parameter::one("all", "true for every letter, when no filter is given"),
    Parameter::one(
        "expect",
        "the number of letters that is agreed to; another one refuses the request",
    ),
];
const DRY_RUN: &[Parameter] =
    &[Parameter::one("dry-run", "true to say what would be done, and do nothing")];
const MARK: &[Parameter] = &[Parameter::required("mark", "quarantined, pending or resolved")];
const DELETE: &[Parameter] = &[
    Parameter::one(
        "max",
        "the number of letters beyond which nothing is deleted; 10000 unless said, 0 for no such number",
    ),
    Parameter::one("for-good", "true to keep no copy, so that nobody can restore them"),
];
const ARCHIVE: &[Parameter] = &[
    Parameter::many("id", "only the letter of this id"),
    Parameter::many("consumer", "only letters of this consumer"),
    Parameter::one("by", "only what this person or program deleted: ana, or ana@ops-host"),
    Parameter::one("since", "deleted at or after: a time or an age"),
    Parameter::one("until", "deleted before: a time or an age"),
];
const ARCHIVE_PAGE: &[Parameter] = &[
    Parameter::one("limit", "how many letters at most, up to 500; 50 unless said"),
    Parameter::one("cursor", "where the former page ended: its `next`"),
];
const RESTORE: &[Parameter] =
    &[Parameter::one("all", "true for every deleted letter, when nothing else is said")];
const REPLAY: &[Parameter] = &[
    Parameter::one(
        "to",
        "handler (the consumer that failed), origin, or a subject; handler unless said",
    ),
    Parameter::one("limit", "how many letters at most, oldest first"),
    Parameter::one("rate", "how fast at most, e.g. 50/s"),
    Parameter::one("canary", "send this many first, and stop when one of them fails again"),
    Parameter::one(
        "canary-wait",
        "how long nothing may be heard of a canary sent to a broker; 30s unless said",
    ),
    Parameter::one(
        "max-replays",
        "quarantine letters that were replayed this often; 10 unless said, 0 for no cap",
    ),
];
const RATE: &[Parameter] =
    &[Parameter::required("rate", "how fast at most from now on, e.g. 50/s; none for no limit")];
const HOURS: &[Parameter] =
    &[Parameter::one("hours", "how many hours until now, up to 744; 168 unless said")];
const EDIT: &[Parameter] = &[
    Parameter::one("payload-text", "replace the payload by this text"),
    Parameter::one("payload-base64", "replace the payload by these bytes"),
    Parameter::one(
        "no-payload",
        "true to take the payload away, which makes the message a tombstone",
    ),
    Parameter::many("header", "replace every header of this name by one: NAME=VALUE"),
    Parameter::many("remove-header", "remove every header of this name"),
    Parameter::one(
        "allow-invalid",
        "true to take a payload that is not JSON where the one before was",
    ),
    Parameter::one("binding", "refuse unless payload and key are those of this binding"),
];
const UNDO: &[Parameter] =
    &[Parameter::one("binding", "refuse unless payload and key are those of this binding")];
const VIEW: &[Parameter] = &[Parameter::one("view", "json, text or hex")];
const THEN: &[Parameter] = &[Parameter::one("then", "edit to go on to the edit of the letter")];
const VERB: &[Parameter] =
    &[Parameter::required("verb", "quarantined, pending, resolved or delete")];
const LOGIN: &[Parameter] = &[Parameter::required("token", "the token")];

macro_rules! routes {
    ($($method:ident $path:literal $allowed:ident $kind:ident $(@$serves:ident)? $run:path, $about:literal, $takes:expr $(, most $most:expr)?;)+) => {
        /// Returns every route.
        pub(crate) fn all() -> Vec<Route> {
            // One table for all three means that a route without a right does not compile, and that the document cannot
            // lag behind.
            vec![$(Route {
                method: Method::$method,
                path: $path,
                allowed: routes!(@allowed $allowed),
                kind: Kind::$kind,
                about: $about,
                takes: $takes,
                serves: routes!(@serves $($serves)?),
                most: routes!(@most $($most)?),
                run: |call| Box::pin($run(call)),
            }),+]
        }
    };
    (@allowed Everybody) => { Allowed::Everybody };
    (@allowed $role:ident) => { Allowed::From(Role::$role) };
    (@serves) => { Serves::Stores };
    (@serves both) => { Serves::Both };
    (@serves logs) => { Serves::Logs };
    (@most) => { BODY };
    (@most $most:expr) => { $most };
}

// `@both` is of stores and of logs of brokers, `@logs` of these alone, and what has neither of stores alone.
routes! {
    GET "/api/v1/openapi.json" Read Api api::openapi, "Returns the description of this interface", &[];
    GET "/api/v1/stores" Read Api api::stores, "Lists the stores, and what the visitor may do", &[];
    GET "/api/v1/{store}/letters" Read Api @both api::list, "Lists letters, newest first", &[FILTER, PAGE];
    GET "/api/v1/{store}/letters/{id}" Read Api @both api::letter, "Returns one letter with everything that was tried", &[];
    // A download is not revealed with a reason, so the role `read` gets payloads by `reveal` alone.
    GET "/api/v1/{store}/letters/{id}/payload" Operate Api @both api::payload, "Returns the payload of a letter, byte for byte", &[];
    // It is a POST since it writes to the audit: no link or image can make a browser do it.
    POST "/api/v1/{store}/letters/{id}/reveal" Read Api api::reveal, "Returns one letter with what is hidden from the role `read`; kept in the audit", &[NOTE];
    POST "/api/v1/{store}/letters/{id}/edit" Admin Api api::edit, "Changes the payload or the headers of one letter", &[EDIT, DRY_RUN, NOTE], most EDIT_BODY;
    POST "/api/v1/{store}/letters/{id}/undo" Admin Api api::undo, "Gives a letter back what it was before its latest edit", &[UNDO, DRY_RUN, NOTE];
    GET "/api/v1/{store}/count" Read Api @both api::count, "Counts letters", &[FILTER];
    GET "/api/v1/{store}/groups" Read Api @both api::groups, "Groups letters by error, those that nobody has decided about first", &[FILTER, LIMIT, STATE, BEGAN];
    GET "/api/v1/{store}/group" Read Api api::group, "Returns what is known of a group of errors", &[GROUP];
    POST "/api/v1/{store}/group" Operate Api api::triage, "Decides about a group of errors, and gives it an owner or a note", &[GROUP, TRIAGE, NOTE];
    GET "/api/v1/{store}/consumers" Read Api api::consumers, "Lists the consumers that were heard of", &[GONE];
    GET "/api/v1/{store}/hours" Read Api @both api::hours, "Counts letters by the hour in which they were stored, and in which they were resolved", &[FILTER, HOURS];
    GET "/api/v1/{store}/stats" Read Api @both api::stats, "Counts letters by status, reason, cause, class, subject and consumer", &[FILTER];
    // It changes nothing, and takes its parameters as the replay does, whose filter may be longer than a URL.
    POST "/api/v1/{store}/plan" Operate Api @both api::plan, "Says what a replay would do, and does nothing", &[FILTER, REPLAY, CHANGE];
    POST "/api/v1/{store}/replay" Operate Api @both api::replay, "Sends letters back", &[FILTER, REPLAY, CHANGE, NOTE];
    GET "/api/v1/{store}/latest-replay" Read Api @logs api::latest_replay, "Returns the replay of a log that runs, or that ran last since the process was started", &[];
    GET "/api/v1/{store}/latest-replay/events" Read Api @logs api::latest_replay_events, "Streams the progress of the latest replay of a log until it has ended", &[];
    POST "/api/v1/{store}/latest-replay/stop" Operate Api @logs api::stop_replay, "Stops the replay of a log after the letters that are on their way", &[NOTE];
    POST "/api/v1/{store}/mark" Operate Api api::mark, "Marks letters as quarantined, pending or resolved", &[MARK, FILTER, CHANGE, DRY_RUN, NOTE];
    POST "/api/v1/{store}/delete" Admin Api api::delete, "Deletes letters, which can be restored until a cleanup empties the archive", &[FILTER, DELETE, CHANGE, DRY_RUN, NOTE];
    GET "/api/v1/{store}/archive" Read Api api::archive, "Lists letters that were deleted and can be restored, the one deleted last first", &[ARCHIVE, ARCHIVE_PAGE];
    POST "/api/v1/{store}/restore" Admin Api api::restore, "Restores letters that were deleted", &[ARCHIVE, RESTORE, NOTE];
    GET "/api/v1/{store}/operations" Read Api api::operations, "Lists operations, newest first", &[LIMIT];
    GET "/api/v1/{store}/operations/{id}" Read Api api::operation, "Returns an operation and the outcome of its letters", &[ITEMS];
    GET "/api/v1/{store}/operations/{id}/items" Read Api api::items, "Returns the outcome of each letter of an operation", &[ITEMS];
    GET "/api/v1/{store}/operations/{id}/events" Read Api api::operation_events, "Streams the progress of an operation until it has ended", &[];
    POST "/api/v1/{store}/operations/{id}/pause" Operate Api api::pause, "Sends no more letters for now", &[NOTE];
    POST "/api/v1/{store}/operations/{id}/resume" Operate Api api::resume, "Goes on", &[NOTE];
    POST "/api/v1/{store}/operations/{id}/cancel" Operate Api api::cancel, "Sends no more letters, for good", &[NOTE];
    POST "/api/v1/{store}/operations/{id}/rate" Operate Api api::rate, "Sets how fast an operation sends from now on", &[RATE, NOTE];
    GET "/api/v1/{store}/audit" Read Api api::audit, "Lists what was done to letters, by whom and why, newest first", &[AUDIT];
    GET "/api/v1/{store}/events" Read Api api::events, "Streams the counts of the overview", &[];

    GET "/" Read Page pages::root, "Leads to the overview", &[];
    // The login page has to be reached without a login, and its style sheet and script with it.
    GET "/login" Everybody Page pages::login::form, "Login", &[];
    POST "/login" Everybody Page pages::login::login, "Logs in", &[LOGIN];
    POST "/logout" Read Page pages::login::logout, "Logs out", &[];
    GET "/assets/style.css" Everybody Page pages::style, "Style sheet", &[];
    GET "/assets/console.js" Everybody Page pages::script, "Script", &[];
    GET "/s/{store}" Read Page @both pages::overview::page, "Overview", &[];
    GET "/s/{store}/groups" Read Page @both pages::groups::all, "Groups", &[FILTER, STATE, BEGAN];
    POST "/s/{store}/group" Operate Page pages::groups::triage, "Decides about a group", &[GROUP, TRIAGE, NOTE];
    GET "/s/{store}/schedule" Read Page pages::schedule::page, "Schedule", &[];
    GET "/s/{store}/consumers" Read Page pages::consumers::page, "Consumers", &[GONE];
    GET "/s/{store}/group" Read Page @both pages::groups::one, "Group", &[FILTER];
    GET "/s/{store}/letters" Read Page @both pages::letters::page, "Letters", &[FILTER, PAGE];
    GET "/s/{store}/letters/{id}" Read Page @both pages::letter::page, "Letter", &[VIEW];
    GET "/s/{store}/letters/{id}/attempts/{n}" Read Page @both pages::letter::attempt, "Attempt", &[];
    GET "/s/{store}/letters/{id}/payload" Operate Page @both api::payload, "Payload", &[];
    POST "/s/{store}/letters/{id}/reveal" Read Page pages::letter::reveal, "Reveals a letter", &[NOTE, VIEW, THEN];
    GET "/s/{store}/letters/{id}/edit" Admin Page pages::edit::form, "Edit", &[];
    // The preview takes the payload as the save does, so its body may be as long.
    POST "/s/{store}/letters/{id}/edit" Admin Page pages::edit::preview, "Shows what an edit would change", &[EDIT, pages::edit::FORM], most EDIT_BODY;
    POST "/s/{store}/letters/{id}/save" Admin Page pages::edit::save, "Edits a letter", &[EDIT, NOTE], most EDIT_BODY;
    POST "/s/{store}/letters/{id}/undo" Admin Page pages::edit::undo, "Undoes the latest edit", &[UNDO, NOTE];
    GET "/s/{store}/change" Operate Page pages::change::page, "Mark or delete", &[VERB, FILTER, CHANGE];
    POST "/s/{store}/mark" Operate Page pages::change::mark, "Marks letters", &[MARK, FILTER, CHANGE, NOTE];
    POST "/s/{store}/delete" Admin Page pages::change::delete, "Deletes letters", &[FILTER, DELETE, CHANGE, NOTE];
    GET "/s/{store}/archive" Read Page pages::archive::page, "Deleted letters", &[ARCHIVE, ARCHIVE_PAGE];
    POST "/s/{store}/restore" Admin Page pages::archive::restore, "Restores letters", &[ARCHIVE, NOTE];
    GET "/s/{store}/replay" Operate Page @both pages::replay::page, "Replay", &[FILTER, REPLAY, CHANGE];
    POST "/s/{store}/replay" Operate Page @both pages::replay::start, "Starts a replay", &[FILTER, REPLAY, CHANGE, NOTE];
    POST "/s/{store}/plan" Operate Page @both pages::replay::page, "Says what a replay would do", &[FILTER, REPLAY, CHANGE, NOTE_SO_FAR];
    GET "/s/{store}/latest-replay" Read Page @logs pages::log::latest, "The latest replay of a log", &[];
    POST "/s/{store}/latest-replay/stop" Operate Page @logs pages::log::stop, "Stops the replay of a log", &[NOTE];
    GET "/s/{store}/operations" Read Page pages::operations::all, "Operations", &[];
    GET "/s/{store}/operations/{id}" Read Page pages::operations::one, "Operation", &[ITEMS];
    POST "/s/{store}/operations/{id}/pause" Operate Page pages::operations::pause, "Pauses an operation", &[NOTE];
    POST "/s/{store}/operations/{id}/resume" Operate Page pages::operations::resume, "Resumes an operation", &[NOTE];
    POST "/s/{store}/operations/{id}/cancel" Operate Page pages::operations::cancel, "Cancels an operation", &[NOTE];
    POST "/s/{store}/operations/{id}/rate" Operate Page pages::operations::rate, "Sets the rate of an operation", &[RATE, NOTE];
    GET "/s/{store}/audit" Read Page pages::audit::page, "Audit", &[AUDIT];
}

/// Returns the router of all routes.
pub(crate) fn router(console: Arc<Console>) -> Router {
    let mut router = Router::new();
    for route in all() {
        let filter = if route.is_change() { MethodFilter::POST } else { MethodFilter::GET };
        let (console, route) = (Arc::clone(&console), Arc::new(route));
        let path = route.path;
        let handler = move |params: RawPathParams, request: Request| {
            let (console, route) = (Arc::clone(&console), Arc::clone(&route));
            let path = params.iter().map(|(name, value)| (name.to_owned(), value.to_owned()));
            let path: Vec<_> = path.collect();
            async move { answer(console, &route, path, request).await }
        };
        router = router.route(path, on(filter, handler));
    }
    let nothing = move |request: Request| {
        let console = Arc::clone(&console);
        async move { nothing(console, request) }
    };
    // The layer is outside of everything, so that refusals and unknown paths have the headers too.
    router.fallback(nothing).layer(map_response(guarded))
}

/// Adds to every answer what keeps a browser from doing anything with it but showing it.
async fn guarded(mut response: Response) -> Response {
    let headers = [
        (
            header::CONTENT_SECURITY_POLICY,
            // Nothing inline is allowed: if text of a letter ever came into a page as HTML, its scripts would not run.
            "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; \
             frame-ancestors 'none'; base-uri 'none'",
        ),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        // Browsers that do not know `frame-ancestors` know this one.
        (header::X_FRAME_OPTIONS, "DENY"),
        // A search stands in the URL with the key or value that was looked for.
        (header::REFERRER_POLICY, "no-referrer"),
        // Pages hold payloads, which must not stay on the disk of a browser or proxy after the logout.
        (header::CACHE_CONTROL, "no-store"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ];
    for (name, value) in headers {
        // Insert, not append: two policies would both hold, and a handler must not be able to loosen ours.
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

/// Answers a path that is none of ours.
fn nothing(console: Arc<Console>, request: Request) -> Response {
    let (parts, _) = request.into_parts();
    let is_api = parts.uri.path().starts_with("/api/");
    let refusal = Refusal::not_found("there is nothing at this path");
    if is_api {
        return api::refused(&refusal);
    }
    // Nobody is sent to the login for an unknown path; a known visitor keeps their navigation.
    let visitor = door::admit(&console, &parts).ok();
    pages::refused(&console, visitor.as_ref(), &root_of(&parts), refusal)
}

/// Returns the relative reference from a path to the place where the router is mounted.
fn root_of(parts: &Parts) -> String {
    let path = parts.uri.path();
    let depth = path.matches('/').count().saturating_sub(1);
    // A router that is nested at `/dlq` sees `/` also where the browser sees `/dlq`, whose neighbours are not ours.
    let original = parts.extensions.get::<OriginalUri>().map(|original| original.0.path());
    match original {
        Some(original) if path == "/" && !original.ends_with('/') => {
            let last = original.rsplit('/').next().unwrap_or_default();
            format!("./{last}/")
        }
        // Links are relative, because a proxy may cut off a prefix that the router never sees.
        _ if depth == 0 => "./".to_owned(),
        _ => "../".repeat(depth),
    }
}

/// Answers a request. Everything that has to be checked before a route runs is checked here, for all of them.
async fn answer(
    console: Arc<Console>,
    route: &Route,
    path: Vec<(String, String)>,
    request: Request,
) -> Response {
    let (parts, body) = request.into_parts();
    let root = root_of(&parts);
    // The visitor is known before anything is read of the body: who is not let in costs no memory.
    let admitted = match route.allowed {
        Allowed::Everybody => anybody(&console, &parts),
        Allowed::From(_) => door::admit(&console, &parts),
    };
    let refused = |refusal: Refusal, visitor: Option<&Visitor>| match route.kind {
        Kind::Api => api::refused(&refusal),
        Kind::Page => pages::refused(&console, visitor, &root, refusal),
    };
    let visitor = match admitted {
        Ok(visitor) => visitor,
        Err(refusal) => return refused(refusal, None),
    };
    match carry_out(&console, route, path, &parts, body, &visitor, root.clone()).await {
        Ok(response) => response,
        Err(refusal) => {
            tracing::debug!(
                path = parts.uri.path(),
                who = visitor.name,
                status = refusal.status.as_u16(),
                "request refused"
            );
            refused(refusal, Some(&visitor))
        }
    }
}

/// Returns the visitor of a page that nobody has to log in for; a page of another site reaches it no more than the others.
fn anybody(console: &Console, parts: &Parts) -> Result<Visitor, Refusal> {
    match door::admit(console, parts) {
        // Forbidden means another host or no role, which a login does not mend; all else is what the login page is for.
        Err(refusal) if refusal.status == StatusCode::FORBIDDEN => Err(refusal),
        Ok(visitor) => Ok(visitor),
        Err(_) => Ok(Visitor::unknown(console)),
    }
}

async fn carry_out(
    console: &Arc<Console>,
    route: &Route,
    path: Vec<(String, String)>,
    parts: &Parts,
    body: Body,
    visitor: &Visitor,
    root: String,
) -> Result<Response, Refusal> {
    let served = served(console, &path);
    // The role is asked for before the body is read, which may be 256 MiB.
    if let Allowed::From(role) = route.allowed
        && visitor.role < role
    {
        tracing::warn!(who = visitor.name, role = %visitor.role, path = parts.uri.path(), "request denied");
        return Err(Refusal::forbidden(format!(
            "{} has the role `{}`, and this asks for `{role}`",
            visitor.name, visitor.role
        )));
    }
    match &served {
        Ok(Some((name, Served::Log(_)))) if !route.serves.logs() => {
            return Err(of_stores_alone(name));
        }
        Ok(Some((name, Served::Store(_)))) if !route.serves.stores() => {
            return Err(of_logs_alone(name));
        }
        _ => {}
    }
    let mut params = Params::of_form(parts.uri.query().unwrap_or_default().as_bytes());
    if route.is_change() {
        // The token may be in the body, so the sender can only be checked once that has arrived.
        params = params.join(body_params(parts, body, route.limits()).await?);
        door::check_sender(visitor, parts, &params)?;
    } else if route.kind == Kind::Page {
        // The form of a filter sends each of its fields, and an empty one is not meant as a condition. The HTTP
        // interface takes an empty value as one.
        params = params.without_empty();
    }
    params.check(route.parameters())?;
    // Only visitors who are let in get here, so naming the stores in a refusal tells no stranger.
    let (store, log, taken) = match served? {
        None => (None, None, None),
        Some((name, Served::Store(letters))) => (Some((name, Some(letters))), None, None),
        Some((name, Served::Log(log))) if route.serves == Serves::Logs => {
            (Some((name, None)), Some(log), None)
        }
        Some((name, Served::Log(log))) => {
            let taken = log.taken().await?;
            (Some((name, Some(taken.letters().clone()))), Some(log), Some(taken))
        }
    };
    let once = key(route, parts, visitor, &params)?;
    let asks = params.hash();
    if route.is_change() {
        // The path alone is logged: the query and the body may hold tokens, keys and values of payloads.
        tracing::info!(who = visitor.name, role = %visitor.role, path = parts.uri.path(), "request");
    }
    let call = Call {
        console: Arc::clone(console),
        visitor: visitor.clone(),
        store,
        log,
        taken,
        path,
        params,
        headers: parts.headers.clone(),
        source: door::source(parts),
        root,
    };
    // Counts are forgotten at the end also of a change that fails or whose request is dropped: a part may have been done.
    let of_store = call.store.as_ref().filter(|_| route.is_change());
    let _forget =
        of_store.map(|(name, _)| Forget { console: Arc::clone(console), store: name.clone() });
    // The future does nothing until it is polled, so a request whose answer is known already never begins.
    let running = (route.run)(call);
    match once {
        Some(key) => console.answers.once(key, asks, running).await,
        None => running.await,
    }
}

/// Makes the counts of a store forgotten when it is dropped.
struct Forget {
    console: Arc<Console>,
    store: String,
}

impl Drop for Forget {
    fn drop(&mut self) {
        self.console.counts.forget(&self.store);
    }
}

async fn body_params(
    parts: &Parts,
    body: Body,
    (most, arrival): (usize, Duration),
) -> Result<Params, Refusal> {
    let body = timeout(arrival, to_bytes(body, most)).await.map_err(|_| {
        let text = format!("the body did not arrive within {} s", arrival.as_secs());
        Refusal::new(StatusCode::REQUEST_TIMEOUT, text)
    })?;
    let body = body.map_err(|_| {
        Refusal::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            format!("the body of the request is longer than {most} bytes, or did not arrive whole"),
        )
    })?;
    if body.is_empty() {
        return Ok(Params::default());
    }
    let kind = parts.headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    match kind.and_then(|kind| kind.split(';').next()).map(str::trim) {
        // A form of another site can send neither JSON nor a custom type without asking first, and the sender of a form
        // is checked after this.
        Some("application/json") => Params::of_json(&body),
        Some("application/x-www-form-urlencoded") => Ok(Params::of_form(&body)),
        _ => Err(Refusal::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "the body is neither application/json nor application/x-www-form-urlencoded",
        )),
    }
}

/// Refuses a route of stores at a log.
fn of_stores_alone(name: &str) -> Refusal {
    let message = format!(
        "`{name}` is a log of a broker, which only grows: letters in it can be read and sent back, and neither marked, edited nor \
         deleted, and it has no operations, consumers or audit; ingest it into a store, which has all of that"
    );
    Refusal { title: Some("Only of stores"), ..Refusal::conflict(message) }
}

/// Refuses a route of logs at a store.
fn of_logs_alone(name: &str) -> Refusal {
    let message = format!(
        "`{name}` is a store: its replays are operations, which stay after they have ended"
    );
    Refusal { title: Some("Only of logs"), ..Refusal::conflict(message) }
}

/// Returns the store or log that the path names.
fn served(
    console: &Console,
    path: &[(String, String)],
) -> Result<Option<(String, Served)>, Refusal> {
    let Some((_, name)) = path.iter().find(|(param, _)| param == "store") else { return Ok(None) };
    let found = console.stores.iter().find(|(store, _)| store == name);
    let known = || {
        let known: Vec<_> = console.stores.iter().map(|(name, _)| name.as_str()).collect();
        Refusal::not_found(format!(
            "there is no store of this name; there are: {}",
            known.join(", ")
        ))
    };
    found.cloned().map(Some).ok_or_else(known)
}

/// Returns the key under which the answer is kept, where the request has one.
fn key(
    route: &Route,
    parts: &Parts,
    visitor: &Visitor,
    params: &Params,
) -> Result<Option<Key>, Refusal> {
    // The answer to a login sets the cookie of a session, and strangers all have one name: it must not be given to the
    // next one.
    if !route.is_change() || route.allowed == Allowed::Everybody {
        return Ok(None);
    }
    // The form of a replay has one key for both of its buttons, and this one is pressed again with other options.
    if route.path == "/s/{store}/plan" {
        return Ok(None);
    }
    let header = parts.headers.get("idempotency-key");
    let key = match header.map(HeaderValue::to_str) {
        Some(Ok(key)) => Some(key),
        Some(Err(_)) => return Err(Refusal::invalid("the idempotency key is not text")),
        None => params.text("idempotency-key"),
    };
    let Some(key) = key.filter(|key| !key.is_empty()) else { return Ok(None) };
    if key.len() > LONGEST {
        return Err(Refusal::invalid(format!(
            "the idempotency key is longer than {LONGEST} bytes"
        )));
    }
    let path = parts.uri.path().to_owned();
    // The name is part of the identity, so that nobody gets the answer to somebody else by guessing a key.
    Ok(Some(Key { who: visitor.name.clone(), path, key: key.to_owned() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_routes_are_the_same_and_changes_have_a_reason() {
        let all = all();
        for (index, route) in all.iter().enumerate() {
            let is_same = |other: &&Route| other.method == route.method && other.path == route.path;
            assert!(!all[..index].iter().any(|other| is_same(&other)), "{}", route.path);
            let names: Vec<_> = route.parameters().map(|one| one.name).collect();
            for (index, name) in names.iter().enumerate() {
                assert!(!names[..index].contains(name), "{name} of {}", route.path);
            }
            let has_note = names.contains(&"note");
            let is_look = ["/login", "/logout"].contains(&route.path)
                || route.path.ends_with("/plan")
                || route.path == "/s/{store}/letters/{id}/edit";
            if route.is_change() && !is_look {
                assert!(has_note, "{} asks for no reason", route.path);
            }
        }
    }

    #[test]
    fn the_place_of_the_router_is_found_from_every_depth() {
        let root = |path: &str, original: Option<&str>| {
            let mut parts = Request::builder().uri(path).body(()).unwrap().into_parts().0;
            if let Some(original) = original {
                parts.extensions.insert(OriginalUri(original.parse().unwrap()));
            }
            root_of(&parts)
        };
        assert_eq!(root("/", None), "./");
        assert_eq!(root("/login", Some("/dlq/login")), "./");
        assert_eq!(root("/s/a", None), "../");
        assert_eq!(root("/s/a/letters/x", Some("/dlq/s/a/letters/x")), "../../../");
        assert_eq!(root("/", Some("/tools/dlq")), "./dlq/");
        assert_eq!(root("/", Some("/tools/dlq/")), "./");
    }
}
