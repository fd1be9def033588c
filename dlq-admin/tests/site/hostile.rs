//! Letters that were written to harm who looks at them.

use dlq_core::store::Maintenance as _;
use dlq_core::store::{Actor, GroupKey, GroupUpdate, Heartbeat, Mark, OperationSpec, Selection};
use dlq_core::{
    Attempt, Cause, DeadLetter, ErrorClass, Failure, Filter, History, Message, Origin, Position,
    Reason,
};
use dlq_testkit::fixtures::letter;

use crate::common::{Site, form};

const HOSTILE: &[&str] = &[
    "<script>alert(1)</script>",
    "\"><img src=x onerror=alert(1)>",
    "' onmouseover='alert(1)' x='",
    "\" autofocus onfocus=alert(1) x=\"",
    "javascript:alert(1)",
    "</textarea><script>alert(1)</script>",
    "</pre></td></table><form action=//evil.example>",
    "<!--<svg/onload=alert(1)>",
    "&lt;script&gt;&#x3c;b&#62;",
    "\u{202e}gnp.exe\u{2066}\u{200b}",
    "\u{1b}[31m\u{7}\u{9b}2J",
    "a\r\nSet-Cookie: x=y\r\n\r\n<b>",
    "{{7*7}}${7*7}<%= 7*7 %>",
    "../../../etc/passwd",
    "%00%0d%0a<b>",
    "\u{2028}</script>\u{2029}",
    "]]><script>",
    "a'b\"c`d<e>f&g",
];

/// A letter in which every text is `text`.
fn hostile(text: &str, n: u64) -> DeadLetter {
    let message = Message::new(format!("s {text}"), format!("{text} {text}"))
        .with_id(format!("{text}{n}"))
        .with_event(text.to_owned())
        .with_key(text.to_owned())
        .with_header(text.to_owned(), text.to_owned())
        .with_header("traceparent", text.to_owned());
    let origin = Origin::new("memory", text, Position::Offset(n)).with_cluster(text);
    let mut failure =
        Failure::new(ErrorClass::Permanent, Cause::Panic, text, text).with_location(text);
    failure.messages = vec![text.to_owned(), format!("{text} again"), "x".repeat(400) + text];
    failure.backtrace = Some(format!("0: {text}\n1: {text}"));
    failure.group = Some(text.to_owned());
    let mut history = History::new();
    history.push(Attempt { number: 1, generation: 0, failure });
    let mut letter =
        DeadLetter::new(message, origin, text, Reason::Permanent).with_history(history);
    letter.service = Some(text.to_owned());
    letter.attributes.insert(text.to_owned(), text.to_owned());
    letter
}

const TAGS: &[&str] = &[
    "html", "head", "meta", "title", "link", "script", "body", "a", "header", "nav", "ul", "li",
    "div", "span", "form", "button", "main", "h1", "h2", "p", "strong", "section", "table",
    "thead", "tbody", "tr", "th", "td", "code", "time", "details", "summary", "fieldset", "legend",
    "label", "input", "small", "dl", "dt", "dd", "ol", "pre", "br", "progress", "textarea", "del",
    "ins", "datalist", "select", "option", "svg", "rect", "line", "text",
];

/// Reads a page as a browser does, and fails at everything that none of our templates has.
#[track_caller]
fn read(page: &str, about: &str) {
    let mut rest =
        page.strip_prefix("<!DOCTYPE html>").unwrap_or_else(|| panic!("{about}: {page}"));
    let mut scripts = 0;
    while let Some((text, tag)) = rest.split_once('<') {
        let is_field = page[..page.len() - rest.len()].ends_with("spellcheck=\"false\">");
        // A field has its text as it is, or it would not come back as it was.
        let is_unseen = |char: &char| matches!(char, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}');
        let steers =
            |char: &char| !is_field && *char != '\n' && (char.is_control() || is_unseen(char));
        assert_eq!(text.chars().find(steers), None, "{about}: {text:?}");
        assert!(!text.contains('>'), "{about}: {text:?}");
        let name: String =
            tag.chars().take_while(|char| char.is_ascii_alphanumeric() || *char == '/').collect();
        assert!(
            TAGS.contains(&name.trim_start_matches('/')),
            "{about}: <{}",
            &tag[..tag.len().min(60)]
        );
        let mut attributes = &tag[name.len()..];
        loop {
            attributes = attributes.trim_start_matches(' ');
            if let Some(end) = attributes.strip_prefix('>') {
                rest = end;
                break;
            }
            let attribute: String = attributes
                .chars()
                .take_while(|char| char.is_ascii_alphanumeric() || *char == '-')
                .collect();
            let name = attribute.to_ascii_lowercase();
            assert!(
                !name.is_empty() && !name.starts_with("on") && name != "style",
                "{about}: <{}",
                &tag[..tag.len().min(200)]
            );
            attributes = &attributes[attribute.len()..];
            let Some(value) = attributes.strip_prefix("=\"") else { continue };
            let (value, behind) = value.split_once('"').unwrap();
            assert!(!value.contains('<'), "{about}: {attribute}={value}");
            if ["href", "src", "action", "formaction"].contains(&&*name) {
                let is_ours =
                    value.starts_with("./") || value.starts_with("../") || value == "#main";
                assert!(
                    is_ours && !value.contains(char::is_whitespace),
                    "{about}: {attribute}={value}"
                );
            }
            attributes = behind;
        }
        scripts += usize::from(name == "script");
    }
    assert_eq!(scripts, 1, "{about}");
    assert!(page.len() < 150_000, "{about}: {} bytes", page.len());
}

async fn site() -> Site {
    let letters: Vec<_> = HOSTILE.iter().zip(1000..).map(|(text, n)| hostile(text, n)).collect();
    Site::of(letters).await
}

#[tokio::test]
async fn no_text_of_a_letter_becomes_more_than_text() {
    let site = site().await;
    let by = |text: &str| Actor::new(text).with_note(text);
    for (text, n) in HOSTILE.iter().zip(1000..) {
        let one = hostile(text, n);
        let filter = Filter::new().with_id(one.id);
        let edit = dlq_core::store::Edit::new()
            .payload(format!("{text} edited"))
            .set_header(*text, "x")
            .allow_invalid();
        let _ = site.letters.edit(one.id, edit, by(text)).await.unwrap();
        let selection = Selection::matching(filter.clone().error(*text)).unwrap();
        site.letters.store().mark(selection, Mark::Pending, by(text)).await.unwrap();
        let operation =
            site.letters.replay(OperationSpec::replay(filter.clone()), by(text)).await.unwrap();
        let id = one.id;
        let query = form(&[
            ("error", text),
            ("consumer", text),
            ("attr", &format!("{text}={text}")),
            ("event-id", text),
        ]);
        let key = GroupKey::new(one.consumer.clone(), one.fingerprint);
        let noted = GroupUpdate::new().owner(*text).note(*text);
        site.letters.update_group(key, noted, by(text)).await.unwrap();
        let heartbeat = Heartbeat::new(*text, *text).host(*text).build(*text).reads([*text]);
        site.letters.store().heartbeat(heartbeat).await.unwrap();
        let group = form(&[("fingerprint", &one.fingerprint.to_string()), ("consumer", text)]);
        for path in [
            format!("/s/default/letters/{id}"),
            format!("/s/default/letters/{id}?view=text"),
            format!("/s/default/letters/{id}?view=hex"),
            format!("/s/default/letters/{id}/attempts/0"),
            format!("/s/default/letters/{id}/edit"),
            format!("/s/default/letters?{query}"),
            format!("/s/default/groups?{query}"),
            format!("/s/default/group?{group}"),
            format!("/s/default/change?verb=delete&{group}"),
            format!("/s/default/replay?{group}"),
            format!("/s/default/operations/{}", operation.id),
            format!("/s/default/audit?by={}", form(&[("x", text)]).trim_start_matches("x=")),
        ] {
            let reply = site.get(&path).await;
            assert_eq!(reply.status, 200, "{path}: {}", reply.body);
            read(&reply.body, &path);
        }
        let preview = form(&[
            ("mode", "text"),
            ("text", text),
            ("set", &format!("h={}", text.replace(['\r', '\n'], " "))),
            ("allow-invalid", "true"),
        ]);
        let reply = site.post(&format!("/s/default/letters/{id}/edit"), &preview).await.ok();
        read(&reply.body, text);
        let reveal = site
            .post(&format!("/s/default/letters/{id}/reveal"), &form(&[("note", text)]))
            .await
            .ok();
        read(&reveal.body, text);
    }
    for path in [
        "/s/default",
        "/s/default/letters",
        "/s/default/groups",
        "/s/default/operations",
        "/s/default/consumers",
        "/s/default/schedule",
        "/s/default/audit",
    ] {
        read(&site.get(path).await.ok().body, path);
    }
}

#[tokio::test]
async fn errors_and_paths_are_text_too() {
    let site = site().await;
    for text in HOSTILE {
        let segment: String = text.bytes().map(|byte| format!("%{byte:02x}")).collect();
        for path in [
            format!("/s/default/letters/{segment}"),
            format!("/s/default/operations/{segment}"),
            format!("/s/{segment}/letters"),
            format!("/s/{segment}"),
            format!("/{segment}"),
            format!("/assets/{segment}"),
            format!("/s/default/letters?{}", form(&[(text, text)])),
            format!("/s/default/letters?{}", form(&[("status", text)])),
            format!("/s/default/letters?{}", form(&[("cursor", text)])),
            format!("/s/default/group?{}", form(&[("fingerprint", text)])),
        ] {
            let reply = site.get(&path).await;
            assert!(reply.status.is_client_error(), "{path}: {}", reply.status);
            read(&reply.body, &path);
        }
    }
}

#[tokio::test]
async fn paths_lead_nowhere_else() {
    let site = site().await;
    for path in [
        "/assets/../Cargo.toml",
        "/assets/..%2f..%2fCargo.toml",
        "/assets/%2e%2e/%2e%2e/etc/passwd",
        "/assets//etc/passwd",
        "/s/default/../../etc/passwd",
        "/s/default/letters/..%2f..%2f..%2fetc%2fpasswd",
        "/api/v1/default/letters/%2e%2e%2f",
        "/assets/style.css/..",
    ] {
        let reply = site.get(path).await;
        assert!(reply.status.is_client_error(), "{path}: {} {}", reply.status, reply.body);
        assert!(!reply.body.contains("root:") && !reply.body.contains("[package]"), "{path}");
    }
}

#[tokio::test]
async fn every_answer_tells_the_browser_to_run_nothing() {
    let site = site().await;
    let id = letter(0).id;
    for path in [
        "/",
        "/s/default",
        "/login",
        "/nothing",
        "/api/v1/default/letters",
        "/assets/style.css",
        &format!("/s/default/letters/{id}"),
        "/s/default/mark",
    ] {
        let reply = site.get(path).await;
        let header = |name: &str| {
            reply
                .headers
                .get(name)
                .unwrap_or_else(|| panic!("{path} has no {name}"))
                .to_str()
                .unwrap()
        };
        let policy = header("content-security-policy");
        for part in [
            "default-src 'none'",
            "script-src 'self'",
            "form-action 'self'",
            "frame-ancestors 'none'",
            "base-uri 'none'",
        ] {
            assert!(policy.contains(part), "{path}: {policy}");
        }
        assert!(!policy.contains("unsafe"), "{path}: {policy}");
        assert_eq!(header("x-content-type-options"), "nosniff");
        assert_eq!(header("referrer-policy"), "no-referrer");
        assert_eq!(header("cache-control"), "no-store");
        assert!(!reply.headers.contains_key("access-control-allow-origin"), "{path}");
    }
}

#[tokio::test]
async fn no_header_of_an_answer_has_a_line_of_somebody_else() {
    for name in ["a\r\nSet-Cookie: x=y", "a b", "ä/ö", "..", "\"'<>"] {
        let letters = dlq_core::DeadLetters::new(dlq_letters::memory::MemoryStore::new());
        let router = dlq_admin::Admin::named(name, letters.clone()).router();
        let site = Site::with(letters, vec![letter(0)]).await.router(router);
        let reply = site.get("/").await.is(303);
        assert!(!reply.headers.contains_key("set-cookie"));
        let location = reply.location().trim_start_matches('.').to_owned();
        assert!(location.is_ascii() && !location.contains(char::is_whitespace), "{location}");
        let page = site.get(&location).await.ok();
        read(&page.body, name);
    }
}
