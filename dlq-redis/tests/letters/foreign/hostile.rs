//! Hostile content: reading neither fails nor loses a letter.

use dlq_core::log::{Content, Log as _, Range};
use dlq_redis::foreign::ForeignLetters;

use super::{ForeignServer, entries};

#[tokio::test(flavor = "multi_thread")]
async fn hostile_content_is_read_and_kept() {
    let Some(place) = ForeignServer::with("").await else { return };
    let deep = "[".repeat(200_000);
    let values: [&[u8]; 8] = [
        b"",
        b"null",
        b"{",
        b"\xff\xfe\x00",
        deep.as_bytes(),
        b"[1,2,{}]",
        br#"{"message_id":7,"actor_name":null,"options":[]}"#,
        br#"{"actor_name":"a","message_id":"m","options":{"retries":4294967295,"traceback":"\ud83d\ude00"}}"#,
    ];
    for (number, value) in values.iter().enumerate() {
        let id = format!("id\n{number}");
        for (set, job) in [("bull:q:failed", "bull:q:"), ("rq:failed:q", "rq:job:")] {
            place.command(&["ZADD", set, "inf", &id]).await;
            let job = format!("{job}{id}");
            for field in [
                "name",
                "data",
                "opts",
                "timestamp",
                "finishedOn",
                "atm",
                "stacktrace",
                "failedReason",
                "created_at",
                "exc_info",
            ] {
                place.command(&[b"HSET", job.as_bytes(), field.as_bytes(), value]).await;
            }
        }
        let results = format!("rq:results:{id}");
        place.command(&[b"XADD", results.as_bytes(), b"*", b"exc_string", value]).await;
        place.command(&["ZADD", "dramatiq:q.XQ", "-inf", &id]).await;
        place.command(&[b"HSET" as &[u8], b"dramatiq:q.XQ.msgs", id.as_bytes(), value]).await;
        place
            .command(&[
                b"XADD" as &[u8],
                b"{chasqui:q}:dlq",
                b"*",
                b"d",
                value,
                b"n",
                value,
                b"source_id",
                value,
                b"reason",
                value,
            ])
            .await;
    }
    let mut nested = vec![0x95, 0xa1, b'a', 0xc4, 0, 1, 1];
    nested.extend([0x91; 100_000]);
    place
        .command(&[
            b"XADD" as &[u8],
            b"{chasqui:q}:dlq",
            b"*",
            b"d",
            &nested,
            b"source_id",
            b"1-1",
            b"reason",
            b"x",
        ])
        .await;
    let hash = "bull:q:number".to_owned();
    place.command(&["ZADD", "bull:q:failed", "1", "number"]).await;
    place
        .command(&[
            "HSET",
            &hash,
            "timestamp",
            "99999999999999999999",
            "finishedOn",
            "-5",
            "atm",
            "-1",
            "opts",
            r#"{"attempts":-3}"#,
        ])
        .await;
    for (key, letters) in
        [("bull:q:failed", 9), ("rq:failed:q", 8), ("dramatiq:q.XQ", 8), ("chasqui:q", 9)]
    {
        let found = entries(&place.letters(key), Range::all()).await;
        assert_eq!(found.len(), letters, "{key}");
        for entry in &found {
            let Content::Letter(letter) = &entry.content else { panic!("{key}: {entry:?}") };
            assert!(letter.attributes.values().all(|value| value.len() <= 1024), "{key}");
            assert!(
                letter.attributes["dlq.unknown"].contains("class") || letter.attempts > 1,
                "{key}"
            );
        }
        // The bytes are there, each of them.
        let payloads: Vec<_> =
            found.iter().filter_map(|one| one.letter()?.message.payload()).collect();
        for value in values {
            assert!(payloads.iter().any(|payload| **payload == *value), "{key}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn entries_of_somebody_else_are_passed_over() {
    let Some(place) = ForeignServer::with("").await else { return };
    place.words("XADD {chasqui:q}:dlq * type paid").await;
    place.words("XADD {chasqui:q}:dlq * source_id 1-1 reason malformed").await;
    place.words("ZADD dramatiq:q.XQ 5 gone").await;
    let found = entries(&place.letters("chasqui:q"), Range::all()).await;
    assert!(matches!(&found[0].content, Content::Foreign), "{found:?}");
    assert!(matches!(&found[1].content, Content::Damaged(_)), "{found:?}");
    let found = entries(&place.letters("dramatiq:q.XQ"), Range::all()).await;
    let Content::Damaged(why) = &found[0].content else { panic!("{found:?}") };
    assert!(why.contains("`gone` has gone from the hash"), "{why}");
    let findings = place.letters("chasqui:q").check().await.unwrap();
    assert!(
        findings.iter().any(|one| one.to_string().contains("1 foreign and 1 damaged")),
        "{findings:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_is_not_there_or_of_another_type_is_named() {
    let Some(place) = ForeignServer::with("").await else { return };
    let error = place.letters("chasqui:emails").read(Range::all()).await.unwrap_err();
    assert!(error.to_string().contains("there is no `{chasqui:emails}:dlq`"), "{error}");
    place.words("SET rq:failed:q text").await;
    for error in [
        place.letters("rq:failed:q").read(Range::all()).await.unwrap_err(),
        place.letters("rq:failed:q").entries().await.unwrap_err(),
    ] {
        assert!(error.to_string().contains("`rq:failed:q` is a string"), "{error}");
    }
    assert!(ForeignLetters::of(&place.client, "{orders}:dlq").is_none());
}
