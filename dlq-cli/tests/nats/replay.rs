//! Sending letters back.

use std::time::Duration;

use dlq_core::{
    BindingKey, DeadLetter, Disposition, LetterId, Message, Origin, Position, Settle as _,
    Source as _,
};
use dlq_nats::async_nats::jetstream::consumer::pull;
use dlq_nats::async_nats::jetstream::stream;
use dlq_nats::{NatsTransport, RetryStream};
use dlq_testkit::fixtures::letter;
use tokio::time::{sleep, timeout};

use crate::common::{Ran, dlq};
use crate::fixture::{Bench, PATIENCE, server_with};

/// Letters of messages that were really published.
pub(crate) struct Born {
    pub(crate) bench: Bench,
    stream: String,
    subject: String,
}

impl Born {
    pub(crate) async fn new(name: &str, count: u64) -> Option<Self> {
        Self::with(name, count, |letter| letter).await
    }

    pub(crate) async fn with(
        name: &str,
        count: u64,
        change: impl Fn(DeadLetter) -> DeadLetter,
    ) -> Option<Self> {
        let bench = Bench::new(name).await?;
        let (stream, subject) = (format!("BORN_{name}"), format!("born-{name}.created"));
        let subjects = vec![format!("born-{name}.>")];
        let config = stream::Config { name: stream.clone(), subjects, ..stream::Config::default() };
        bench.context.create_stream(config).await.unwrap();
        let mut letters = Vec::new();
        for n in 1..=count {
            let published = bench.context.publish(subject.clone(), n.to_string().into());
            let sequence = published.await.unwrap().await.unwrap().sequence;
            let origin = Origin::new("nats", stream.as_str(), Position::Offset(sequence));
            let message = Message::new(subject.as_str(), n.to_string());
            let mut letter = letter(n).with_message(message).with_consumer("billing");
            letter.id = LetterId::of(&origin, None, "billing");
            letter.origin = origin;
            letters.push(change(letter));
        }
        bench.put(letters).await;
        Some(Self { bench, stream, subject })
    }

    /// How many messages the stream has.
    pub(crate) async fn count(&self) -> u64 {
        let stream = self.bench.context.get_stream(&self.stream).await.unwrap();
        stream.get_info().await.unwrap().state.messages
    }

    async fn until(&self, count: u64) {
        let enough = async {
            while self.count().await < count {
                sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(PATIENCE, enough).await.expect("messages are sent");
    }
}

const TO_ORIGIN: [&str; 7] = ["replay", "--all", "--yes", "--to", "origin", "-o", "json"];

#[tokio::test(flavor = "multi_thread")]
async fn g6_what_was_sent_back_is_not_sent_again_from_a_store_that_comes_later() {
    let Some(born) = Born::new("later", 5).await else { return };
    let bench = &born.bench;
    let wrong = "0".repeat(32);
    let ran = bench.run(&["replay", "--id", &wrong, "--yes", "--to", "origin"]);
    assert_eq!(ran.code, 1, "{}", ran.out);
    assert!(ran.err.contains(&wrong), "{}", ran.err);
    let some = [&TO_ORIGIN[..], &["--limit", "2"]].concat();
    assert_eq!(bench.run(&some).ok().json()["sent"], 2);
    let into = bench.store_url();
    assert_eq!(bench.run(&["ingest", "--once", "--into", &into]).ok().out, "5 letters stored\n");
    let count = |status: &str| {
        bench.run(&["count", "--from", &into, "--status", status]).ok().out.trim().to_owned()
    };
    assert_eq!((&*count("pending"), &*count("sent")), ("3", "2"));
}

#[tokio::test(flavor = "multi_thread")]
async fn sent_once_however_often_it_is_asked() {
    let Some(born) = Born::new("once", 30).await else { return };
    let bench = &born.bench;
    let config = pull::Config { durable_name: Some("audit".to_owned()), ..pull::Config::default() };
    bench.context.create_consumer_on_stream(config, &born.stream).await.unwrap();

    let dry = bench.run(&["replay", "--all", "--to", "origin", "--dry-run", "-o", "json"]).ok();
    assert_eq!(dry.json()["plan"]["count"], 30);
    assert_eq!(dry.json()["plan"]["subscribers"][0]["consumer"], "audit");
    assert!(
        dry.err.contains("consumer `audit`") && dry.err.contains("nothing was sent"),
        "{}",
        dry.err
    );
    assert_eq!(born.count().await, 30);

    let ran = bench.run(&TO_ORIGIN).ok();
    assert_eq!(
        (&ran.json()["sent"], &ran.json()["failed"]),
        (&30.into(), &0.into()),
        "{}",
        ran.err
    );
    assert!(ran.err.contains("consumer `audit`"), "{}", ran.err);
    assert_eq!(born.count().await, 60);
    let ran = bench.run(&TO_ORIGIN).ok();
    assert_eq!(ran.json()["sent"], 0);
    assert!(ran.err.contains("30 more match and will be skipped: sent before"), "{}", ran.err);
    assert_eq!(born.count().await, 60);
    assert_eq!(bench.run(&["count", "--status", "sent"]).ok().out, "30\n");

    let again = [&TO_ORIGIN[..], &["--again", "--limit", "5"]].concat();
    let ran = bench.run(&again).ok();
    assert_eq!(ran.json()["sent"], 5);
    let resume = format!("--resume {}", ran.json()["operation"].as_str().unwrap());
    assert!(ran.err.contains(&resume), "it is known before it is killed: {}", ran.err);
    assert_eq!(born.count().await, 65);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_handler_that_failed_hears_it_and_nobody_else() {
    let Some(born) = Born::new("handler", 3).await else { return };
    let bench = &born.bench;
    let args = ["replay", "--all", "--yes", "--retry-stream", "RETRY_handler"];
    let refused = bench.run(&args);
    assert_eq!(refused.code, 2, "{}", refused.err);
    assert!(refused.err.contains("no retry stream `RETRY_handler`"), "{}", refused.err);

    let retries = RetryStream::new().name("RETRY_handler").prefix("retry-handler");
    let consumer = NatsTransport::new(&born.stream).name("billing").retry_stream(retries);
    let mut source = consumer.source(&bench.client).await.unwrap();
    for _ in 0..3 {
        let (delivery, settle) = source.next().await.unwrap().unwrap();
        assert_eq!(delivery.replays(), 0);
        settle.settle(Disposition::Succeeded).await.unwrap();
    }
    assert_eq!(bench.run(&args).ok().out, "3 sent\n");
    for _ in 0..3 {
        let next = timeout(PATIENCE, source.next()).await.expect("it is sent back");
        let (delivery, settle) = next.unwrap().unwrap();
        assert_eq!((delivery.replays(), delivery.delayed_retries()), (1, 0));
        settle.settle(Disposition::Succeeded).await.unwrap();
    }
    assert_eq!(born.count().await, 3);

    // A consumer that has this handler beside others.
    let retries = RetryStream::new().name("RETRY_handler").prefix("retry-handler");
    let till = NatsTransport::new(&born.stream).name("till").retry_stream(retries);
    let mut till = till.source(&bench.client).await.unwrap();
    for _ in 0..3 {
        let (_, settle) = till.next().await.unwrap().unwrap();
        settle.settle(Disposition::Succeeded).await.unwrap();
    }
    let to = |name| [&args[..], &["--again", "--handler-consumer", name]].concat();
    let unread = bench.run(&to("nosuch"));
    assert_eq!(unread.code, 3, "{}", unread.err);
    assert!(unread.err.contains("no consumer called `nosuch`"), "{}", unread.err);
    let origin = bench.run(&[&to("till")[..], &["--to", "origin"]].concat());
    assert_eq!(origin.code, 2, "{}", origin.err);
    assert_eq!(bench.run(&to("till")).ok().out, "3 sent\n");
    for _ in 0..3 {
        let next = timeout(PATIENCE, till.next()).await.expect("it is sent there");
        let (delivery, settle) = next.unwrap().unwrap();
        assert_eq!((delivery.consumer(), delivery.replays()), ("billing", 2));
        settle.settle(Disposition::Succeeded).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn interrupted_or_killed_it_goes_on_where_it_was() {
    const COUNT: u64 = 120;
    let Some(born) = Born::new("stop", COUNT).await else { return };
    let args = [&TO_ORIGIN[..], &["--lease", "1s"]].concat();
    let slowly = [&args[..], &["--rate", "10/s"]].concat();

    let process = born.bench.start(&slowly);
    born.until(COUNT + 5).await;
    process.signal("-INT");
    let ran = process.end();
    assert_eq!(ran.code, 3, "{}", ran.err);
    let (sent, left) = (ran.json()["sent"].as_u64().unwrap(), ran.json()["left"].as_u64().unwrap());
    assert!(sent >= 5 && sent + left == COUNT && left > 0, "{}", ran.out);
    assert!(ran.err.contains("to go on: the same command"), "{}", ran.err);
    assert_eq!(born.count().await, COUNT + sent, "what it says was sent");

    let process = born.bench.start(&slowly);
    born.until(COUNT + sent + 5).await;
    process.kill();

    born.bench.run(&args).ok();
    assert_eq!(born.count().await, 2 * COUNT, "each was sent once");
}

/// An ingest waits for the lease of the replay that died, and looks for what it had sent.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_killed_one_has_sent_is_known_to_an_ingest() {
    let Some(born) = Born::new("unclear", 20).await else { return };
    let slowly = ["--rate", "5/s", "--lease", "1s"];
    let process = born.bench.start(&[&TO_ORIGIN[..], &slowly].concat());
    born.until(20 + 3).await;
    process.kill();
    let into = born.bench.store_url();
    let ran = born.bench.run(&["ingest", "--once", "--into", &into]).ok();
    assert_eq!(ran.out, "20 letters stored\n", "{}", ran.err);
    let sent = born.count().await - 20;
    let counted =
        |status: &str| born.bench.run(&["count", "--from", &into, "--status", status]).ok().out;
    assert_eq!(counted("sent"), format!("{sent}\n"));
    assert_eq!(counted("quarantined"), "0\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_sent_is_said() {
    let tired = |mut letter: DeadLetter| {
        match letter.origin.position() {
            Position::Offset(1) => letter.state.replays = 10,
            Position::Offset(2) => letter.message = letter.message.with_key("k-2"),
            _ => {}
        }
        letter
    };
    let Some(born) = Born::with("unsent", 4, tired).await else { return };
    let ran = born.bench.run(&TO_ORIGIN);
    assert_eq!(ran.code, 3, "{}", ran.err);
    let said = ran.json();
    assert_eq!(
        (&said["sent"], &said["failed"], &said["skipped"]["max_replays"]),
        (&2.into(), &1.into(), &1.into())
    );
    assert_eq!(said["failures"].as_array().unwrap().len(), 1);
    assert!(ran.err.contains("cannot be sent") && ran.err.contains("key"), "{}", ran.err);
    let rest = [&TO_ORIGIN[..], &["--key-header", "key", "--cap", "0"]].concat();
    assert_eq!(born.bench.run(&rest).ok().json()["sent"], 2);
    assert_eq!(born.count().await, 8);
}

#[tokio::test(flavor = "multi_thread")]
async fn g2_a_letter_is_bound_by_the_secret_of_its_consumer() {
    let Some(born) = Born::new("secret", 1).await else { return };
    let file = born.bench.file("secret");
    std::fs::write(&file, "a secret\n").unwrap();
    let bound = [&TO_ORIGIN[..], &["--binding-key-file", &file]].concat();
    assert_eq!(born.bench.run(&bound).ok().json()["sent"], 1);
    let again = [&TO_ORIGIN[..], &["--again"]].concat();
    assert_eq!(born.bench.run(&again).ok().json()["sent"], 1);
    let consumer = NatsTransport::new(&*born.stream)
        .name("billing")
        .without_retries()
        .binding_key(BindingKey::new("a secret"));
    let mut source = consumer.source(&born.bench.client).await.unwrap();
    for expected in [0, 1, 0] {
        let (delivery, settle) = timeout(PATIENCE, source.next()).await.unwrap().unwrap().unwrap();
        assert_eq!(delivery.generation(), expected);
        settle.settle(Disposition::Succeeded).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_will_not_do_is_refused_before_anything_is_sent() {
    let Some(born) = Born::new("refused", 2).await else { return };
    for (args, expected) in [
        (&["--yes"] as &[&str], "--all"),
        (&["--all", "--to", "origin"], "--yes"),
        (&["--all", "--yes", "--to", "nobody.keeps.this"], "nobody.keeps.this"),
        (&["--all", "--yes", "--to", "a.*"], "a.*"),
        (&["--all", "--yes", "--to", "origin", "--canary", "5"], "--canary"),
        (&["--all", "--yes", "--to", "origin", "--wait"], "--wait"),
        (&["--all", "--yes", "--to", "origin", "--note", "x"], "--note"),
        (&["--all", "--yes", "--to", "origin", "--rate", "1/h"], "1/s"),
        (&["--all", "--yes", "--to", "origin", "--resume", "x"], "hexadecimal"),
    ] {
        let ran = born.bench.run(&[&["replay"], args].concat());
        assert_eq!(ran.code, 2, "{args:?}: {}", ran.err);
        assert!(ran.err.contains(expected), "{args:?}: {}", ran.err);
    }
    assert_eq!(born.count().await, 2);
    let other = ["replay", "--all", "--yes", "--to", &born.subject, "-o", "json"];
    assert_eq!(born.bench.run(&other).ok().json()["sent"], 2);
    assert_eq!(born.count().await, 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_letters_cannot_steer_a_terminal() {
    let hostile = |mut letter: DeadLetter| {
        letter.message = Message::new("born.\u{1b}[2J\u{202e}", "x");
        letter
    };
    let Some(born) = Born::with("hostile", 2, hostile).await else { return };
    let args = ["replay", "--all", "--yes", "--to", "origin"];
    for args in [&args as &[&str], &["list"], &["peek"], &["groups"], &["stats"]] {
        let ran = born.bench.run(args);
        assert!(args[0] != "replay" || ran.err.contains("cannot be sent"), "{}", ran.err);
        let bad = ran.out.chars().chain(ran.err.chars());
        let mut bad = bad.filter(|c| (c.is_control() && *c != '\n') || *c == '\u{202e}');
        assert_eq!(bad.next(), None, "{args:?}: {:?} {:?}", ran.out, ran.err);
    }
}

const USERS: &str = r#"{ users: [
    { user: "guest", password: "guest" },
    { user: "dora", password: "s3cret", permissions: { publish: { deny: ["born.>"] } } }
] }"#;

#[tokio::test(flavor = "multi_thread")]
async fn who_may_not_send_letters_is_told_before_anything_is_sent() {
    let Some(server) = tokio::task::block_in_place(|| server_with("authorization", USERS)) else {
        return;
    };
    let client = dlq_nats::async_nats::connect(server.url()).await.unwrap();
    let subjects = vec!["born.>".to_owned()];
    let config = stream::Config { name: "BORN".to_owned(), subjects, ..stream::Config::default() };
    let context = dlq_nats::async_nats::jetstream::new(client.clone());
    context.create_stream(config).await.unwrap();
    let sink = dlq_nats::NatsSink::open(&client, dlq_nats::DlqStream::new()).await.unwrap();
    dlq_core::Sink::put(&sink, vec![letter(1)]).await.unwrap();
    let host = server.url().trim_start_matches("nats://").trim_end_matches('/').to_owned();
    let dora = format!("nats://dora:s3cret@{host}/DLQ");
    let mut replay = dlq(&["replay", "--all", "--to", "born.again", "--yes", "--from", &dora]);
    let ran: Ran = tokio::task::block_in_place(|| replay.output().unwrap().into());
    assert_eq!((ran.code, ran.out.as_str()), (1, ""), "{}", ran.err);
    assert!(ran.err.contains("may not publish to `born.again`"), "{}", ran.err);
    assert!(ran.err.contains("`permissions.publish.allow`"), "{}", ran.err);
}
