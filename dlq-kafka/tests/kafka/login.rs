//! Who has to log in does, and is told what is wrong where that is refused.

use std::fmt::{Debug, Display};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use dlq_core::{Filter, Sink as _, Source as _, StoreErrorKind, TransportErrorKind};
use dlq_kafka::{Brokers, KafkaLag, KafkaLetters, KafkaReplay, KafkaTransport};
use dlq_services::{Running, Service};
use dlq_testkit::fixtures::letter;

use crate::fixture::{PATIENCE, TestTopic, available, handle, number, start_as};
use crate::fixture_feed::follow;
use crate::fixture_reading::Look as _;
use crate::fixture_replay::{ORIGIN, operation};

const USER: &str = "ana";
const PASSWORD: &str = "s3cret";
const WRONG: &str = "wr0ng";
const LEASE: Duration = Duration::from_secs(10);

fn start() -> (Arc<Mutex<Running>>, String) {
    let running = start_as(Service::Kafka.builder().login(USER, PASSWORD));
    let url = running.login_url().unwrap();
    (Arc::new(Mutex::new(running)), url)
}

/// The brokers, for who logs in so.
fn brokers(url: &str, mechanism: &str, password: &str) -> Brokers {
    Brokers::at(url)
        .with("security.protocol", "sasl_plaintext")
        .with("sasl.mechanism", mechanism)
        .with("sasl.username", USER)
        .with("sasl.password", password)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_logs_in_reads_and_writes() {
    if !available() {
        return;
    }
    let (running, url) = start();
    for mechanism in ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] {
        let mut place = TestTopic::at(Arc::clone(&running), &mechanism.to_lowercase(), 1).await;
        place.publish([7]).await;
        place.brokers = brokers(&url, mechanism, PASSWORD);
        if mechanism != "PLAIN" && !cfg!(feature = "ssl") {
            let error = place.billing().source(&place.brokers).await.unwrap_err();
            assert_eq!(error.kind(), TransportErrorKind::InvalidConfig, "{error}");
            assert!(error.to_string().contains("the feature `ssl` of `dlq-kafka`"), "{error}");
            continue;
        }
        let mut source = place.billing().source(&place.brokers).await.unwrap();
        assert_eq!(number(&handle(&mut source).await), 7);
        let sink = place.billing().sink(&place.brokers).await.unwrap();
        let mut dead = letter(1);
        dead.origin = handle_origin(&place);
        sink.put(vec![dead]).await.unwrap();
        let letters = KafkaLetters::new(&place.brokers, format!("{}.dlq", place.topic));
        assert_eq!(letters.count(Filter::new()).await.unwrap(), 1, "{mechanism}");
        source.close().await;
    }
}

fn handle_origin(place: &TestTopic) -> dlq_core::Origin {
    dlq_core::Origin::new("kafka", &*place.topic, dlq_core::Position::Offset(0)).with_partition(0)
}

/// What is said soon of a login that is refused, without the password.
#[track_caller]
fn refused(begun: Instant, what: &str, mechanism: &str, error: &(impl Display + Debug)) {
    let said = format!("{error}");
    println!("{what}: {said}");
    for part in ["`sasl.password`", "`sasl.mechanisms`", mechanism] {
        assert!(said.contains(part), "{what}: `{part}` is not in {said}");
    }
    // The password may stand neither in the text nor in what `Debug` shows of the causes.
    assert!(!format!("{said}{error:?}").contains(WRONG), "{what}: {said}");
    assert!(begun.elapsed() < PATIENCE, "{what}: {:?}", begun.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_password_that_is_wrong_is_told_by_everything_that_connects() {
    if !available() {
        return;
    }
    let (running, url) = start();
    let place = TestTopic::at(Arc::clone(&running), "refused", 1).await;
    let mechanisms: &[_] =
        if cfg!(feature = "ssl") { &["PLAIN", "SCRAM-SHA-512"] } else { &["PLAIN"] };
    for mechanism in mechanisms {
        let brokers = brokers(&url, mechanism, WRONG);
        assert!(!format!("{brokers:?}").contains(WRONG));
        let consumer = KafkaTransport::new(&*place.topic).name("billing");

        let begun = Instant::now();
        let error = consumer.source(&brokers).await.unwrap_err();
        assert_eq!(error.kind(), TransportErrorKind::InvalidConfig);
        refused(begun, "source", mechanism, &error);

        let begun = Instant::now();
        let error = consumer.sink(&brokers).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::InvalidConfig);
        refused(begun, "sink", mechanism, &error);

        let begun = Instant::now();
        refused(begun, "queue", mechanism, &consumer.retry_queue(&brokers).await.unwrap_err());

        let begun = Instant::now();
        let lag = KafkaLag::new(brokers.clone(), "billing", [&*place.topic]);
        refused(begun, "lag", mechanism, &lag.read().await.unwrap_err());

        let begun = Instant::now();
        let letters = KafkaLetters::new(&brokers, &*place.topic);
        let error = letters.count(Filter::new()).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::InvalidConfig);
        refused(begun, "letters", mechanism, &error);

        let begun = Instant::now();
        let replay = KafkaReplay::new(&letters, Filter::new(), ORIGIN, operation(1));
        let error = replay.run(std::future::pending(), |_| {}).await.unwrap_err();
        refused(begun, "replay", mechanism, &error);

        let begun = Instant::now();
        let error = follow(&letters, "sqlite:///dlq.db", LEASE).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::InvalidConfig, "{error}");
        refused(begun, "follow", mechanism, &error);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_does_not_log_in_where_that_is_asked_is_told() {
    if !available() {
        return;
    }
    let (_running, url) = start();
    let consumer = KafkaTransport::new("orders").name("billing");
    let begun = Instant::now();
    let error = consumer.source(&Brokers::at(&url)).await.unwrap_err();
    println!("{error}");
    assert!(error.to_string().contains("security.protocol"), "{error}");
    assert!(begun.elapsed() < PATIENCE, "{:?}", begun.elapsed());
    // One that the brokers do not know.
    let consumer = KafkaTransport::new("orders").name("billing");
    let error = consumer.source(&brokers(&url, "SCRAM-SHA-1", PASSWORD)).await.unwrap_err();
    println!("{error}");
    assert_eq!(error.kind(), TransportErrorKind::InvalidConfig);
    assert!(error.to_string().contains("SCRAM-SHA-1"), "{error}");
}

/// A key of a broker at this machine, in the folder; where the key is, and the certificate that vouches for it.
#[cfg(feature = "ssl")]
fn key(folder: &std::path::Path) -> (String, String) {
    let [key, certificate] =
        ["broker.p12", "ca.pem"].map(|name| folder.join(name).display().to_string());
    let keytool = |arguments: &str| {
        let made = std::process::Command::new("keytool")
            .args(arguments.split(' '))
            .args(["-alias", "broker", "-storepass", PASSWORD, "-keystore", &key])
            .output()
            .unwrap();
        assert!(made.status.success(), "{made:?}");
    };
    keytool("-genkeypair -keyalg EC -dname CN=broker -ext SAN=ip:127.0.0.1 -storetype PKCS12");
    keytool(&format!("-exportcert -rfc -file {certificate}"));
    (key, certificate)
}

#[cfg(feature = "ssl")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_logs_in_by_tls_reads_and_an_unknown_certificate_is_told() {
    if !available() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (key, certificate) = key(folder.path());
    let map = "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,LOGIN:SASL_SSL";
    let builder = Service::Kafka
        .builder()
        .login(USER, PASSWORD)
        .setting("listener.security.protocol.map", map)
        .setting("listener.name.login.ssl.keystore.location", key)
        .setting("listener.name.login.ssl.keystore.password", PASSWORD)
        .setting("listener.name.login.ssl.keystore.type", "PKCS12");
    let running = start_as(builder);
    let url = running.login_url().unwrap();
    let mut place = TestTopic::at(Arc::new(Mutex::new(running)), "tls", 1).await;
    place.publish([7]).await;
    let brokers = brokers(&url, "SCRAM-SHA-512", PASSWORD).with("security.protocol", "sasl_ssl");
    let strange = KafkaTransport::new(&*place.topic).name("billing");
    place.brokers = brokers.clone().with("ssl.ca.location", certificate);
    let mut source = place.billing().source(&place.brokers).await.unwrap();
    assert_eq!(number(&handle(&mut source).await), 7);
    let error = strange.source(&brokers).await.unwrap_err();
    println!("{error}");
    assert!(error.to_string().contains("certificate"), "{error}");
    assert!(error.to_string().contains("ssl.ca.location"), "{error}");
}
