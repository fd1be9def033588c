//! Letters as the libraries wrote them are read, and nothing of them is touched.

use dlq_core::log::{Content, Log as _, Range};
use dlq_core::store::Letters as _;
use dlq_core::{Cause, DeadLetter, ErrorClass, Order, PageRequest, Reason};

use super::{BULLMQ, CHASQUIMQ, DRAMATIQ, ForeignServer, RQ, all, entries, everything, reading};

const DEAD: &str = "{chasqui:emails}:dlq";

fn verdict(letter: &DeadLetter) -> (Reason, ErrorClass, Option<Cause>, u32) {
    (letter.reason, letter.class, letter.cause, letter.attempts)
}

fn unknown(letter: &DeadLetter) -> &str {
    letter.attributes.get("dlq.unknown").map_or("", |words| words)
}

fn named<'a>(letters: &'a [DeadLetter], event: &str) -> &'a DeadLetter {
    letters.iter().find(|letter| letter.message.event() == Some(event)).expect(event)
}

fn of_id<'a>(letters: &'a [DeadLetter], id: &str) -> &'a DeadLetter {
    letters.iter().find(|letter| letter.message.id() == Some(id)).expect(id)
}

#[tokio::test(flavor = "multi_thread")]
async fn chasquimq_says_why_by_a_word_and_how_often_in_its_envelope() {
    let Some(place) = ForeignServer::with(CHASQUIMQ).await else { return };
    let letters = all(&place.letters("chasqui:emails")).await;
    assert_eq!(letters.len(), 7);
    let exhausted = (Reason::Exhausted, ErrorClass::Transient, None);
    let tried = named(&letters, "charge");
    assert_eq!(verdict(tried), (exhausted.0, exhausted.1, exhausted.2, 3));
    assert_eq!(tried.message.payload().unwrap(), &b"\x81\xa5order\xa3o-1"[..]);
    assert_eq!(tried.message.id(), Some("01M8A1VJ16FXX5AG58ZB1NYB7C"));
    assert_eq!(tried.message.published_at().unwrap().to_string(), "2026-11-25T19:10:25.830000000Z");
    assert_eq!(tried.died_at.to_string(), "2026-11-25T19:10:26.479000000Z");
    assert_eq!(
        (&*tried.consumer, tried.message.subject(), unknown(tried)),
        ("emails", "emails", "cause")
    );
    assert_eq!((tried.origin.transport(), tried.origin.stream()), ("chasquimq", "chasqui:emails"));
    let own = named(&letters, "own");
    assert_eq!((own.attempts, &*own.attributes["chasquimq.retry"]), (2, "9202c0"));
    let never = named(&letters, "never");
    assert_eq!(verdict(never), (Reason::Permanent, ErrorClass::Permanent, None, 1));
    let causes: Vec<_> = letters.iter().map(|letter| letter.cause).collect();
    let not_run = [
        Some(Cause::Oversize),
        None,
        None,
        None,
        Some(Cause::Decode),
        Some(Cause::Decode),
        Some(Cause::Malformed),
    ];
    assert_eq!(causes, not_run);
    let big = &letters[0];
    assert_eq!((verdict(big).3, big.message.payload().unwrap().len()), (0, 303));
    let payloads: Vec<_> = letters[4..].iter().map(|letter| letter.message.payload()).collect();
    assert_eq!(payloads, [Some(&b"\xc1\xff junk"[..].into()), Some(&b""[..].into()), None]);
    assert_eq!(letters[6].error(), "missing or non-bytes payload field");
    assert_eq!(unknown(&letters[6]), "payload");
    // Nothing tells the last two apart but where they came from.
    assert_ne!(letters[4].id, letters[5].id);
    // Both names are of one key.
    assert_eq!(all(&place.letters(DEAD)).await, letters);
}

#[tokio::test(flavor = "multi_thread")]
async fn chasquimq_reasons_are_read_as_documented_too() {
    let Some(place) = ForeignServer::with("").await else { return };
    let reasons = [
        ("decode_failed", Some(Cause::Decode), Reason::Permanent),
        ("decode_fail", Some(Cause::Decode), Reason::Permanent),
        ("oversize_payload", Some(Cause::Oversize), Reason::Permanent),
        ("oversize", Some(Cause::Oversize), Reason::Permanent),
        ("malformed", Some(Cause::Malformed), Reason::Permanent),
        ("panic", Some(Cause::Panic), Reason::Permanent),
        ("unrecoverable", None, Reason::Permanent),
        ("retries_exhausted", None, Reason::Exhausted),
        ("something new", None, Reason::Manual),
    ];
    for (reason, _, _) in reasons {
        place
            .command(&["XADD", DEAD, "*", "d", "\u{1}", "source_id", "1-1", "reason", reason])
            .await;
    }
    let letters = all(&place.letters(DEAD)).await;
    for ((reason, cause, why), letter) in reasons.iter().zip(&letters) {
        assert_eq!((letter.cause, letter.reason), (*cause, *why), "{reason}");
        let expected = if *reason == "something new" {
            "attempts,cause,class,reason"
        } else {
            unknown(letter)
        };
        assert_eq!(unknown(letter), expected, "{reason}");
        assert_eq!(letter.attributes["chasquimq.reason"], *reason);
    }
    assert_eq!(letters.len(), reasons.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn bullmq_says_how_often_and_with_which_errors() {
    let Some(place) = ForeignServer::with(BULLMQ).await else { return };
    let letters = all(&place.letters("bull:mail:failed")).await;
    let tried = named(&letters, "charge");
    assert_eq!(verdict(tried), (Reason::Exhausted, ErrorClass::Transient, Some(Cause::Error), 2));
    assert_eq!(tried.error(), "cannot pay o-1, try 1");
    assert_eq!(tried.failure().unwrap().error_type, "Error");
    let tries: Vec<_> =
        tried.history.attempts().iter().map(|one| (one.number, one.failure.report())).collect();
    assert_eq!(
        tries,
        [(1, "cannot pay o-1, try 0".to_owned()), (2, "cannot pay o-1, try 1".to_owned())]
    );
    assert!(tried.failure().unwrap().backtrace.as_deref().unwrap().contains("/srv/app/b.js"));
    assert_eq!(tried.message.payload().unwrap(), &br#"{"order":"o-1"}"#[..]);
    assert_eq!((tried.message.id(), tried.deliveries), (Some("1"), 2));
    let never = of_id(&letters, "order-3");
    assert_eq!(verdict(never).0, Reason::Permanent);
    assert_eq!(never.failure().unwrap().error_type, "UnrecoverableError");
    let type_error = named(&letters, "type");
    assert_eq!(type_error.failure().unwrap().error_type, "TypeError");
    assert_eq!(type_error.error(), "Cannot read properties of null (reading 'x')");
    assert_eq!((type_error.reason, unknown(type_error)), (Reason::Exhausted, "class"));
    // A string that was thrown leaves nothing.
    let thrown = named(&letters, "string");
    assert_eq!((thrown.cause, unknown(thrown)), (None, "cause,class"));
    assert_eq!(thrown.attributes["bullmq.failed-reason"], "null");
    assert!(thrown.history.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_of_bullmq_that_has_gone_is_damaged() {
    let Some(place) = ForeignServer::with(BULLMQ).await else { return };
    place.words("DEL bull:mail:1").await;
    place.words("DEL bull:mail:2").await;
    place.words("SET bull:mail:2 text").await;
    let entries = entries(&place.letters("bull:mail:failed"), Range::all()).await;
    let why = |entry: &dlq_core::log::Entry| match &entry.content {
        Content::Damaged(why) => Some(why.clone()),
        _ => None,
    };
    let mut damaged: Vec<_> = entries.iter().filter_map(why).collect();
    damaged.sort();
    assert_eq!(
        damaged,
        ["its job `bull:mail:1` has gone", "the key of its job `2` holds a value of another type"]
    );
    assert_eq!(entries.len(), 7, "the others are read");
}

#[tokio::test(flavor = "multi_thread")]
async fn rq_keeps_its_pickle_and_shows_its_traceback() {
    let Some(place) = ForeignServer::with(RQ).await else { return };
    let letters = all(&place.letters("rq:failed:mail")).await;
    assert_eq!(letters.len(), 3);
    for letter in &letters {
        assert_eq!((letter.cause, &*letter.consumer), (Some(Cause::Error), "mail"));
        assert_eq!(unknown(letter), "attempts,class,reason");
        assert!(letter.message.payload().unwrap().starts_with(b"x\x9c"), "as it stands there");
        assert!(letter.failure().unwrap().backtrace.as_deref().unwrap().starts_with("Traceback"));
    }
    assert!(letters.iter().all(|letter| letter.failure().unwrap().error_type == "ValueError"));
    let mut errors: Vec<_> = letters.iter().map(DeadLetter::error).collect();
    errors.sort();
    let expected =
        ["Invalid attribute name: nosuch", "cannot pay order o-1", "cannot pay order o-2"];
    assert_eq!(errors, expected);
    let forever =
        letters.iter().find(|letter| letter.attributes.contains_key("rq.failure-ttl")).unwrap();
    assert_eq!(forever.attributes["rq.description"], "rqjobs.boom('o-2')");
    assert_eq!(forever.error(), "cannot pay order o-2");
    // Without results there is no error, and the job is there.
    let id = forever.message.id().unwrap().to_owned();
    place.words(&format!("DEL rq:results:{id}")).await;
    let letters = all(&place.letters("rq:failed:mail")).await;
    let bare = of_id(&letters, &id);
    assert_eq!(
        (bare.cause, unknown(bare), bare.id),
        (None, "attempts,cause,class,reason", forever.id)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn dramatiq_keeps_its_message_whole() {
    let Some(place) = ForeignServer::with(DRAMATIQ).await else { return };
    let letters = all(&place.letters("dramatiq:mail.XQ")).await;
    assert_eq!(letters.len(), 4);
    let tried: Vec<_> = letters.iter().filter(|one| one.message.event() == Some("boom")).collect();
    assert_eq!(tried.len(), 2);
    for letter in tried {
        assert_eq!(
            verdict(letter),
            (Reason::Exhausted, ErrorClass::Transient, Some(Cause::Error), 3)
        );
        assert_eq!(letter.failure().unwrap().error_type, "ValueError");
        // The last run leaves no trace but its number.
        let tried: Vec<_> = letter.history.attempts().iter().map(|one| one.number).collect();
        assert_eq!(tried, [2]);
        assert!(letter.failure().unwrap().at < letter.died_at);
        assert!(letter.message.payload().unwrap().starts_with(br#"{"queue_name":"mail""#));
    }
    let bare = named(&letters, "nosuch");
    assert_eq!((bare.cause, unknown(bare)), (None, "attempts,cause,class,reason"));
}

#[tokio::test(flavor = "multi_thread")]
async fn letters_are_grouped_by_their_errors() {
    let Some(place) = ForeignServer::with(DRAMATIQ).await else { return };
    let letters = reading(&place.letters("dramatiq:mail.XQ")).await;
    let groups = letters.groups(everything(), 10).await.unwrap();
    let counts: Vec<_> =
        groups.iter().map(|group| (group.count, group.sample.error.clone())).collect();
    assert!(counts.contains(&(2, "cannot pay order o-1".to_owned())), "{counts:?}");
    assert_eq!(letters.count(everything().error("cannot pay")).await.unwrap(), 2);
    assert_eq!(letters.stats(everything()).await.unwrap().total, 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn reading_leaves_every_key_as_it_was() {
    let fixture = [CHASQUIMQ, BULLMQ, RQ, DRAMATIQ].concat();
    let Some(place) = ForeignServer::with(&fixture).await else { return };
    let before = place.dump().await;
    assert!(before.0.len() > 15);
    for key in ["chasqui:emails", "bull:mail:failed", "rq:failed:mail", "dramatiq:mail.XQ"] {
        let letters = place.letters(key);
        let reading = reading(&letters).await;
        reading.groups(everything(), 10).await.unwrap();
        letters.check().await.unwrap();
        assert_eq!(letters.marks().await.unwrap(), [], "{key}");
        let mut follow = letters
            .until_end()
            .follow("store".to_owned(), std::time::Duration::ZERO)
            .await
            .unwrap();
        dlq_core::log::Entries::next(&mut follow, 100).await.unwrap();
        dlq_core::log::Entries::confirm(&mut follow).await.unwrap();
    }
    assert_eq!(place.dump().await, before);
}

/// Far more than a page, of which many have one score, and with payloads that a reading does not keep.
#[tokio::test(flavor = "multi_thread")]
async fn more_than_a_page_is_read_both_ways() {
    const LETTERS: usize = 1_500;
    let Some(place) = ForeignServer::with("").await else { return };
    let payload = "x".repeat(2_000);
    for number in 0..LETTERS {
        let id = number.to_string();
        // The first 700 have one score, as RQ gives it to what never expires.
        let score =
            if number < 700 { "-1".to_owned() } else { (1_790_000_000_000 + number).to_string() };
        let data = format!("{number} {payload}");
        place.command(&["ZADD", "bull:q:failed", &score, &id]).await;
        let at = (1_790_000_000_000 + number).to_string();
        let job = format!("bull:q:{number}");
        place
            .command(&[
                "HSET",
                &job,
                "name",
                "n",
                "data",
                &data,
                "timestamp",
                &at,
                "finishedOn",
                &at,
                "atm",
                "1",
            ])
            .await;
        let number = number.to_string();
        place
            .command(&[
                "XADD",
                "{chasqui:q}:dlq",
                &format!("1790000000000-{number}"),
                "d",
                &data,
                "source_id",
                &number,
                "reason",
                "decode_failed",
            ])
            .await;
    }
    for key in ["bull:q:failed", "{chasqui:q}:dlq"] {
        let letters = place.letters(key);
        assert_eq!(letters.entries().await.unwrap(), LETTERS as u64);
        let reading = reading(&letters).await;
        for order in [Order::OldestFirst, Order::NewestFirst] {
            let (mut after, mut ids) = (None, Vec::new());
            loop {
                let page = PageRequest::new().limit(100).order(order).after(after);
                let page = reading.list(everything(), page).await.unwrap();
                ids.extend(page.letters.iter().map(|letter| letter.id));
                after = page.next;
                if after.is_none() {
                    break;
                }
            }
            let count = ids.len();
            ids.sort_unstable();
            ids.dedup();
            assert_eq!((count, ids.len()), (LETTERS, LETTERS), "{key}");
            // Payloads are fetched by their places.
            let whole = reading.get_all(ids[..300].to_vec()).await.unwrap();
            assert_eq!(whole.len(), 300, "{key}");
            assert!(whole.iter().all(|letter| letter.message.payload().unwrap().len() > 2_000));
        }
        let last = entries(&letters, Range::all().last(10)).await;
        assert_eq!(last.len(), 10, "{key}");
    }
    let since = dlq_core::Timestamp::from_millis(1_790_000_000_000 + 1_400);
    let late = entries(&place.letters("bull:q:failed"), Range::all().since(since)).await;
    assert_eq!(late.len(), 100);
}

/// Members that go while the set is read hide none of the others.
#[tokio::test(flavor = "multi_thread")]
async fn members_that_go_meanwhile_hide_no_others() {
    use dlq_core::log::Entries as _;

    let Some(place) = ForeignServer::with("").await else { return };
    for number in 0..1_200 {
        let score = if number < 900 { 5 } else { 6 };
        place.words(&format!("ZADD bull:q:failed {score} {number:04}")).await;
        place
            .words(&format!(
                "HSET bull:q:{number:04} name n data {number} timestamp {number} atm 1"
            ))
            .await;
    }
    let mut reading = place.letters("bull:q:failed").read(Range::all()).await.unwrap();
    let mut found = Vec::new();
    let mut removed = 0;
    loop {
        let batch = reading.next(64).await.unwrap();
        if batch.is_empty() {
            break;
        }
        let ids = batch.iter().filter_map(|one| one.letter()?.message.id().map(str::to_owned));
        found.extend(ids.collect::<Vec<_>>());
        // What was read goes, as others send it back, with the very last of it.
        for id in &found[removed..] {
            place.words(&format!("ZREM bull:q:failed {id}")).await;
        }
        removed = found.len();
    }
    found.sort();
    let all: Vec<String> = (0..1_200).map(|number| format!("{number:04}")).collect();
    assert_eq!(found, all);
}
