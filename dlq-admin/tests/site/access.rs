//! Logins, roles and their rights.

use std::time::Duration;

use axum::body::Body;
use axum::http::HeaderName;
use dlq_admin::{Access, Role, Token};
use dlq_testkit::fixtures::letter;

use crate::common::{Site, form, token, tokens};

/// Every route but those that anybody may use, with the least role.
pub(crate) const ROUTES: &[(&str, &str, Role)] = &[
    ("GET", "/api/v1/openapi.json", Role::Read),
    ("GET", "/api/v1/stores", Role::Read),
    ("GET", "/api/v1/default/letters", Role::Read),
    ("GET", "/api/v1/default/letters/{id}", Role::Read),
    ("GET", "/api/v1/default/letters/{id}/payload", Role::Operate),
    ("POST", "/api/v1/default/letters/{id}/reveal", Role::Read),
    ("POST", "/api/v1/default/letters/{id}/edit", Role::Admin),
    ("POST", "/api/v1/default/letters/{id}/undo", Role::Admin),
    ("GET", "/api/v1/default/count", Role::Read),
    ("GET", "/api/v1/default/groups", Role::Read),
    ("GET", "/api/v1/default/group", Role::Read),
    ("POST", "/api/v1/default/group", Role::Operate),
    ("GET", "/api/v1/default/consumers", Role::Read),
    ("GET", "/api/v1/default/hours", Role::Read),
    ("GET", "/api/v1/default/stats", Role::Read),
    ("POST", "/api/v1/default/plan", Role::Operate),
    ("POST", "/api/v1/default/replay", Role::Operate),
    ("GET", "/api/v1/default/latest-replay", Role::Read),
    ("GET", "/api/v1/default/latest-replay/events", Role::Read),
    ("POST", "/api/v1/default/latest-replay/stop", Role::Operate),
    ("POST", "/api/v1/default/mark", Role::Operate),
    ("POST", "/api/v1/default/delete", Role::Admin),
    ("GET", "/api/v1/default/archive", Role::Read),
    ("POST", "/api/v1/default/restore", Role::Admin),
    ("GET", "/api/v1/default/operations", Role::Read),
    ("GET", "/api/v1/default/operations/{id}", Role::Read),
    ("GET", "/api/v1/default/operations/{id}/items", Role::Read),
    ("GET", "/api/v1/default/operations/{id}/events", Role::Read),
    ("POST", "/api/v1/default/operations/{id}/pause", Role::Operate),
    ("POST", "/api/v1/default/operations/{id}/resume", Role::Operate),
    ("POST", "/api/v1/default/operations/{id}/cancel", Role::Operate),
    ("POST", "/api/v1/default/operations/{id}/rate", Role::Operate),
    ("GET", "/api/v1/default/audit", Role::Read),
    ("GET", "/api/v1/default/events", Role::Read),
    ("GET", "/", Role::Read),
    ("GET", "/s/default", Role::Read),
    ("GET", "/s/default/groups", Role::Read),
    ("GET", "/s/default/group", Role::Read),
    ("POST", "/s/default/group", Role::Operate),
    ("GET", "/s/default/consumers", Role::Read),
    ("GET", "/s/default/schedule", Role::Read),
    ("GET", "/s/default/letters", Role::Read),
    ("GET", "/s/default/letters/{id}", Role::Read),
    ("GET", "/s/default/letters/{id}/attempts/{n}", Role::Read),
    ("GET", "/s/default/letters/{id}/payload", Role::Operate),
    ("POST", "/s/default/letters/{id}/reveal", Role::Read),
    ("GET", "/s/default/letters/{id}/edit", Role::Admin),
    ("POST", "/s/default/letters/{id}/edit", Role::Admin),
    ("POST", "/s/default/letters/{id}/save", Role::Admin),
    ("POST", "/s/default/letters/{id}/undo", Role::Admin),
    ("GET", "/s/default/change", Role::Operate),
    ("POST", "/s/default/mark", Role::Operate),
    ("POST", "/s/default/delete", Role::Admin),
    ("GET", "/s/default/archive", Role::Read),
    ("POST", "/s/default/restore", Role::Admin),
    ("GET", "/s/default/replay", Role::Operate),
    ("POST", "/s/default/replay", Role::Operate),
    ("GET", "/s/default/latest-replay", Role::Read),
    ("POST", "/s/default/latest-replay/stop", Role::Operate),
    ("GET", "/s/default/operations", Role::Read),
    ("GET", "/s/default/operations/{id}", Role::Read),
    ("POST", "/s/default/operations/{id}/pause", Role::Operate),
    ("POST", "/s/default/operations/{id}/rate", Role::Operate),
    ("POST", "/s/default/operations/{id}/resume", Role::Operate),
    ("POST", "/s/default/operations/{id}/cancel", Role::Operate),
    ("GET", "/s/default/audit", Role::Read),
    ("POST", "/logout", Role::Read),
];

fn path(path: &str) -> String {
    path.replace("{id}", &letter(0).id.to_string()).replace("{n}", "0")
}

#[tokio::test]
async fn a_role_may_do_what_the_table_says_and_nothing_else() {
    for role in Role::ALL {
        let site = Site::of(vec![letter(0)]).await.access(tokens()).bearer(*role);
        for (method, at, least) in ROUTES {
            if at.ends_with("default/events") && role >= least {
                continue; // It has no end.
            }
            let request = site.request(method, &path(at)).body(Body::empty()).unwrap();
            let reply = site.send(request).await;
            let is_denied = reply.status == 403;
            assert_eq!(is_denied, role < least, "{role} {method} {at}: {}", reply.body);
            assert_ne!(reply.status, 401, "{role} {method} {at}");
            if is_denied {
                assert!(reply.body.contains(&format!("the role `{role}`")), "{}", reply.body);
            }
        }
    }
}

#[tokio::test]
async fn the_matrix_has_every_route() {
    let site = Site::of(Vec::new()).await;
    let document = site.get("/api/v1/openapi.json").await.ok().json();
    for (path, methods) in document["paths"].as_object().unwrap() {
        let path = path.replace("{store}", "default");
        for (method, operation) in methods.as_object().unwrap() {
            let of_matrix =
                ROUTES.iter().find(|(one, at, _)| one.eq_ignore_ascii_case(method) && *at == path);
            let role = of_matrix.unwrap_or_else(|| panic!("{method} {path} is not tested")).2;
            assert_eq!(operation["x-role"], role.as_str(), "{method} {path}");
        }
    }
}

#[tokio::test]
async fn without_a_login_nothing_is_answered() {
    let site = Site::of(vec![letter(0)]).await.access(tokens());
    let wrong = Site::of(vec![letter(0)])
        .await
        .access(tokens())
        .header("authorization", "Bearer nobody-has-this-token");
    for site in [&site, &wrong] {
        for (method, at, _) in ROUTES.iter().take(8) {
            let reply =
                site.send(site.request(method, &path(at)).body(Body::empty()).unwrap()).await;
            assert_eq!(reply.status, 401, "{method} {at}: {}", reply.body);
            assert_eq!(reply.headers["www-authenticate"], "Bearer");
        }
    }
    let reply = site.get("/s/default/letters").await.is(303);
    assert_eq!(reply.location(), "../../login");
    // The files of the login page are everybody's.
    for path in ["/login", "/assets/style.css", "/assets/console.js"] {
        site.get(path).await.ok();
    }
}

/// Logs in, and returns the site as that browser asks it.
async fn logged_in(site: Site, role: Role) -> Site {
    let page = site.get("/login").await.ok();
    let fields = form(&[("csrf", &page.field("csrf")), ("token", token(role))]);
    let reply = site.post("/login", &fields).await.is(303);
    let cookie = reply.headers["set-cookie"].to_str().unwrap().to_owned();
    assert!(cookie.contains("; HttpOnly; SameSite=Strict"), "{cookie}");
    assert!(!cookie.contains(token(role)) && !cookie.contains("Secure"), "{cookie}");
    site.header("cookie", cookie.split(';').next().unwrap())
}

#[tokio::test]
async fn a_session_begins_and_ends() {
    let site = Site::of(vec![letter(0)]).await.access(tokens());
    let site = logged_in(site, Role::Operate).await;
    let page = site.get("/s/default").await.ok();
    assert!(page.body.contains("otto (operate)"), "{}", page.body);
    let csrf = page.field("csrf");
    site.post("/logout", "").await.is(403);
    let reply = site.post("/logout", &form(&[("csrf", &csrf)])).await.is(303);
    assert!(reply.headers["set-cookie"].to_str().unwrap().contains("Max-Age=0"));
    site.get("/s/default").await.is(303);
}

#[tokio::test]
async fn behind_tls_the_cookie_is_secure() {
    let site = Site::of(Vec::new()).await.access(tokens()).header("x-forwarded-proto", "https");
    let reply = site.post("/login", &form(&[("token", token(Role::Read))])).await.is(303);
    assert!(reply.headers["set-cookie"].to_str().unwrap().ends_with("; Secure"));
}

#[tokio::test]
async fn a_change_by_cookie_needs_the_token_of_the_session() {
    let site = Site::of(vec![letter(0)]).await.access(tokens());
    let site = logged_in(site, Role::Admin).await;
    let one = letter(0).id.to_string();
    let fields = |csrf: &str| {
        form(&[("csrf", csrf), ("id", &one), ("mark", "resolved"), ("note", "x"), ("expect", "1")])
    };
    let other = logged_in(Site::of(Vec::new()).await.access(tokens()), Role::Admin).await;
    let of_other = other.get("/s/default").await.field("csrf");
    for csrf in ["", "x", &of_other] {
        for at in ["/s/default/mark", "/api/v1/default/mark"] {
            let reply = site.post(at, &fields(csrf)).await.is(403);
            assert!(reply.body.contains("csrf"), "{}", reply.body);
        }
    }
    assert!(
        !site
            .letters
            .get(letter(0).id)
            .await
            .unwrap()
            .state
            .status
            .to_string()
            .contains("resolved")
    );
    let csrf = site.get("/s/default").await.field("csrf");
    // Whatever token it has: a browser that says it is another site is believed.
    let evil = site.request("POST", "/s/default/mark").header("sec-fetch-site", "cross-site");
    let evil = evil.header("content-type", "application/x-www-form-urlencoded");
    let reply = site.send(evil.body(Body::from(fields(&csrf))).unwrap()).await;
    assert_eq!(reply.status, 403);
    site.post("/s/default/mark", &fields(&csrf)).await.ok();
    // The header is for scripts.
    let by_header = site
        .request("POST", "/api/v1/default/mark?all=true&mark=pending&note=x")
        .header("x-csrf-token", &csrf);
    let reply = site.send(by_header.body(Body::empty()).unwrap()).await;
    assert_eq!(reply.status, 200, "{}", reply.body);
}

#[tokio::test]
async fn an_open_console_is_for_loopback_and_for_its_own_pages() {
    for host in ["evil.example", "10.0.0.1", "localhost.evil.example:9400"] {
        let site = Site::of(vec![letter(0)]).await.header("host", host);
        for path in ["/", "/s/default", "/api/v1/default/letters", "/login", "/assets/style.css"] {
            assert_eq!(site.get(path).await.status, 403, "{host} {path}");
        }
    }
    let site = Site::of(vec![letter(0)]).await.access(Access::open().hosts(["dlq.internal"]));
    let site = site.header("host", "dlq.internal:443");
    site.get("/s/default").await.ok();
    let change = "/api/v1/default/mark?all=true&mark=quarantined&note=x";
    for (name, value, status) in [
        ("sec-fetch-site", "cross-site", 403),
        ("sec-fetch-site", "same-site", 403),
        ("origin", "http://evil.example", 403),
        ("origin", "null", 403),
        ("sec-fetch-site", "same-origin", 200),
        ("origin", "https://dlq.internal:443", 200),
        ("user-agent", "curl", 200),
    ] {
        let request = site.request("POST", change).header(name, value);
        let reply = site.send(request.body(Body::empty()).unwrap()).await;
        assert_eq!(reply.status, status, "{name}: {value}: {}", reply.body);
    }
    // A page of ours whose browser says nothing has the token.
    let csrf = site.get("/s/default/change?all=true&verb=pending").await.ok().field("csrf");
    let request = site.request("POST", &format!("{change}&csrf={csrf}")).header("origin", "null");
    assert_eq!(site.send(request.body(Body::empty()).unwrap()).await.status, 200);
}

#[tokio::test]
async fn a_proxy_says_who_asks() {
    let (user, role) = (HeaderName::from_static("x-user"), HeaderName::from_static("x-role"));
    let site = Site::of(vec![letter(0)]).await.access(Access::trusted_header(user, role));
    site.get("/api/v1/stores").await.is(401);
    let site = site.header("x-user", "ana").header("x-role", "root");
    site.get("/api/v1/stores").await.is(403);
    let site = site.header("x-role", "operate");
    let stores = site.get("/api/v1/stores").await.ok().json();
    assert_eq!((&stores["name"], &stores["role"]), (&"ana".into(), &"operate".into()));
    let change = "/api/v1/default/mark?all=true&mark=quarantined&note=x";
    let evil = site.request("POST", change).header("origin", "http://evil.example");
    assert_eq!(site.send(evil.body(Body::empty()).unwrap()).await.status, 403);
    let request = site.request("POST", change).body(Body::empty()).unwrap();
    assert_eq!(site.send(request).await.status, 200);
    let audit = site.get("/api/v1/default/audit").await.ok().json();
    assert_eq!(audit["entries"][0]["by"]["who"], "ana");
}

#[tokio::test]
async fn guessing_is_stopped() {
    let site = Site::of(Vec::new()).await.access(tokens());
    let guess = form(&[("token", "a-token-that-nobody-has")]);
    let mut last = 0;
    for _ in 0..30 {
        last = site.post("/login", &guess).await.status.as_u16();
        if last == 429 {
            break;
        }
        assert_eq!(last, 401);
    }
    assert_eq!(last, 429);
    // The right token is not tried either, or the limit would be none.
    let right = form(&[("token", token(Role::Admin))]);
    let reply = site.post("/login", &right).await.is(429);
    assert!(reply.headers.contains_key("retry-after"));
    let site = site.bearer(Role::Admin);
    let reply = site.get("/api/v1/stores").await.is(429);
    assert!(reply.headers.contains_key("retry-after"));
}

#[tokio::test]
async fn short_tokens_let_nobody_in() {
    for said in ["Bearer short", "Bearer ", "Bearer", "Basic c2hvcnQ="] {
        let access = Access::tokens([
            Token::new("ana", Role::Admin, "short"),
            Token::new("bo", Role::Admin, ""),
        ]);
        let site = Site::of(Vec::new()).await.access(access).header("authorization", said);
        assert_eq!(site.get("/api/v1/stores").await.status, 401, "{said}");
    }
}

#[tokio::test]
async fn who_reads_sees_no_payload_until_it_is_revealed_with_a_reason() {
    let message = dlq_core::Message::new("orders", "s3cret-payload")
        .with_key("s3cret-key")
        .with_header("auth", "s3cret-header");
    let one = dlq_testkit::fixtures::letter_of(message, 1);
    let site = Site::of(vec![one.clone()]).await;
    site.post_json(
        &format!("/api/v1/default/letters/{}/edit", one.id),
        serde_json::json!({
            "payload-text": "s3cret-edited", "note": "why",
        }),
    )
    .await
    .ok();
    let site = site.access(tokens()).bearer(Role::Read);
    let id = one.id;
    for path in [
        format!("/s/default/letters/{id}"),
        format!("/s/default/letters/{id}?view=hex"),
        format!("/s/default/letters/{id}/attempts/0"),
        format!("/api/v1/default/letters/{id}"),
        "/api/v1/default/audit".to_owned(),
        "/s/default/audit".to_owned(),
        "/s/default/letters".to_owned(),
        "/api/v1/default/letters".to_owned(),
    ] {
        let reply = site.get(&path).await.ok();
        assert!(!reply.body.contains("s3cret"), "{path}: {}", reply.body);
        assert!(!reply.body.contains("733363726574"), "{path}");
    }
    let shown = site.get(&format!("/api/v1/default/letters/{id}")).await.json();
    assert_eq!(
        (&shown["payload_size"], &shown["hidden"][1]),
        (&13.into(), &"message.payload".into())
    );
    let reveal = format!("/api/v1/default/letters/{id}/reveal");
    site.post_json(&reveal, serde_json::json!({})).await.is(400);
    let whole = site
        .post_json(&reveal, serde_json::json!({ "note": "the customer asks" }))
        .await
        .ok()
        .json();
    assert_eq!(whole["message"]["payload"], "s3cret-edited");
    let entry = site.get("/api/v1/default/audit").await.json()["entries"][0].clone();
    assert_eq!(entry["by"]["who"], "rita");
    assert_eq!(entry["by"]["note"], "revealed, not changed: the customer asks");
    assert_eq!(
        (&entry["affected"], &entry["subject"]["letter"]),
        (&0.into(), &id.to_string().into())
    );
    // What is undone is the edit before.
    let site = site.bearer(Role::Admin);
    let undone = site
        .post_json(
            &format!("/api/v1/default/letters/{id}/undo"),
            serde_json::json!({ "note": "x" }),
        )
        .await
        .ok();
    assert_eq!(undone.json()["letter"]["message"]["payload"], "s3cret-payload");
    let site = site.bearer(Role::Read);
    let page = site.post(&format!("/s/default/letters/{id}/reveal"), "note=again").await.ok();
    assert!(page.body.contains("s3cret-payload") && page.body.contains("s3cret-header"));
}

/// A request without a login keeps no place of the server for long.
#[tokio::test(start_paused = true)]
async fn a_login_that_does_not_arrive_is_not_waited_for() {
    let site = Site::of(vec![letter(0)]).await.access(tokens());
    let never = futures_util::stream::pending::<Result<Vec<u8>, std::io::Error>>();
    let request = site.request("POST", "/login");
    let request = request.header("content-type", "application/x-www-form-urlencoded");
    let began = tokio::time::Instant::now();
    site.send(request.body(Body::from_stream(never)).unwrap()).await.is(408);
    assert!(began.elapsed() <= Duration::from_secs(10), "{:?}", began.elapsed());
    let large = format!("token={}", "x".repeat(10_000));
    site.post("/login", &large).await.is(413);
}
