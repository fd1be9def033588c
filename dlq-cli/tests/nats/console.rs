//! The console of a stream of dead letters.

use std::os::unix::fs::PermissionsExt as _;

use dlq_core::Message;
use dlq_testkit::fixtures::{letter, letter_of, varied};
use serde_json::Value;

use crate::fixture::Bench;
use crate::http::{console, document, get, post, until};

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
    // Rules hold for logs as well, also for those who may see payloads.
    let (status, masked) = get(&address, &format!("/api/v1/events/{one}/payload"), ana);
    assert!(status == 200 && masked.trim_matches('"').starts_with("***"), "{masked}");
    process.signal("-TERM");
    assert_eq!(process.end().code, 0);
}
