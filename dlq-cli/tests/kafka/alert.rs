//! Alerts of an ingest, about letters and about groups.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::sync::mpsc;

use serde_json::Value;

use crate::fixture::{Bench, PATIENCE};
use crate::ingest::letters;

/// A webhook that answers so, the last one for ever; yields what is posted.
fn webhook(answers: &'static [&'static str]) -> (String, mpsc::Receiver<Value>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/dead?x=1", listener.local_addr().unwrap());
    let (posted, posts) = mpsc::channel();
    std::thread::spawn(move || {
        for (n, stream) in listener.incoming().enumerate() {
            let mut reader = BufReader::new(stream.unwrap());
            let (mut line, mut length) = (String::new(), 0);
            reader.read_line(&mut line).unwrap();
            assert_eq!(line, "POST /dead?x=1 HTTP/1.1\r\n");
            while line != "\r\n" {
                line.clear();
                reader.read_line(&mut line).unwrap();
                if let Some(value) = line.to_lowercase().strip_prefix("content-length: ") {
                    length = value.trim().parse().unwrap();
                }
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body).unwrap();
            // Before the answer, after which the command may end and be looked at.
            if posted.send(serde_json::from_slice(&body).unwrap()).is_err() {
                return;
            }
            let answer = answers[n.min(answers.len() - 1)];
            reader.get_mut().write_all(answer.as_bytes()).unwrap();
        }
    });
    (url, posts)
}

fn ids(posts: impl IntoIterator<Item = Value>) -> BTreeSet<String> {
    posts.into_iter().map(|post| post["letter"].as_str().unwrap().to_owned()).collect()
}

fn expected(count: u64) -> BTreeSet<String> {
    letters(count).iter().map(|letter| letter.id.to_string()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_incident_is_posted_and_tried_again() {
    let Some(bench) = Bench::with("alert-url", letters(5)).await else { return };
    let into = bench.store_url();
    let (url, posts) = webhook(&["HTTP/1.1 503 Busy\r\n\r\n", "HTTP/1.1 204 Thanks\r\n\r\n"]);
    let ran = bench.run(&["ingest", "--once", "--into", &into, "--alert-url", &url]).ok();
    assert_eq!(ran.out, "5 letters stored\n");
    let posts: Vec<Value> = posts.try_iter().collect();
    assert_eq!((posts.len(), ids(posts)), (6, expected(5)), "one of them twice");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_refused_is_said_and_the_letters_are_stored() {
    let Some(bench) = Bench::with("alert-no", letters(3)).await else { return };
    let into = bench.store_url();
    let (url, posts) = webhook(&["HTTP/1.1 404 Not Found\r\n\r\n"]);
    let ran = bench.run(&["ingest", "--once", "--into", &into, "--alert-url", &url]);
    assert_eq!((ran.code, &*ran.out), (3, "3 letters stored\n"), "{}", ran.err);
    assert!(ran.err.contains("alerts: 0 sent, 3 refused"), "{}", ran.err);
    assert!(ran.err.contains("404 Not Found"), "{}", ran.err);
    assert_eq!(posts.try_iter().count(), 3, "none is tried again");
}

#[tokio::test(flavor = "multi_thread")]
async fn groups_are_told_at_the_end_of_a_run_and_not_again() {
    let Some(bench) = Bench::with("alert-groups", letters(5)).await else { return };
    let into = bench.store_url();
    let (url, posts) = webhook(&["HTTP/1.1 204 Thanks\r\n\r\n"]);
    for _ in 0..2 {
        bench.run(&["ingest", "--once", "--into", &into, "--alert", &url]).ok();
    }
    let posts: Vec<Value> = posts.try_iter().collect();
    let [post] = &posts[..] else { panic!("{posts:?}") };
    let groups = bench.run(&["groups", "-o", "json", "--from", &into]).ok().json();
    let groups = groups["groups"].as_array().unwrap();
    let alerts = post["alerts"].as_array().unwrap();
    assert_eq!((groups.len(), alerts.len()), (1, 1));
    assert_eq!((&alerts[0]["alert"], &alerts[0]["count"]), (&"new".into(), &5.into()));
    assert_eq!(alerts[0]["group"], groups[0]["fingerprint"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_has_the_incident_on_its_standard_input() {
    let Some(bench) = Bench::with("alert-run", letters(4)).await else { return };
    let (into, file) = (bench.store_url(), bench.file("alerts"));
    let command = format!("cat >> {file}");
    bench.run(&["ingest", "--once", "--into", &into, "--alert-command", &command]).ok();
    let text = std::fs::read_to_string(&file).unwrap();
    let told = text.lines().map(|line| serde_json::from_str(line).unwrap());
    assert_eq!(ids(told), expected(4));
}

#[tokio::test(flavor = "multi_thread")]
async fn letters_do_not_wait_for_an_alert_that_hangs() {
    let Some(bench) = Bench::with("alert-hang", letters(20)).await else { return };
    let into = bench.store_url();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    let mut process = bench.start(&["ingest", "--into", &into, "--alert-url", &url]);
    let begun = std::time::Instant::now();
    let mut left = expected(20);
    while !left.is_empty() {
        let line = process.line().expect("letters are told");
        left.retain(|id| !line.contains(id.as_str()));
    }
    assert!(begun.elapsed() < PATIENCE);
    bench.put(vec![dlq_testkit::fixtures::letter(77)]).await;
    process.says(&dlq_testkit::fixtures::letter(77).id.to_string());
    assert_eq!(bench.run(&["count", "--from", &into]).ok().out, "21\n");
    process.kill();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_told_to_is_refused_before_anything_is_read() {
    let Some(bench) = Bench::with("alert-bad", letters(1)).await else { return };
    let into = bench.store_url();
    for (args, expected) in [
        (["--alert-url", "ftp://ana:s3cret@h/x"], "no URL of HTTP"),
        (["--alert-url", "h/s3cret"], "https://HOST"),
        (["--alert", "teams+https://h/s3cret"], "webhook, slack, pagerduty"),
    ] {
        let ran = bench.run(&[&["ingest", "--once", "--into", &into], &args[..]].concat());
        assert_eq!(ran.code, 2, "{args:?}: {}", ran.err);
        assert!(ran.err.contains(expected) && !ran.err.contains("s3cret"), "{}", ran.err);
    }
    assert!(!std::path::Path::new(&bench.file("dlq.db")).exists());
}
