//! Secure connections to a server whose authority is one's own.

use std::net::TcpListener;
use std::path::Path;

use dlq_core::store::Receipt;
use dlq_core::{Disposition, Settle, Sink, Source};
use dlq_redis::{RedisClient, RedisConfig, RedisErrorKind};
use dlq_services::{Redis, Running};
use dlq_testkit::fixtures::letter;
use rcgen::{BasicConstraints, Certificate, CertificateParams, IsCa, Issuer, KeyPair};

use crate::fixture::{available, billing, next};

/// A server for secure connections, its URL, and the certificate of its authority.
struct Secure {
    running: Running,
    url: String,
    authority: String,
    _folder: tempfile::TempDir,
}

impl Secure {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let authority = certificates(folder.path());
        let file = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        // Another process may take the port before the server does.
        for _ in 0..20 {
            let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
            let builder = Redis::builder()
                .ours()
                .setting("tls-port", port.to_string())
                .setting("tls-cert-file", file("server.pem"))
                .setting("tls-key-file", file("server.key"))
                .setting("tls-ca-cert-file", file("authority.pem"))
                .setting("tls-auth-clients", "no");
            if let Ok(running) = builder.start() {
                let url = format!("rediss://127.0.0.1:{port}");
                return Self { running, url, authority, _folder: folder };
            }
        }
        panic!("no server with TLS has started");
    }
}

fn authority() -> (Certificate, Issuer<'static, KeyPair>) {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let authority = params.self_signed(&key).unwrap();
    (authority, Issuer::new(params, key))
}

/// Writes an authority and a server's certificate to the folder.
fn certificates(folder: &Path) -> String {
    let (authority, issuer) = authority();
    let authority = authority.pem();
    let key = KeyPair::generate().unwrap();
    let names = vec!["127.0.0.1".to_owned(), "localhost".to_owned()];
    let server = CertificateParams::new(names).unwrap().signed_by(&key, &issuer).unwrap();
    std::fs::write(folder.join("authority.pem"), &authority).unwrap();
    std::fs::write(folder.join("server.pem"), server.pem()).unwrap();
    std::fs::write(folder.join("server.key"), key.serialize_pem()).unwrap();
    authority
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_works_over_tls_and_an_unknown_authority_is_told() {
    if !available() {
        return;
    }
    let secure = tokio::task::block_in_place(Secure::start);
    // The authorities of the web have not issued it. No provider was chosen in this process.
    let error = RedisClient::open(&secure.url).await.expect_err("nobody knows the authority");
    assert_eq!(error.kind(), RedisErrorKind::InvalidConfig, "{error:?}");
    assert!(error.to_string().contains("certificate of the server is not trusted"), "{error}");

    let config = RedisConfig::new().root_certificate(&secure.authority);
    let client = config.open(&secure.url).await.unwrap();
    let opened = billing().open(&client).await.unwrap();
    let (mut source, sink) = (opened.source, opened.dead_letters);
    let raw = redis::Client::open(secure.running.url()).unwrap();
    let mut raw = raw.get_multiplexed_async_connection().await.unwrap();
    crate::fixture::run(&mut raw, "XADD orders * d 1").await;
    let (_, settle) = next(&mut source).await;
    assert_eq!(sink.put(vec![letter(1)]).await.unwrap(), [Receipt::Stored]);
    settle.settle(Disposition::Dead(Box::new(letter(1)))).await.unwrap();
    source.close().await;
}

#[tokio::test]
async fn a_root_certificate_that_cannot_be_used_is_told() {
    let with = |pem: &str, url: &'static str| {
        let config = RedisConfig::new().root_certificate(pem);
        async move { config.open(url).await.expect_err("it cannot be used") }
    };
    let error = with("no certificate", "rediss://127.0.0.1:1").await;
    assert_eq!(error.kind(), RedisErrorKind::InvalidConfig, "{error:?}");
    assert!(error.to_string().contains("cannot read the root certificate"), "{error}");
    let (authority, _) = authority();
    let error = with(&authority.pem(), "redis://127.0.0.1:1").await;
    assert!(error.to_string().contains("begin the URL with `rediss://`"), "{error}");
}
