//! A server whose users show signed credentials, as an operator hands them out.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use dlq_core::Sink as _;
use dlq_nats::async_nats::{ConnectOptions, jetstream};
use dlq_nats::{DlqStream, NatsSink};
use dlq_services::{Service, ensure_installed, or_skip};
use dlq_testkit::fixtures::letter;
use nkeys::KeyPair;
use serde_json::{Value, json};

use crate::common::{Ran, dlq};

/// What `by` says of `of`, signed.
fn signed(by: &KeyPair, of: &KeyPair, name: &str, says: Value) -> String {
    let header = json!({ "typ": "JWT", "alg": "ed25519-nkey" });
    let claims = json!({
        "jti": name, "iat": 1_790_000_000, "iss": by.public_key(), "sub": of.public_key(), "name": name, "nats": says,
    });
    let body = [header, claims].map(|part| URL_SAFE_NO_PAD.encode(part.to_string())).join(".");
    let signature = by.sign(body.as_bytes()).unwrap();
    format!("{body}.{}", URL_SAFE_NO_PAD.encode(signature))
}

/// An account that may do everything.
fn account(operator: &KeyPair, account: &KeyPair, name: &str, jetstream: i64) -> String {
    let limits = json!({
        "subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": true, "conn": -1, "leaf": -1,
        "mem_storage": jetstream, "disk_storage": jetstream, "streams": -1, "consumer": -1,
    });
    signed(operator, account, name, json!({ "type": "account", "version": 2, "limits": limits }))
}

/// The credentials of a user of this account, as they stand in a file.
fn credentials(account: &KeyPair, user: &KeyPair) -> String {
    let says = json!({ "type": "user", "version": 2, "subs": -1, "data": -1, "payload": -1, "pub": {}, "sub": {} });
    let (token, seed) = (signed(account, user, "ana", says), user.seed().unwrap());
    format!(
        "-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n\
         -----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_credentials_file_is_all_that_a_user_needs() {
    if or_skip(Service::Nats, ensure_installed(Service::Nats)).is_err() {
        return;
    }
    let [operator, system, orders, user] = [
        KeyPair::new_operator(),
        KeyPair::new_account(),
        KeyPair::new_account(),
        KeyPair::new_user(),
    ];
    let says = json!({ "type": "operator", "version": 2, "system_account": system.public_key() });
    let accounts = format!(
        "{{ {}: \"{}\", {}: \"{}\" }}",
        system.public_key(),
        account(&operator, &system, "SYS", 0),
        orders.public_key(),
        account(&operator, &orders, "ORDERS", -1),
    );
    let builder = Service::Nats
        .builder()
        .ours()
        .setting("operator", signed(&operator, &operator, "test", says))
        .setting("resolver", "MEMORY")
        .setting("resolver_preload", accounts);
    let server = tokio::task::block_in_place(|| builder.start().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let known = credentials(&orders, &user);
    let good = file("ana.creds", &known);
    let options = ConnectOptions::with_credentials(&known).unwrap();
    let client = options.connect(server.url()).await.unwrap();
    let jetstream = jetstream::new(client);
    let sink = NatsSink::open(&jetstream, DlqStream::new()).await.unwrap();
    sink.put(vec![letter(1), letter(2)]).await.unwrap();

    let count = |creds: Option<&str>| -> Ran {
        let mut args = vec!["count", "--from", server.url()];
        args.extend(creds.into_iter().flat_map(|file| ["--creds", file]));
        tokio::task::block_in_place(|| dlq(&args).output().unwrap().into())
    };
    assert_eq!(count(Some(&good)).ok().out, "2\n");
    // Nobody, somebody whom another account vouches for, and a file of something else.
    let stranger = credentials(&KeyPair::new_account(), &KeyPair::new_user());
    for creds in [None, Some(file("stranger.creds", &stranger))] {
        let ran = count(creds.as_deref());
        assert_eq!(ran.code, 1, "{creds:?}: {}", ran.err);
        assert!(
            ran.err.contains("does not know this user") && ran.err.contains("--creds"),
            "{}",
            ran.err
        );
        assert!(!ran.err.contains(&user.seed().unwrap()), "{}", ran.err);
    }
    let ran = count(Some(&file("other.creds", "no credentials")));
    assert_eq!(ran.code, 2, "{}", ran.err);
    assert!(ran.err.contains("other.creds"), "{}", ran.err);
}
