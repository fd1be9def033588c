//! `dlq serve --console`.

use std::os::unix::fs::PermissionsExt as _;

use dlq_core::store::Sink as _;
use dlq_sql::sqlite::SqliteStore;
use dlq_testkit::fixtures::letter;

use crate::common::{Ran, dlq};
use crate::http::{ask, console, get, post};
use crate::process::Process;

/// A store of three letters, in a folder.
async fn store() -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("dlq.db");
    let store = SqliteStore::open(&path).await.unwrap();
    store.put((0..3).map(letter).collect()).await.unwrap();
    (folder, format!("sqlite://{}", path.display()))
}

/// Starts it, and returns its address and what it says about the console.
fn start(args: &[&str]) -> (Process, String, String) {
    console(dlq(&[&["serve", "--console"], args].concat()))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_console_is_served_beside_the_metrics() {
    let (_folder, url) = store().await;
    let (process, address, said) = start(&["--metrics", "127.0.0.1:0", "--from", &url]);
    assert_eq!(
        said,
        format!(
            "dlq: the console is at http://{address}/ for this machine alone, without a login\n"
        )
    );
    assert!(get(&address, "/metrics", "").1.contains("dlq_letters{status=\"pending\"} 3"));
    assert_eq!(get(&address, "/health", "").0, 200);
    assert_eq!(get(&address, "/", "").0, 303);
    let (status, page) = get(&address, "/s/default/letters", "");
    assert!(status == 200 && page.contains("<strong>3</strong> letters match"), "{page}");
    let count = get(&address, "/api/v1/default/count?status=pending", "");
    assert_eq!(count, (200, "{\"schema_version\":1,\"count\":3}".to_owned()));
    // What it says is what the command says.
    let listed =
        Ran::from(dlq(&["list", "-o", "json", "--from", &url]).output().unwrap()).ok().json();
    let served: serde_json::Value =
        serde_json::from_str(&get(&address, "/api/v1/default/letters", "").1).unwrap();
    assert_eq!(served, listed);
    let body = "all=true&mark=resolved&note=noise&expect=3";
    let marked = post(&address, "/api/v1/default/mark", "", body);
    assert_eq!(marked.0, 200, "{}", marked.1);
    let audit =
        Ran::from(dlq(&["audit", "-o", "json", "--from", &url]).output().unwrap()).ok().json();
    assert_eq!(audit["entries"][0]["by"]["note"], "noise");
    // A page of a site whose name leads here.
    let evil = "GET /s/default HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n";
    assert_eq!(tokio::task::block_in_place(|| ask(&address, evil)).0, 403);
    process.signal("-TERM");
    assert_eq!(process.end().code, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_let_in_who_has_one() {
    let (folder, url) = store().await;
    let file = folder.path().join("tokens");
    std::fs::write(
        &file,
        "# people\nana admin ana-has-this-token\nrita read rita-has-this-token\n",
    )
    .unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    let file = file.display().to_string();
    // With a login others may reach it.
    let (_process, address, said) =
        start(&["--metrics", "0.0.0.0:0", "--token-file", &file, "--from", &url]);
    assert!(said.ends_with("/ and asks for a token\n"), "{said}");
    let address = address.replace("0.0.0.0", "127.0.0.1");
    assert_eq!(get(&address, "/api/v1/stores", "").0, 401);
    assert_eq!(get(&address, "/s/default", "").0, 303);
    let (status, stores) =
        get(&address, "/api/v1/stores", "Authorization: Bearer rita-has-this-token\r\n");
    assert!(status == 200 && stores.contains("\"role\":\"read\""), "{stores}");
    assert_eq!(get(&address, "/metrics", "").0, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_would_be_open_to_everybody_is_refused() {
    let (folder, url) = store().await;
    let path = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let (empty, short) = (path("empty", "# nobody\n"), path("short", "ana admin s3cret\n"));
    let serve = |args: &[&str]| Ran::from(dlq(&[&["serve"], args].concat()).output().unwrap());
    for (args, text) in [
        (
            &["--console", "--metrics", "0.0.0.0:0", "--from", &url][..],
            "name the tokens with --token-file FILE",
        ),
        (&["--console", "--metrics", "[::]:0", "--from", &url], "without a login everybody"),
        (
            &["--console", "--token-file", &empty, "--from", &url],
            "has no token; write a line for each",
        ),
        (&["--console", "--token-file", &short, "--from", &url], "fewer than 16 characters"),
        (
            &["--console", "--token-file", "/nowhere", "--from", &url],
            "cannot read the tokens from /nowhere",
        ),
        (&["--token-file", &short, "--from", &url], "--console"),
    ] {
        let ran = tokio::task::block_in_place(|| serve(args));
        assert_eq!(ran.code, 2, "{args:?}: {}", ran.err);
        assert!(ran.err.contains(text) && !ran.err.contains("s3cret"), "{args:?}: {}", ran.err);
    }
}

/// A broker that is away keeps neither the console nor its metrics from being served.
#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_is_away_is_asked_again() {
    for from in ["nats://127.0.0.1:1/DLQ", "kafka://127.0.0.1:1/dlq", "redis://127.0.0.1:1/dlq"] {
        let (process, address, _) = start(&["--metrics", "127.0.0.1:0", "--from", from]);
        assert_eq!(get(&address, "/metrics", "").0, 200);
        let (status, stores) = get(&address, "/api/v1/stores", "");
        assert!(status == 200 && stores.contains("\"logs\":[\"default\"]"), "{stores}");
        let (status, refused) = get(&address, "/api/v1/default/letters", "");
        assert!(status == 503 && refused.contains(from), "{from}: {refused}");
        process.signal("-TERM");
        assert_eq!(process.end().code, 0);
    }
    let ran =
        Ran::from(dlq(&["serve", "--console", "--from", "redis://127.0.0.1:1"]).output().unwrap());
    assert!(ran.code == 2 && ran.err.contains("names no stream"), "{}", ran.err);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_console_masks_what_the_configuration_says() {
    let (folder, url) = store().await;
    let config = folder.path().join("config.toml");
    std::fs::write(&config, format!("[contexts.here]\nfrom = \"{url}\"\nmask = [\"$\"]\n"))
        .unwrap();
    let payload = format!("/api/v1/default/letters/{}/payload", letter(1).id);
    let mut command = dlq(&["serve", "--console", "--metrics", "127.0.0.1:0", "--context", "here"]);
    command.env("DLQ_CONFIG", &config);
    let (process, address, _) = console(command);
    let (status, shown) = get(&address, &payload, "");
    assert!(status == 200 && shown.trim_matches('"').starts_with("***"), "{shown}");
    process.signal("-TERM");
    assert_eq!(process.end().code, 0);
    let (process, address, _) = start(&["--metrics", "127.0.0.1:0", "--from", &url]);
    let whole = get(&address, &payload, "").1;
    assert_eq!(whole.as_bytes(), &letter(1).message.payload().unwrap()[..]);
    process.signal("-TERM");
    assert_eq!(process.end().code, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn stores_of_other_contexts_are_shown_under_their_names() {
    let (folder, url) = store().await;
    let other = folder.path().join("other.db");
    SqliteStore::open(&other).await.unwrap().put(vec![letter(7)]).await.unwrap();
    let config = folder.path().join("config.toml");
    let context = |path: &std::path::Path| {
        format!("[contexts.other]\nfrom = \"sqlite://{}\"\n", path.display())
    };
    std::fs::write(&config, context(&other)).unwrap();
    let serve = |also: &str| {
        let mut command = dlq(&["serve", "--console", "--also", also]);
        command.args(["--metrics", "127.0.0.1:0", "--from", &url]).env("DLQ_CONFIG", &config);
        command
    };
    let (_process, address, _) = console(serve("other"));
    let (status, stores) = get(&address, "/api/v1/stores", "");
    assert!(status == 200 && stores.contains("[\"default\",\"other\"]"), "{stores}");
    let count = get(&address, "/api/v1/other/count", "");
    assert_eq!(count, (200, "{\"schema_version\":1,\"count\":1}".to_owned()));
    let (_, page) = get(&address, "/s/default", "");
    assert!(page.contains("s/other"), "{page}");
    let refused = Ran::from(serve("nowhere").output().unwrap());
    assert!(refused.code == 2 && refused.err.contains("nowhere"), "{}", refused.err);
    let with_sender = Ran::from(serve("other").arg("--replay").output().unwrap());
    assert!(with_sender.code == 2 && with_sender.err.contains("--also"), "{}", with_sender.err);
}

/// Each verb that looks and its route give the same document.
#[tokio::test(flavor = "multi_thread")]
async fn a_verb_and_its_route_say_the_same() {
    let (_folder, url) = store().await;
    let run = |args: &[&str]| {
        let args = [args, &["-o", "json", "--from", &url]].concat();
        Ran::from(dlq(&args).output().unwrap()).ok().json()
    };
    let id = letter(1).id.to_string();
    let started = run(&["replay", "--id", &id, "--yes", "--note", "try"]);
    let operation = started["id"].as_str().unwrap_or_else(|| panic!("{started}")).to_owned();
    run(&["delete", "--id", &letter(2).id.to_string(), "--yes", "--note", "gone"]);
    let (_process, address, _) = start(&["--metrics", "127.0.0.1:0", "--from", &url]);
    let of_letter = format!("letters/{id}");
    let of_operation = format!("operations/{operation}");
    for (args, route) in [
        (&["list"] as &[&str], "letters"),
        (&["list", "--oldest-first", "--limit", "1"], "letters?oldest-first=true&limit=1"),
        (&["list", "--status", "replaying"], "letters?status=replaying"),
        (&["count", "--consumer", "orders.handle"], "count?consumer=orders.handle"),
        (&["groups"], "groups"),
        (&["stats"], "stats"),
        (&["show", &id], &of_letter),
        (&["audit"], "audit"),
        (&["audit", "--letter", &id], &format!("audit?letter={id}")),
        (&["consumers"], "consumers"),
        (&["op", "list"], "operations"),
        (&["op", "show", &operation], &of_operation),
        (&["restore", "--list"], "archive"),
    ] {
        let (status, served) = get(&address, &format!("/api/v1/default/{route}"), "");
        assert_eq!(status, 200, "{route}: {served}");
        let mut served: serde_json::Value = serde_json::from_str(&served).unwrap();
        let said = run(args);
        // A route gives pages, and says where the next begins, also where the command has read all of them.
        if said.get("next").is_none() {
            served.as_object_mut().unwrap().remove("next");
        }
        assert_eq!(served, said, "{args:?} and {route}");
    }
}
