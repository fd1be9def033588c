//! The console of a stream of dead letters.

use std::os::unix::fs::PermissionsExt as _;

use dlq_core::{DeadLetter, Message};
use dlq_testkit::fixtures::{letter, letter_of, varied};
use serde_json::Value;

use crate::fixture::Bench;
use crate::http::{console, document, get, latest_replay, post, until};
use crate::replay::Born;

/// Arguments of a console.
const SERVE: [&str; 4] = ["serve", "--console", "--metrics", "127.0.0.1:0"];

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_is_shown_as_the_command_shows_it() {
    let Some(bench) = Bench::with("shown", (0..40).map(varied).collect()).await else { return };
    // Larger than what a reading keeps of a payload.
    let large = letter_of(Message::new("orders.large", vec![b'x'; 20_000]), 100);
    bench.put(vec![large.clone()]).await;
    let (process, address, said) = console(bench.command(&SERVE));
    assert!(said.contains("for this machine alone"), "{said}");
    let stores = document(&address, "/api/v1/stores");
    assert_eq!((&stores["stores"][0], &stores["logs"][0]), (&"default".into(), &"default".into()));

    let run = |args: &[&str]| bench.run(&[args, &["-o", "json"]].concat()).ok().json();
    let id = large.id.to_string();
    for (args, route) in [
        (&["list"] as &[&str], "letters"),
        (&["list", "--oldest-first", "--limit", "3"], "letters?oldest-first=true&limit=3"),
        (
            &["list", "--status", "pending", "--class", "permanent"],
            "letters?status=pending&class=permanent",
        ),
        (&["count"], "count"),
        (&["groups"], "groups"),
        (&["stats"], "stats"),
        (&["show", &id], &format!("letters/{id}")),
    ] {
        let mut served = document(&address, &format!("/api/v1/default/{route}"));
        let said = run(args);
        // A route gives pages, and says where the next begins, also where the command has read all of them.
        if said.get("next").is_none() {
            served.as_object_mut().unwrap().remove("next");
        }
        assert_eq!(served, said, "{args:?} and {route}");
    }
    let (status, payload) = get(&address, &format!("/api/v1/default/letters/{id}/payload"), "");
    assert_eq!((status, payload.len()), (200, 20_000));
    let hours = document(&address, "/api/v1/default/hours");
    let stored: u64 = hours["stored"].as_array().unwrap().iter().filter_map(Value::as_u64).sum();
    assert_eq!(stored, 41, "{hours}");

    let page = |path: &str| {
        let (status, page) = get(&address, path, "");
        assert_eq!(status, 200, "{path}: {page}");
        assert!(page.contains("A log of a broker, as of"), "{path}: {page}");
        page
    };
    assert!(page("/s/default").contains("<strong data-live=\"total\">41</strong> in all"));
    assert!(page("/s/default/letters").contains("<strong>41</strong> letters match"));
    let groups = page("/s/default/groups");
    let fingerprint = large.fingerprint.to_string();
    assert!(groups.contains(&fingerprint), "{groups}");
    let group = page(&format!("/s/default/group?fingerprint={fingerprint}"));
    assert!(!group.contains("name=\"decision\""), "{group}");
    let one = page(&format!("/s/default/letters/{id}"));
    for absent in ["Quarantine", "/edit", "What was done to it", "/audit", "/operations", "Delete"]
    {
        assert!(!one.contains(absent), "{absent}: {one}");
    }
    let change = post(&address, "/api/v1/default/mark", "", "all=true&mark=resolved&note=no");
    assert!(change.0 == 409 && change.1.contains("is a log of a broker"), "{}", change.1);
    let delete = post(&address, "/s/default/delete", "", "all=true&note=no&expect=41");
    assert!(delete.0 == 409 && delete.1.contains("is a log of a broker"), "{}", delete.1);
    let held = get(&address, &format!("/api/v1/default/letters?operation={}", "0".repeat(32)), "");
    assert!(held.0 == 422 && held.1.contains("needs a store"), "{}", held.1);

    // What comes later is seen by a later reading.
    bench.put(vec![letter(200)]).await;
    tokio::task::block_in_place(|| {
        until(&address, "/api/v1/default/count", |found| found["count"] == 42)
    });
    assert_eq!(run(&["count"])["count"], 42);
    process.signal("-TERM");
    assert_eq!(process.end().code, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_is_shown_beside_a_store_under_the_name_of_its_context() {
    let Some(bench) = Bench::with("beside", vec![letter(1), letter(2)]).await else { return };
    bench.run(&["ingest", "--once", "--into", &bench.store_url()]).ok();
    let config = bench.file("config.toml");
    let context = format!("[contexts.events]\nfrom = \"{}\"\nmask = [\"$\"]\n", bench.url());
    std::fs::write(&config, context).unwrap();
    let tokens = bench.file("tokens");
    std::fs::write(&tokens, "ana admin ana-has-this-token\nrita read rita-has-this-token\n")
        .unwrap();
    std::fs::set_permissions(&tokens, std::fs::Permissions::from_mode(0o600)).unwrap();
    let store = bench.store_url();
    let more = ["--also", "events", "--token-file", &tokens, "--from", &store];
    let mut command = bench.command(&[&SERVE[..], &more].concat());
    command.env("DLQ_CONFIG", &config);
    let (process, address, _) = console(command);
    let (ana, rita) = (
        "Authorization: Bearer ana-has-this-token\r\n",
        "Authorization: Bearer rita-has-this-token\r\n",
    );
    let (_, stores) = get(&address, "/api/v1/stores", rita);
    let stores: Value = serde_json::from_str(&stores).unwrap();
    assert_eq!(stores["stores"], serde_json::json!(["default", "events"]));
    assert_eq!(stores["logs"], serde_json::json!(["events"]));
    for (place, letters) in [("default", 2), ("events", 2)] {
        let (status, count) = get(&address, &format!("/api/v1/{place}/count"), rita);
        assert!(status == 200 && count.contains(&format!("\"count\":{letters}")), "{count}");
    }
    let one = format!("letters/{}", letter(1).id);
    let (status, hidden) = get(&address, &format!("/api/v1/events/{one}"), rita);
    assert!(status == 200 && hidden.contains("\"hidden\""), "{hidden}");
    let document: Value = serde_json::from_str(&hidden).unwrap();
    assert_eq!(document["message"]["payload"], Value::Null, "{hidden}");
    let (status, page) = get(&address, &format!("/s/events/{one}"), rita);
    assert!(status == 200 && page.contains("does not see them"), "{page}");
    assert!(!page.contains("Reveal"), "{page}");
    let payload = get(&address, &format!("/api/v1/events/{one}/payload"), rita);
    assert_eq!(payload.0, 403, "{}", payload.1);
    for who in [ana, rita] {
        let reveal = post(&address, &format!("/api/v1/events/{one}/reveal"), who, "note=why");
        assert_eq!(reveal.0, 409, "{}", reveal.1);
    }
    // Letters that are kept in a store are sent from there.
    let replay = "all=true&to=origin&note=why";
    let kept = post(&address, "/api/v1/events/replay", ana, replay);
    assert!(kept.0 == 422 && kept.1.contains("are kept in a store"), "{}", kept.1);
    assert_eq!(post(&address, "/api/v1/events/replay", rita, replay).0, 403);
    // Rules hold for logs as well, also for those who may see payloads.
    let (status, masked) = get(&address, &format!("/api/v1/events/{one}/payload"), ana);
    assert!(status == 200 && masked.trim_matches('"').starts_with("***"), "{masked}");
    process.signal("-TERM");
    assert_eq!(process.end().code, 0);
}

/// Sends a form to the replay of the HTTP interface, and returns status and document.
fn api(address: &str, path: &str, form: &str) -> (u16, Value) {
    let (status, body) = post(address, &format!("/api/v1/default/{path}"), "", form);
    (status, serde_json::from_str(&body).unwrap_or_else(|error| panic!("{error}: {body}")))
}

const ORIGIN: &str = "all=true&to=origin&note=mended";

#[tokio::test(flavor = "multi_thread")]
async fn letters_are_sent_back_after_a_plan_and_its_number() {
    let Some(born) = Born::new("consoled", 130).await else { return };
    let bench = &born.bench;
    let (process, address, _) = console(bench.command(&SERVE));
    let (status, planned) = api(&address, "plan", "all=true&to=origin");
    let dry = bench.run(&["replay", "--all", "--to", "origin", "--dry-run", "-o", "json"]).ok();
    assert_eq!((status, &planned), (200, &dry.json()));
    assert_eq!(planned["plan"]["count"], 130);
    let page = get(&address, "/s/default/replay?all=true&to=origin", "").1;
    assert!(page.contains("Replay 130 letters") && !page.contains("canary"), "{page}");

    // Without the number, with another one, and with what only a store can do.
    for (form, status, says) in [
        (ORIGIN.to_owned(), 422, "type the number"),
        (format!("{ORIGIN}&expect=129"), 409, "129 were agreed to"),
        (format!("{ORIGIN}&expect=130&canary=3"), 422, "needs a store"),
        ("to=origin&note=mended&expect=130".to_owned(), 422, "no filter was given"),
        ("all=true&note=mended&expect=130".to_owned(), 422, "no retry stream `DLQ_RETRY`"),
        (format!("{ORIGIN}&expect=130&rate=1/m"), 422, "the slowest rate is 1/s"),
    ] {
        let refused = post(&address, "/s/default/replay", "", &form);
        assert!(
            refused.0 == status && refused.1.contains(says),
            "{form}: {} {}",
            refused.0,
            refused.1
        );
    }
    assert_eq!(document(&address, "/api/v1/default/latest-replay")["replay"], Value::Null);
    assert_eq!(born.count().await, 130);

    let some = format!("{ORIGIN}&limit=5&expect=5&idempotency-key=once");
    for _ in 0..2 {
        assert_eq!(post(&address, "/s/default/replay", "", &some).0, 303);
        let ended = latest_replay(&address, "complete");
        assert_eq!(
            (&ended["sent"], &ended["failed"], &ended["left"]),
            (&5.into(), &0.into(), &0.into())
        );
        assert_eq!((&ended["to"], &ended["note"]), (&"origin".into(), &"mended".into()));
        assert_eq!(born.count().await, 135);
    }
    // The reading is anew after a replay, however old it is.
    assert_eq!(document(&address, "/api/v1/default/count?status=sent")["count"], 5);
    let planned = api(&address, "plan", "all=true&to=origin").1;
    assert_eq!(planned["plan"]["count"], 125);
    assert_eq!(planned["plan"]["skipped"]["sent before"], 5);

    // One that takes two minutes is watched, and stopped.
    let slow = format!("{ORIGIN}&rate=1/s&expect=125");
    let (status, begun) = api(&address, "replay", &slow);
    assert!(status == 200 && begun["replay"]["state"] == "running", "{begun}");
    let (status, second) = api(&address, "replay", &slow);
    // Some may have been sent since, so that the number is another one.
    assert_eq!(status, 409, "{second}");
    let page = get(&address, "/s/default/latest-replay", "").1;
    assert!(page.contains("latest-replay/events") && page.contains(">Stop<"), "{page}");
    let (status, stopping) = api(&address, "latest-replay/stop", "note=enough");
    assert_eq!(status, 200, "{stopping}");
    let stopped = latest_replay(&address, "stopped");
    let (sent, left) = (stopped["sent"].as_u64().unwrap(), stopped["left"].as_u64().unwrap());
    assert!(sent + left == 125 && left > 0, "{stopped}");
    assert_eq!(born.count().await, 135 + sent);
    let page = get(&address, "/s/default/latest-replay", "").1;
    assert!(!page.contains("latest-replay/events") && !page.contains(">Stop<"), "{page}");
    assert_eq!(api(&address, "latest-replay/stop", "note=again").0, 409);
    let planned = api(&address, "plan", "all=true&to=origin").1;
    assert_eq!(planned["plan"]["count"], left);

    // A console that is told to end does not wait for its replay.
    let (status, begun) = api(&address, "replay", &format!("{ORIGIN}&rate=1/s"));
    assert_eq!(status, 200, "{begun}");
    process.signal("-TERM");
    let ended = process.end();
    assert!(ended.code == 0 && !ended.err.contains("panicked"), "{}", ended.err);
    assert!(born.count().await < 260, "some are left");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_goes_into_the_header_that_is_named() {
    let keyed = |mut letter: DeadLetter| {
        letter.message = letter.message.with_key("k");
        letter
    };
    let Some(born) = Born::with("keyed", 2, keyed).await else { return };
    let (without, address, _) = console(born.bench.command(&SERVE));
    assert_eq!(api(&address, "replay", ORIGIN).0, 200);
    let ended = latest_replay(&address, "complete");
    assert_eq!((&ended["sent"], &ended["failed"]), (&0.into(), &2.into()), "{ended}");
    assert!(ended["failures"][0]["error"].as_str().unwrap().contains("has a key"), "{ended}");
    drop(without);
    let named = [&SERVE[..], &["--via-key-header", "key"]].concat();
    let (_with, address, _) = console(born.bench.command(&named));
    assert_eq!(api(&address, "replay", ORIGIN).0, 200);
    let ended = latest_replay(&address, "complete");
    assert_eq!((&ended["sent"], &ended["failed"]), (&2.into(), &0.into()), "{ended}");
    assert_eq!(born.count().await, 4);
}

/// Replays find at the broker what one that was killed has sent, and send the rest, nothing twice.
#[tokio::test(flavor = "multi_thread")]
async fn g6_a_console_that_is_killed_leaves_the_rest_to_the_next_replay() {
    let Some(born) = Born::new("consoled-killed", 60).await else { return };
    let bench = &born.bench;
    let (process, address, _) = console(bench.command(&SERVE));
    let (status, begun) = api(&address, "replay", &format!("{ORIGIN}&rate=1/s&expect=60"));
    assert_eq!(status, 200, "{begun}");
    tokio::task::block_in_place(|| {
        until(&address, "/api/v1/default/latest-replay", |found| {
            found["replay"]["sent"].as_u64() >= Some(2)
        })
    });
    process.kill();
    let sent = born.count().await - 60;
    assert!((2..60).contains(&sent), "{sent}");
    let (_process, address, _) = console(bench.command(&SERVE));
    assert_eq!(document(&address, "/api/v1/default/latest-replay")["replay"], Value::Null);
    let (status, begun) = api(&address, "replay", ORIGIN);
    assert_eq!(status, 200, "{begun}");
    // It waits for the lease of the one that was killed.
    latest_replay(&address, "complete");
    assert_eq!(born.count().await, 120, "each was sent once");
    let planned = api(&address, "plan", "all=true&to=origin").1;
    assert_eq!(
        (&planned["plan"]["count"], &planned["plan"]["skipped"]["sent before"]),
        (&0.into(), &60.into())
    );
}
