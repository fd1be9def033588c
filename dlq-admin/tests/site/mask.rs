//! Rules by which parts of messages are masked, and what the console does with them.

use dlq_admin::mask::{MASK, MASKED, Mask};
use dlq_admin::{Admin, Role};
use dlq_core::store::{Actor, AuditEntry, Edit, Hands};
use dlq_core::{Message, Timestamp};
use dlq_testkit::fixtures;

use crate::common::{Site, tokens};

fn masked(rules: &[&str], payload: &str) -> String {
    let message = Message::new("s", payload.to_owned());
    let masked = Mask::new(rules).unwrap().message(&message).unwrap_or(message);
    String::from_utf8(masked.payload().unwrap().to_vec()).unwrap()
}

#[test]
fn a_rule_masks_what_it_leads_to_and_nothing_else() {
    let json = r#"{ "id":12345678901234567890123, "card": {"number": "4111", "cvc":[1, {"a":2}]}, "to":[{"iban":"x"},{"iban":"y"}] }"#;
    for (rule, from, to) in [
        ("$.card.number", r#""4111""#, r#""***""#),
        ("$['card'][\"number\"]", r#""4111""#, r#""***""#),
        ("$.card", r#"{"number": "4111", "cvc":[1, {"a":2}]}"#, r#""***""#),
        ("$.card.cvc[1]", r#"{"a":2}"#, r#""***""#),
        ("$.card.cvc[1].*", "2", r#""***""#),
        ("$.to[*].iban", r#"[{"iban":"x"},{"iban":"y"}]"#, r#"[{"iban":"***"},{"iban":"***"}]"#),
        ("$.*[0].iban", r#""x""#, r#""***""#),
        ("$..number", r#""4111""#, r#""***""#),
        ("$..cvc..a", "2", r#""***""#),
        ("$.to..[1]", r#"{"iban":"y"}"#, r#""***""#),
    ] {
        let at = if rule == "$.card.cvc[1].*" || rule == "$..cvc..a" {
            json.replace(r#""a":2"#, r#""a":"***""#)
        } else {
            json.replacen(from, to, 1)
        };
        assert_eq!(masked(&[rule], json), at, "{rule}");
    }
    for rule in ["$.number", "$.card.Number", "$.to.iban", "$.card[0]", "$.id.x", "headers.card"] {
        assert_eq!(masked(&[rule], json), json, "{rule}");
    }
    assert_eq!(masked(&["$"], json), r#""***""#);
    assert_eq!(
        masked(&["$.id", "$.card", "$.to"], json),
        r#"{ "id":"***", "card": "***", "to":"***" }"#
    );
}

#[test]
fn no_way_to_write_a_value_escapes_a_rule() {
    // Fields of one name, of which parsers keep one.
    assert_eq!(masked(&["$.a.b"], r#"{"a":{"b":1},"a":{}}"#), r#"{"a":{"b":"***"},"a":{}}"#);
    assert_eq!(masked(&["$.number"], r#"{"n\u0075mber":1}"#), r#"{"n\u0075mber":"***"}"#);
    assert_eq!(masked(&["$.*"], r#"{"\ud800":1}"#), r#"{"\ud800":"***"}"#);
    assert_eq!(masked(&["$.a"], r#"{"b":"\\","a":"\"}"}"#), r#"{"b":"\\","a":"***"}"#);
    assert_eq!(masked(&["$.a"], "{\"a\" :\n-1.5e3 }"), "{\"a\" :\n\"***\" }");
    for hidden in
        ["card=4111", "{\"a\":1}{\"a\":1}", "{\"a\":", "\u{feff}{\"a\":1}", &"[".repeat(100_000)]
    {
        let shown = masked(&["$.a"], hidden);
        let hash = blake3::hash(hidden.as_bytes()).to_hex();
        let expected = format!("*** {} bytes that are not JSON, BLAKE3 {hash}", hidden.len());
        assert_eq!(shown, expected);
        assert_eq!(masked(&["headers.a", "key"], hidden), hidden, "no rule is about the payload");
    }
    let deep = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
    assert_eq!(masked(&["$..a"], &deep(200)), deep(200));
    assert!(masked(&["$..a"], &deep(300)).starts_with("*** 600 bytes"));
    // As many ways as there are levels lead to the innermost value.
    let nested = r#"{"a":"#.repeat(200) + "1" + &"}".repeat(200);
    assert_eq!(masked(&["$..a..a..a..a..b"], &nested), nested);
}

#[test]
fn what_is_no_rule_is_refused_with_what_is() {
    for wrong in [
        "",
        "card",
        "$card",
        "$.",
        "$..",
        "$[",
        "$[]",
        "$['a",
        "$['a'",
        "$[-1]",
        "$[0:2]",
        "$[?(@.a)]",
        "$.a b",
        "$. a",
        "headers.",
        "headers",
        "Key",
        "$.[0]",
        "$['a\\u0062']",
        "$.a.[*]",
    ] {
        let error = Mask::new([wrong]).unwrap_err().to_string();
        let start = format!("cannot mask `{wrong}`: ");
        assert!(error.starts_with(&start) && error.contains("; write $.NAME"), "{error}");
    }
}

#[test]
fn headers_and_the_key_are_masked_and_the_letter_says_so() {
    let message = Message::new("s", "plain").with_key("ana").with_header("Authorization", "s3cret");
    let letter = fixtures::letter(1).with_message(message.with_header("other", "x"));
    let mask = Mask::new(["headers.authorization", "key"]).unwrap();
    let masked = mask.letter(&letter).unwrap();
    let expected = Message::new("s", "plain").with_key(MASK).with_header("Authorization", MASK);
    assert_eq!(masked.message, expected.with_header("other", "x"));
    assert_eq!(masked.attributes[MASKED], "headers, key");
    assert_eq!(
        Mask::new(["headers.*"]).unwrap().letter(&letter).unwrap().attributes[MASKED],
        "headers"
    );
    for rules in [&["headers.auth"] as &[&str], &[]] {
        assert_eq!(Mask::new(rules).unwrap().letter(&letter), None);
    }
}

#[test]
fn the_audit_of_an_edit_is_masked() {
    let payload = r#"{"card":"s3cret","n":1}"#;
    let message = Message::new("s", payload).with_header("H", "s3cret");
    let mut letter = fixtures::letter(1).with_message(message);
    let edit = Edit::new().payload(r#"{"card":"s3cret","n":2}"#).set_header("H", "s3cret2");
    let hands = Hands { is_held: false, is_record: false };
    let subject = edit.amend(&mut letter, hands, Timestamp::EPOCH).unwrap().subject;
    let entry = |subject: String| AuditEntry {
        number: 1,
        at: Timestamp::EPOCH,
        by: Actor::new("ana"),
        action: "edit".to_owned(),
        subject,
        affected: 1,
        operation: None,
    };
    let shown = |rules: &[&str], subject: &str| {
        Mask::new(rules).unwrap().entry(&entry(subject.to_owned())).subject
    };
    let masked = shown(&["$.card", "headers.h"], &subject);
    assert!(!masked.contains("s3cret") && masked.contains(r#"\"n\":2"#), "{masked}");
    assert_eq!(shown(&["$.other", "headers.i"], &subject), subject);
    // Of a long payload there is the beginning alone.
    let edit = Edit::new().payload(format!(r#"{{"card":"s3cret","n":"{}"}}"#, "x".repeat(8_000)));
    let subject = edit.amend(&mut letter, hands, Timestamp::EPOCH).unwrap().subject;
    assert!(!shown(&["$.card"], &subject).contains("s3cret"));
    assert!(shown(&["headers.h"], &subject).contains("s3cret"));
}

#[test]
fn a_mask_that_is_written_back_is_noticed() {
    let mask = Mask::new(["$.card", "headers.h"]).unwrap();
    let message = |payload: &str| Message::new("s", payload.to_owned());
    let before = message(r#"{"card":"4111","n":1}"#).with_header("h", "x");
    let seen = mask.message(&before).unwrap();
    assert!(mask.is_written(&before, &seen));
    assert!(mask.is_written(&before, &seen.clone().with_headers(before.headers().clone())));
    assert!(mask.is_written(&before, &before.clone().with_headers(seen.headers().clone())));
    assert!(!mask.is_written(&before, &message(r#"{"card":"4222","n":"***"}"#)));
    // Somebody else's.
    assert!(!mask.is_written(&seen, &seen));
    let text = message("card=4111");
    assert!(mask.is_written(&text, &mask.message(&text).unwrap()));
    assert!(!mask.is_written(&text, &message("card=4222")));
}

/// Masked parts are seen by the role `admin` alone, with a reason.
#[tokio::test]
async fn the_console_masks_for_everybody() {
    let payload = r#"{"card":"s3cret","n":1}"#;
    let message = Message::new("s", payload).with_header("authorization", "s3cret");
    let letter = fixtures::letter(1).with_message(message);
    let id = letter.id;
    let site = Site::of(vec![letter]).await;
    let mask = Mask::new(["$.card", "headers.authorization"]).unwrap();
    let admin = Admin::new(site.letters.clone()).access(tokens()).mask(mask);
    let mut site = site.router(admin.router());
    let (page, api) = (format!("/s/default/letters/{id}"), format!("/api/v1/default/letters/{id}"));
    let edit =
        serde_json::json!({ "payload-text": r#"{"card":"s3cret2","n":2}"#, "note": "a typo" });
    site = site.bearer(Role::Admin);
    let edited = site.post_json(&format!("{api}/edit"), edit).await.ok().body;
    assert!(edited.contains("true") && !edited.contains("s3cret"), "{edited}");
    let shown_masked =
        serde_json::json!({ "payload-text": r#"{"card":"***","n":3}"#, "note": "x" });
    let refused = site.post_json(&format!("{api}/edit"), shown_masked).await.is(422).body;
    assert!(refused.contains("would write `***`"), "{refused}");
    for role in [Role::Read, Role::Operate, Role::Admin] {
        site = site.bearer(role);
        for path in [
            &page,
            &api,
            &format!("{page}?view=hex"),
            &format!("{page}/payload"),
            &format!("{page}/edit"),
            "/s/default/audit",
            "/api/v1/default/audit",
        ] {
            let reply = site.get(path).await;
            assert!(!reply.body.contains("s3cret"), "{role} {path}: {}", reply.body);
            // A role that sees the message sees the rest of it.
            let is_shown = role >= Role::Operate && (*path == api || path.ends_with("/payload"));
            assert_eq!(is_shown, is_shown && reply.body.contains("***"), "{}", reply.body);
        }
        let reveal =
            site.post_json(&format!("{api}/reveal"), serde_json::json!({ "note": "y" })).await.ok();
        assert_eq!(reveal.body.contains("s3cret2"), role == Role::Admin, "{role}: {}", reveal.body);
        let reveal = site.post(&format!("{page}/reveal"), "note=y").await.ok().body;
        assert_eq!(reveal.contains("s3cret2"), role == Role::Admin, "{role}: {reveal}");
        assert_eq!(reveal.contains("id=\"masked\""), role != Role::Admin, "{role}: {reveal}");
        let then = site.post(&format!("{page}/reveal"), "note=y&then=edit").await.ok().body;
        assert_eq!(then.contains("s3cret2"), role == Role::Admin, "{role}: {then}");
        assert_eq!(then.contains("<textarea"), role == Role::Admin, "{role}: {then}");
    }
    let preview = "mode=text&text=%7B%22card%22%3A%22s3cret3%22%2C%22n%22%3A4%7D";
    let preview = site.post(&format!("{page}/edit"), preview).await.ok().body;
    let diff = preview.split_once("<pre").unwrap().1.split_once("</pre>").unwrap().0;
    assert!(diff.contains("***") && diff.contains('4') && !diff.contains("s3cret"), "{diff}");
}
