//! `dlq serve --alert`.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use dlq_core::store::{
    Actor, GroupKey, GroupRecord, GroupUpdate, Maintenance as _, Sink as _, Triage,
};
use dlq_core::{Attempt, Cause, Clock as _, DeadLetter, ErrorClass, Failure, History, SystemClock};
use dlq_sql::sqlite::SqliteStore;
use dlq_testkit::fixtures::letter;
use serde_json::Value;

use crate::common::{Ran, dlq};
use crate::receiver::{Receiver, alerts};
use crate::served::Served;

/// The `n`-th letter, in a group by the name of `error`.
fn of(n: u64, error: &str) -> DeadLetter {
    let failure = Failure::new(ErrorClass::Permanent, Cause::Error, error, error);
    let mut history = History::new();
    history.push(Attempt { number: 1, generation: 0, failure });
    letter(n).with_history(history)
}

fn group(error: &str) -> String {
    of(0, error).fingerprint.to_string()
}

fn told(kind: &str, error: &str) -> (String, String) {
    (kind.to_owned(), group(error))
}

fn key(error: &str) -> GroupKey {
    GroupKey::new(of(0, error).consumer, of(0, error).fingerprint)
}

async fn decide(store: &SqliteStore, error: &str, triage: Triage) {
    let update = GroupUpdate::new().triage(triage);
    store.update_group(key(error), update, Actor::new("ana")).await.unwrap();
}

async fn record(store: &SqliteStore, error: &str) -> GroupRecord {
    store.group_records(vec![key(error)]).await.unwrap().remove(0)
}

async fn empty() -> (tempfile::TempDir, SqliteStore) {
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(folder.path().join("dlq.db")).await.unwrap();
    (folder, store)
}

fn serve(folder: tempfile::TempDir, more: &[&str]) -> Served {
    Served::start_with(folder, "100ms", &[&["--alert-every", "100ms"], more].concat())
}

#[tokio::test(flavor = "multi_thread")]
async fn each_change_is_told_once_by_two_processes_and_after_a_restart() {
    let mut receiver = Receiver::start(200).await;
    let (folder, store) = empty().await;
    let url = receiver.url.clone();
    let one = serve(folder, &["--alert", &url]);
    let other = one.another(&["--alert-every", "100ms", "--alert", &url]);
    store.put(vec![of(0, "timeout"), of(1, "timeout")]).await.unwrap();
    assert_eq!(receiver.told_until(&group("timeout")).await, [told("new", "timeout")]);
    // Nobody is told of what somebody knows of.
    decide(&store, "known", Triage::Acknowledged).await;
    store.put(vec![of(2, "known"), of(3, "declined")]).await.unwrap();
    assert_eq!(receiver.told_until(&group("declined")).await, [told("new", "declined")]);
    decide(&store, "timeout", Triage::Resolved).await;
    let mut again = of(0, "timeout").with_generation(1);
    again.died_at = SystemClock.now();
    store.put(vec![again]).await.unwrap();
    assert_eq!(receiver.told_until(&group("timeout")).await, [told("regressed", "timeout")]);
    // Both note what they have sent before they end.
    other.signal("-TERM");
    other.end().ok();
    let folder = one.stop();
    for error in ["timeout", "declined"] {
        let alerts = record(&store, error).await.alerts;
        let noted = alerts.values().all(|alert| alert.at.is_some() && alert.claim.is_none());
        assert!(noted && alerts.len() == 1, "{error}: {alerts:?}");
    }
    let restarted = serve(folder, &["--alert", &url]);
    store.put(vec![of(4, "another")]).await.unwrap();
    assert_eq!(receiver.told_until(&group("another")).await, [told("new", "another")]);
    assert_eq!(receiver.rest(), Vec::<Value>::new());
    let groups =
        Ran::from(dlq(&["audit", "-o", "json", "--from", &restarted.url()]).output().unwrap());
    let entries = groups.ok().json()["entries"].as_array().unwrap().len();
    assert_eq!(entries, 2, "the two decisions, and no alert");
}

#[tokio::test(flavor = "multi_thread")]
async fn many_are_one_message_which_is_sent_until_it_is_accepted() {
    let mut receiver = Receiver::start(503).await;
    let (folder, store) = empty().await;
    store.put((0..30).map(|n| of(n, &format!("error {n}"))).collect()).await.unwrap();
    let served = serve(folder, &["--alert", &receiver.url]);
    let first = receiver.next().await.1;
    assert_eq!(alerts(&first).len(), 30);
    assert_eq!(first["alerts"][0]["waiting"], 1);
    assert_eq!(first["store"], served.url());
    receiver.answer(200);
    assert_eq!(receiver.next().await.1, first, "the same once more");
    let sent = "dlq_alerts_sent_total{format=\"webhook\"}";
    let page = served.until("30 alerts", |page| page.value(sent) == Some(30.0));
    // The groups are counted by name up to a bound.
    assert_eq!(page.series("dlq_group_letters").len(), 21, "{}", page.0);
    let other = "dlq_group_letters{group=\"other\",consumer=\"\"}";
    assert_eq!(page.value(other), Some(10.0), "{}", page.0);
    assert_eq!(receiver.rest(), Vec::<Value>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_refused_is_tried_again_or_dropped_and_no_secret_is_said() {
    let mut receiver = Receiver::start(404).await;
    let (folder, store) = empty().await;
    store.put(vec![of(0, "timeout"), of(1, "declined")]).await.unwrap();
    let url = format!("slack+{}/services/T0/B0/s3cret-path", receiver.url);
    let served = serve(folder, &["--alert", &url]);
    let value = |name: &str| format!("dlq_alerts_{name}_total{{format=\"slack\"}}");
    served.until("a refusal", |page| page.value(&value("failed")) >= Some(2.0));
    decide(&store, "declined", Triage::Snoozed(SystemClock.now().after(Duration::from_secs(3600))))
        .await;
    served.until("one that is dropped", |page| page.value(&value("dropped")) == Some(1.0));
    receiver.answer(200);
    let page = served.until("an alert", |page| page.value(&value("sent")) == Some(1.0));
    assert_eq!(page.value(&value("dropped")), Some(1.0), "{}", page.0);
    let (path, _) = receiver.next().await;
    assert_eq!(path, "/services/T0/B0/s3cret-path");
    let last = receiver.rest().pop().unwrap();
    assert!(last["text"].as_str().unwrap().starts_with("*1 group of dead letters*"), "{last}");
    let said = served.process.kill();
    assert!(said.contains("404 Not Found") && said.contains("slack at 127.0.0.1"), "{said}");
    assert!(!said.contains("s3cret"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn slack_and_pagerduty_have_what_they_expect() {
    let [mut slack, mut pager] = [Receiver::start(200).await, Receiver::start(202).await];
    let (folder, store) = empty().await;
    store.put(vec![of(0, "<!channel> & \"co\"\n"), of(1, "timeout")]).await.unwrap();
    let urls = [
        format!("slack+{}/hook", slack.url),
        format!("pagerduty+{}/v2?routing_key=k3y", pager.url),
    ];
    // In the environment several are separated by blanks.
    let served = serve(folder, &["--alert", &urls.join(" ")]);
    let text = slack.next().await.1["text"].as_str().unwrap().to_owned();
    assert!(text.starts_with("*2 groups of dead letters* in sqlite://"), "{text}");
    assert!(text.contains("new: 1 letter of orders.handle, v1:"), "{text}");
    assert!(text.contains("&lt;!channel&gt; &amp; \"co\"\\n"), "{text}");
    let ((path, one), (_, other)) = (pager.next().await, pager.next().await);
    assert_eq!(path, "/v2", "the key is in the event alone");
    for event in [&one, &other] {
        assert_eq!(
            (&event["routing_key"], &event["event_action"]),
            (&"k3y".into(), &"trigger".into())
        );
        assert_eq!(event["payload"]["component"], "orders.handle");
        assert_eq!(event["payload"]["severity"], "error");
    }
    assert_ne!(one["dedup_key"], other["dedup_key"]);
    decide(&store, "timeout", Triage::Resolved).await;
    let of_timeout = [one, other];
    let of_timeout = of_timeout.iter().find(|event| event["payload"]["group"] == group("timeout"));
    let resolved = pager.next().await.1;
    assert_eq!(resolved["event_action"], "resolve");
    assert_eq!(resolved["dedup_key"], of_timeout.unwrap()["dedup_key"]);
    // Slack is told of what is new, and of no end.
    store.put(vec![of(2, "declined")]).await.unwrap();
    let text = slack.next().await.1["text"].as_str().unwrap().to_owned();
    assert!(text.contains("1 group of") && text.contains(&group("declined")), "{text}");
    assert!(!served.process.kill().contains("k3y"));
}

/// A server with a certificate of an authority of its own; yields the first lines of requests.
fn https(folder: &std::path::Path) -> (String, String, mpsc::Receiver<String>) {
    let certified = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let ca = folder.join("ca.pem");
    std::fs::write(&ca, certified.cert.pem()).unwrap();
    let key = rustls::pki_types::PrivateKeyDer::try_from(certified.signing_key.serialize_der());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certified.cert.der().clone()], key.unwrap())
        .unwrap();
    let config = Arc::new(config);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (requests, requested) = mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let connection = rustls::ServerConnection::new(Arc::clone(&config)).unwrap();
            let mut reader = BufReader::new(rustls::StreamOwned::new(connection, stream));
            let (mut first, mut line, mut length) = (String::new(), String::new(), 0);
            // Whoever does not trust the certificate says no more.
            if reader.read_line(&mut first).is_err() || first.is_empty() {
                continue;
            }
            while line != "\r\n" {
                line.clear();
                reader.read_line(&mut line).unwrap();
                if let Some(value) = line.to_lowercase().strip_prefix("content-length: ") {
                    length = value.trim().parse().unwrap();
                }
            }
            reader.read_exact(&mut vec![0; length]).unwrap();
            reader.get_mut().write_all(b"HTTP/1.1 204 Thanks\r\n\r\n").unwrap();
            if requests.send(first).is_err() {
                return;
            }
        }
    });
    (format!("https://localhost:{port}/hook"), ca.display().to_string(), requested)
}

#[tokio::test(flavor = "multi_thread")]
async fn https_needs_an_authority_that_is_trusted() {
    let (folder, store) = empty().await;
    store.put(vec![of(0, "timeout")]).await.unwrap();
    let (url, ca, requested) = https(folder.path());
    let mut served = serve(folder, &["--alert", &url]);
    served.process.says("invalid peer certificate");
    assert!(requested.try_recv().is_err());
    let folder = served.stop();
    let served = serve(folder, &["--alert", &format!("webhook+{url}"), "--alert-ca", &ca]);
    served.until("an alert", |page| {
        page.value("dlq_alerts_sent_total{format=\"webhook\"}") == Some(1.0)
    });
    assert_eq!(requested.try_recv().unwrap(), "POST /hook HTTP/1.1\r\n");
}
