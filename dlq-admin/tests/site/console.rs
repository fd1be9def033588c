//! The pages, as somebody goes through them.

use axum::Router;
use dlq_admin::{Admin, Role};
use dlq_core::store::{Actor, Edit, OperationState, Target};
use dlq_core::{DeadLetters, Filter, Message, Status};
use dlq_letters::memory::MemoryStore;
use dlq_testkit::fixtures::{letter, letter_of};

use crate::common::{Site, form, tokens};

/// The fields of the form that changes something.
fn fields(page: &crate::common::Reply, names: &[&str], others: &[(&str, &str)]) -> String {
    let hidden: Vec<_> = names.iter().map(|name| (*name, page.field(name))).collect();
    let hidden = hidden.iter().map(|(name, value)| (*name, value.as_str()));
    form(&hidden.chain(others.iter().copied()).collect::<Vec<_>>())
}

#[tokio::test]
async fn a_group_is_replayed_after_a_plan_and_its_number() {
    let site = Site::of((0..12).map(letter).collect()).await;
    let fingerprint = letter(0).fingerprint.to_string();
    let group = form(&[("fingerprint", &fingerprint), ("consumer", "orders.handle")]);
    let page = site.get(&format!("/s/default/group?{group}")).await.ok();
    assert!(page.body.contains("Replay this group") && page.body.contains("orders.created"));
    let plan = site.get(&format!("/s/default/replay?{group}&canary=2&rate=10%2Fs")).await.ok();
    assert!(plan.body.contains("Replay 12 letters"), "{}", plan.body);
    // What dies while the operator looks is not what they agree to.
    site.letters.put((20..25).map(letter).collect()).await.unwrap();
    let names = ["csrf", "idempotency-key", "fingerprint", "consumer", "until", "canary", "rate"];
    let wrong = fields(&plan, &names, &[("note", "fixed"), ("expect", "11")]);
    site.post("/s/default/replay", &wrong).await.is(409);
    let unsaid = fields(&plan, &names, &[("note", "fixed")]);
    site.post("/s/default/replay", &unsaid).await.is(422);
    assert!(site.letters.operations(9).await.unwrap().is_empty());
    let right = fields(&plan, &names, &[("note", "fixed"), ("expect", "12")]);
    let sent = site.post("/s/default/replay", &right).await.is(303);
    // Sent twice, as by an impatient click, it is one operation.
    let again = site.post("/s/default/replay", &right).await.is(303);
    assert_eq!(sent.location(), again.location());
    let operations = site.letters.operations(9).await.unwrap();
    let [operation] = &operations[..] else { panic!("{operations:?}") };
    assert_eq!((operation.progress.total, operation.spec.canary), (12, Some(2)));
    assert_eq!(operation.spec.target, Target::Handler);
    assert_eq!(sent.location(), format!("../../s/default/operations/{}", operation.id));

    let at = format!("/s/default/operations/{}", operation.id);
    let page = site.get(&at).await.ok();
    assert!(
        page.body.contains("data-events=\"../../../api/v1/default/operations/"),
        "{}",
        page.body
    );
    let page = site.get(&at).await.ok();
    let faster =
        fields(&page, &["csrf", "idempotency-key"], &[("note", "it holds"), ("rate", "90/s")]);
    site.post(&format!("{at}/rate"), &faster).await.is(303);
    let page = site.get(&at).await.ok();
    assert!(page.body.contains("name=\"rate\" value=\"90/s\""), "{}", page.body);
    for (verb, state) in [
        ("pause", OperationState::Paused),
        ("resume", OperationState::Canary),
        ("cancel", OperationState::Cancelled),
    ] {
        let page = site.get(&at).await.ok();
        assert!(page.body.contains(&format!("{}/{verb}\"", operation.id)), "{verb}: {}", page.body);
        let steer = fields(&page, &["csrf", "idempotency-key"], &[("note", verb)]);
        site.post(&format!("{at}/{verb}"), &steer).await.is(303);
        assert_eq!(site.letters.operation(operation.id).await.unwrap().state, state);
    }
    let page = site.get(&at).await.ok();
    assert!(
        !page.body.contains("data-events") && !page.body.contains("formaction"),
        "{}",
        page.body
    );
}

#[tokio::test]
async fn a_plan_is_made_as_often_as_it_is_asked_for() {
    let site = Site::of((0..12).map(letter).collect()).await;
    let page = site.get("/s/default/replay?status=pending").await.ok();
    let names = ["csrf", "idempotency-key", "status", "until"];
    for (limit, is_planned) in [("5", "Replay 5 letters"), ("", "Replay 12 letters")] {
        let options = [("limit", limit), ("rate", ""), ("canary", ""), ("note", "<fixed>")];
        let asked = fields(&page, &names, &options);
        let plan = site.post("/s/default/plan", &asked).await.ok();
        assert!(plan.body.contains(is_planned), "{}", plan.body);
        assert!(plan.body.contains("value=\"&lt;fixed&gt;\""), "what was typed is kept");
    }
    assert!(site.letters.operations(9).await.unwrap().is_empty());
    let elsewhere = site.header("sec-fetch-site", "cross-site");
    elsewhere.post("/s/default/plan", "status=pending").await.is(403);
}

#[tokio::test]
async fn a_change_of_many_letters_asks_for_their_number() {
    let site = Site::of((0..7).map(letter).collect()).await;
    let page = site.get("/s/default/change?verb=resolved&status=pending").await.ok();
    let names = ["csrf", "idempotency-key", "status", "until", "mark"];
    let wrong = fields(&page, &names, &[("note", "noise"), ("expect", "70")]);
    let refused = site.post("/s/default/mark", &wrong).await.is(409);
    assert!(
        refused.body.contains("7 letters match now, and 70 were agreed to"),
        "{}",
        refused.body
    );
    let right = fields(&page, &names, &[("note", "noise"), ("expect", "7")]);
    let done = site.post("/s/default/mark", &right).await.ok();
    assert!(done.body.contains("<strong>7</strong> letters were changed"), "{}", done.body);
    let resolved = Filter::new().with_status(Status::Resolved);
    assert_eq!(site.letters.count(resolved).await.unwrap(), 7);
    // Every letter is meant only where that is said.
    site.get("/s/default/change?verb=delete").await.is(422);
    let page = site.get("/s/default/change?verb=delete&all=true").await.ok();
    let all = fields(
        &page,
        &["csrf", "idempotency-key", "until", "all"],
        &[("note", "old"), ("expect", "7")],
    );
    site.post("/s/default/delete", &all).await.ok();
    assert_eq!(site.letters.count(Filter::new()).await.unwrap(), 0);
    site.get("/s/default/change?verb=destroy&all=true").await.is(400);
}

#[tokio::test]
async fn an_edit_is_shown_before_it_is_saved() {
    let payload = "{\r\n  \"total\": \"12\",\r\n  \"name\": \"<b>\u{202e}\"\r\n}";
    let one = letter_of(Message::new("orders", payload).with_header("h", "1"), 1);
    let site = Site::of(vec![one.clone()]).await;
    let at = format!("/s/default/letters/{}", one.id);
    let page = site.get(&format!("{at}/edit")).await.ok();
    assert!(page.body.contains("&lt;b&gt;\u{202e}"), "the field has the bytes");
    let typed = payload.replace("\"12\"", "12");
    let asked = fields(
        &page,
        &["csrf", "binding", "line-ends"],
        &[("mode", "text"), ("text", &typed), ("set", "h=2\r\nnew=a=b"), ("remove", "old")],
    );
    let shown = site.post(&format!("{at}/edit"), &asked).await.ok();
    assert!(
        shown.body.contains("<del>-   &quot;total&quot;: &quot;12&quot;,</del>"),
        "{}",
        shown.body
    );
    assert!(shown.body.contains("<ins>+   &quot;total&quot;: 12,</ins>"), "{}", shown.body);
    assert_eq!(site.letters.get(one.id).await.unwrap(), {
        let mut one = one.clone();
        one.state = site.letters.get(one.id).await.unwrap().state;
        one
    });
    let headers =
        [("header", "h=2"), ("header", "new=a=b"), ("remove-header", "old"), ("note", "a number")];
    let save = fields(&shown, &["csrf", "idempotency-key", "payload-base64", "binding"], &headers);
    site.post(&format!("{at}/save"), &save).await.is(303);
    let edited = site.letters.get(one.id).await.unwrap();
    assert_eq!(edited.message.payload().unwrap(), typed.as_bytes());
    assert_eq!(edited.message.headers().get_str("new"), Some("a=b"));
    // Who looked at it before may not save over that.
    let late = fields(&shown, &["csrf", "payload-base64", "binding"], &[("note", "late")]);
    site.post(&format!("{at}/save"), &late).await.is(409);

    let page = site.get(&format!("{at}/edit")).await.ok();
    assert!(page.body.contains("Undo the latest edit"), "{}", page.body);
    let undo = fields(&page, &["csrf", "binding"], &[("note", "no")]);
    site.post(&format!("{at}/undo"), &undo).await.is(303);
    assert_eq!(
        site.letters.get(one.id).await.unwrap().message.payload().unwrap(),
        payload.as_bytes()
    );
}

#[tokio::test]
async fn lists_are_walked_by_links() {
    let site = Site::of((0..130).map(letter).collect()).await;
    let (mut path, mut rows, mut pages) = ("/s/default/letters?status=pending".to_owned(), 0, 0);
    loop {
        let page = site.get(&path).await.ok();
        rows += page.body.matches("scope=\"row\"").count();
        pages += 1;
        let Some(next) = page.body.split("rel=\"next\" href=\"").nth(1) else { break };
        path = next
            .split('"')
            .next()
            .unwrap()
            .replace("&amp;", "&")
            .trim_start_matches("../..")
            .to_owned();
    }
    assert_eq!((rows, pages), (130, 3));
}

#[tokio::test]
async fn pages_have_no_buttons_that_the_role_may_not_press() {
    let site = Site::of(vec![letter(0)]).await.access(tokens());
    let at = format!("/s/default/letters/{}", letter(0).id);
    let mut site = site.bearer(Role::Read);
    for (role, has, has_not) in [
        (Role::Read, &["Reveal"][..], &["Replay", "Resolve", ">Edit<", ">Delete<", "customer"][..]),
        (Role::Operate, &["Replay", "Resolve", "order"], &[">Edit<", ">Delete<"]),
        (Role::Admin, &["Replay", "Resolve", ">Edit<", ">Delete<"], &[]),
    ] {
        site = site.bearer(role);
        let page = site.get(&at).await.ok().body;
        for text in has {
            assert!(page.contains(text), "{role}: {text}");
        }
        for text in has_not {
            assert!(!page.contains(text), "{role}: {text}");
        }
    }
}

#[tokio::test]
async fn it_works_below_any_path() {
    let store = || DeadLetters::new(MemoryStore::new());
    let letters = store();
    for prefix in ["/dlq", "/tools/dlq"] {
        let admin = Admin::named("eu", letters.clone()).store("us", store());
        let router = Router::new().nest(prefix, admin.router());
        let site = Site::with(letters.clone(), vec![letter(0)]).await.router(router);
        // As the browser resolves it: against the folder of the page.
        let resolve = |page: &str, link: &str| {
            let mut parts: Vec<_> = page.split('/').collect();
            parts.pop();
            for part in link.split('/') {
                match part {
                    "." => {}
                    ".." => drop(parts.pop()),
                    part => parts.push(part),
                }
            }
            parts.join("/")
        };
        let reply = site.get(prefix).await.is(303);
        assert_eq!(resolve(prefix, reply.location()), format!("{prefix}/s/eu"));
        let at = format!("{prefix}/s/eu/letters/{}", letter(0).id);
        let page = site.get(&at).await.ok();
        for link in page.body.split("href=\"").skip(1).filter_map(|rest| rest.split('"').next()) {
            let link = link.split(['?', '#']).next().unwrap();
            if link.is_empty() {
                continue;
            }
            let at = resolve(&at, link);
            let reply = site.get(&at).await;
            assert!(
                reply.status != 404 && at.starts_with(prefix),
                "{link} is {at}: {}",
                reply.status
            );
        }
        assert!(page.body.contains("us"), "the other store");
        let reply = site.get(&format!("{prefix}/nothing/at/all")).await.is(404);
        assert!(reply.body.contains("href=\"../../assets/style.css\""), "{}", reply.body);
    }
}

#[tokio::test]
async fn a_heavy_letter_makes_no_heavy_page() {
    let message = Message::new("s", "\u{202e}<&\"".repeat(100_000));
    let message = (0..200)
        .fold(message, |message, n| message.with_header(format!("h{n}"), "<".repeat(5_000)));
    let mut one = letter_of(message, 1);
    let mut history = dlq_core::History::new();
    for number in 1..=100 {
        let mut failure = dlq_testkit::fixtures::failure(number.into());
        failure.messages = vec!["\u{1b}<\"&".repeat(2_000); 16];
        failure.backtrace = Some("<\u{7}".repeat(4_000));
        history.push(dlq_core::Attempt { number, generation: 0, failure });
    }
    one = one.with_history(history);
    for n in 0..100 {
        one.attributes.insert(format!("{n}{}", "<".repeat(500)), "<".repeat(5_000));
    }
    let id = one.id;
    let site = Site::of(vec![one]).await;
    for path in [
        format!("/s/default/letters/{id}"),
        format!("/s/default/letters/{id}?view=hex"),
        format!("/s/default/letters/{id}/attempts/50"),
        format!("/s/default/letters/{id}/edit"),
        "/s/default/letters".to_owned(),
        "/s/default".to_owned(),
    ] {
        let page = site.get(&path).await.ok();
        assert!(page.body.len() < 150_000, "{path}: {} bytes", page.body.len());
    }
}

#[tokio::test]
async fn heavy_entries_make_no_heavy_audit() {
    let one = letter_of(Message::new("s", "{}"), 1);
    let site = Site::of(vec![one.clone()]).await;
    for n in 0..60 {
        let headers =
            (0..20).map(|header| (format!("h{header}"), format!("{n}{}", "<".repeat(5_000))));
        let edit = headers.fold(Edit::new(), |edit, (name, value)| edit.set_header(name, value));
        let by = Actor::new("<".repeat(200)).with_note("<".repeat(1_000));
        let _ = site.letters.edit(one.id, edit, by).await.unwrap();
    }
    let letter = format!("/s/default/letters/{}", one.id);
    for path in ["/s/default/audit", "/s/default/audit?limit=500", &letter] {
        let page = site.get(path).await.ok();
        assert!(page.body.len() < 150_000, "{path}: {} bytes", page.body.len());
    }
}

#[tokio::test]
async fn deleted_letters_are_ticked_and_restored() {
    let site = Site::of((0..3).map(letter).collect()).await;
    let id = letter(1).id.to_string();
    let page = site.get(&format!("/s/default/change?verb=delete&id={id}")).await.ok();
    let names = ["csrf", "idempotency-key", "id"];
    let asked = fields(&page, &names, &[("note", "a mistake"), ("expect", "1")]);
    site.post("/s/default/delete", &asked).await.ok();
    let page = site.get("/s/default/archive").await.ok();
    assert!(page.body.contains("a mistake") && page.body.contains(&id), "{}", page.body);
    let nothing = fields(&page, &names[..2], &[("note", "x")]);
    site.post("/s/default/restore", &nothing).await.is(422);
    let page = site.get("/s/default/archive").await.ok();
    let asked = fields(&page, &names[..2], &[("id", &id), ("note", "it was one")]);
    let done = site.post("/s/default/restore", &asked).await.ok();
    assert!(done.body.contains("<strong>1</strong> letters were restored"), "{}", done.body);
    assert_eq!(site.letters.count(Filter::new()).await.unwrap(), 3);
    let page = site.get("/s/default/archive").await.ok();
    assert!(page.body.contains("No deleted letters"), "{}", page.body);
    let page = site.get(&format!("/s/default/change?verb=delete&id={id}")).await.ok();
    let asked = fields(&page, &names, &[("note", "x"), ("expect", "1"), ("for-good", "true")]);
    let done = site.post("/s/default/delete", &asked).await.ok();
    assert!(done.body.contains("Deleted for good"), "{}", done.body);
    assert!(site.get("/s/default/archive").await.ok().body.contains("No deleted letters"));
}
