//! Servers that are full, killed or not for everybody.

use std::collections::BTreeSet;

use dlq_core::outbox::{Outbox as _, Sent, Settled};
use dlq_core::{Clock as _, StoreErrorKind, SystemClock, Timestamp};
use dlq_redis::{RedisClient, RedisOutbox, redis};
use dlq_testkit::outbox::OutboxFixture as _;
use redis::AsyncCommands as _;

use crate::fixture::{Fixture, Redis7, STREAM, batch, born, send};

async fn settle(
    outbox: &RedisOutbox,
    since: Timestamp,
    numbers: std::ops::Range<u64>,
) -> Vec<Settled> {
    let letters = numbers.map(|n| born(n, STREAM)).collect();
    outbox.settle("dead".to_owned(), since, batch(outbox, letters)).await.unwrap()
}

/// A server without memory takes nothing, not half of it, and takes everything later.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_server_takes_letters_later() {
    let settings = [("maxmemory-policy", "noeviction")];
    let Some(fixture) = Fixture::<Redis7>::new(&settings).await else { return };
    let outbox = fixture.outbox("one").await;
    let mut raw = fixture.raw().await;
    let limit = |bytes: &str| {
        let mut set = redis::cmd("CONFIG");
        set.arg("SET").arg("maxmemory").arg(bytes.to_owned());
        set
    };
    let _: () = limit("1").query_async(&mut raw).await.unwrap();
    let letters = || (0..5).map(|n| born(n, STREAM)).collect();
    let sent = send(&outbox, batch(&outbox, letters())).await;
    assert!(sent.iter().all(|sent| matches!(sent, Sent::Later(_))), "{sent:?}");
    assert_eq!(fixture.entries().await, 0);
    let marks: Vec<String> = raw.keys("*sent:*").await.unwrap();
    assert!(marks.is_empty(), "{marks:?}");
    let _: () = limit("0").query_async(&mut raw).await.unwrap();
    let sent = send(&outbox, batch(&outbox, letters())).await;
    assert!(sent.iter().all(Sent::is_confirmed), "{sent:?}");
    assert_eq!(fixture.entries().await, 5);
}

/// Letters that a server confirmed before it was killed are known to the next sender.
#[tokio::test(flavor = "multi_thread")]
async fn g6_a_killed_server_knows_what_it_has() {
    // Everything that was confirmed has to survive the kill, which a second of delay would leave to chance.
    let settings = [("appendfsync", "always")];
    let Some(mut fixture) = Fixture::<Redis7>::new(&settings).await else { return };
    let since = SystemClock.now();
    let outbox = fixture.outbox("one").await;
    let letters = |numbers: std::ops::Range<u64>| numbers.map(|n| born(n, STREAM)).collect();
    let sent = send(&outbox, batch(&outbox, letters(0..3))).await;
    assert!(sent.iter().all(Sent::is_confirmed), "{sent:?}");
    fixture.server.kill().unwrap();
    let sent = send(&outbox, batch(&outbox, letters(3..6))).await;
    assert!(sent.iter().all(|sent| matches!(sent, Sent::Unknown(_))), "{sent:?}");
    fixture.server.restart().unwrap();
    let settled = settle(&outbox, since, 0..6).await;
    let arrived: Vec<_> = settled.iter().map(|one| matches!(one, Settled::Arrived(_))).collect();
    assert_eq!(arrived, [true, true, true, false, false, false], "{settled:?}");
    let sent = send(&outbox, batch(&outbox, letters(0..6))).await;
    assert!(sent.iter().all(Sent::is_confirmed), "{sent:?}");
    assert_eq!(fixture.entries().await, 6, "each once");
}

/// Marks are kept for a week; of what was claimed before, nobody knows.
#[tokio::test(flavor = "multi_thread")]
async fn an_old_claim_is_unclear() {
    let Some(fixture) = Fixture::<Redis7>::new(&[]).await else { return };
    let outbox = fixture.outbox("one").await;
    let week = std::time::Duration::from_secs(7 * 24 * 3600);
    let settled = settle(&outbox, SystemClock.now().before(week), 0..1).await;
    assert!(matches!(settled[..], [Settled::Unclear(_)]), "{settled:?}");
    send(&outbox, batch(&outbox, vec![born(0, STREAM)])).await;
    let mut raw = fixture.raw().await;
    let marks: Vec<String> = raw.keys("*sent:*").await.unwrap();
    let [mark] = &marks[..] else { panic!("{marks:?}") };
    let left: i64 = raw.pttl(mark).await.unwrap();
    assert!(left > 6 * 24 * 3600 * 1000, "{left}");
}

/// A survey names what is missing, and sends nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_survey_names_rights_and_streams_that_are_missing() {
    let Some(fixture) = Fixture::<Redis7>::new(&[]).await else { return };
    let mut raw = fixture.raw().await;
    let mut user = redis::cmd("ACL");
    user.arg("SETUSER").arg("sender").arg("on").arg(">secret").arg("~*").arg("+@all").arg("-xadd");
    let _: () = user.query_async(&mut raw).await.unwrap();
    let url = fixture.server.url().replace("redis://", "redis://sender:secret@");
    let outbox = RedisOutbox::new(&RedisClient::open(&url).await.unwrap());
    let to = |stream: &str| batch(&outbox, vec![born(1, stream)]).remove(0).to;
    let error = outbox.survey([to(STREAM)].into()).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::InvalidConfig);
    assert!(error.to_string().contains("XADD"), "{error}");
    let sent = send(&outbox, batch(&outbox, vec![born(1, STREAM)])).await;
    assert!(matches!(sent[..], [Sent::Later(_)]), "{sent:?}");

    let outbox = fixture.outbox("one").await;
    let addresses: BTreeSet<_> = [to(STREAM), to("absent"), to("no-stream")].into();
    let survey = outbox.survey(addresses).await.unwrap();
    let closed: Vec<&str> = survey.closed.values().map(String::as_str).collect();
    assert_eq!(closed, ["there is no stream `absent`", "`no-stream` is no stream"]);
    let sent = send(&outbox, batch(&outbox, vec![born(1, "absent")])).await;
    assert!(matches!(sent[..], [Sent::Refused(_)]), "{sent:?}");
    assert_eq!(fixture.entries().await, 0);
}
