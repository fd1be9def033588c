//! Servers that somebody else runs.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::time::Duration;

use dlq_services::{ErrorKind, Redis, Running, Service, wire};

#[test]
fn a_server_that_is_not_ours_cannot_be_killed() {
    let mut running = Running::at(Service::Kafka, "127.0.0.1:1");
    assert!(!running.is_ours());
    assert_eq!((running.process_id(), running.starts()), (None, 0));
    for (what, outcome) in [
        ("killed", running.kill()),
        ("stopped", running.stop()),
        ("paused", running.pause()),
        ("resumed", running.resume()),
        ("restarted", running.restart()),
    ] {
        let error = outcome.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::External);
        let expected = format!(
            "kafka: it cannot be {what}: its URL was given, and only servers started here can be; \
             unset DLQ_TEST_KAFKA_URL to have one started"
        );
        assert_eq!(error.to_string(), expected);
    }
}

#[test]
fn a_mongodb_that_cannot_be_asked_is_taken_at_its_word() {
    for url in ["mongodb+srv://cluster.example/d", "mongodb://127.0.0.1:1/?tls=true"] {
        let error = wire::ping(Service::Mongo, url, Duration::from_secs(1)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        let mut running = Running::at(Service::Mongo, url);
        assert_eq!(running.kill().unwrap_err().kind(), ErrorKind::External);
    }
}

#[test]
fn an_unknown_version_of_redis_is_an_error() {
    let error = Redis::installed("5.0").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let expected = "redis: there is no recipe for version `5.0`; expected one of: 6.2, valkey-9";
    assert_eq!(error.to_string(), expected);
}

/// Something listens, takes what it is sent and answers `answer`.
fn impostor(answer: &'static [u8]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let _ = stream.write_all(answer);
            let _ = stream.read_to_end(&mut Vec::new());
        }
    });
    address
}

#[test]
fn an_open_port_is_no_answer() {
    for answer in
        [&b""[..], b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\xff\xff\xff\xff\xff\xff\xff\xff"]
    {
        let address = impostor(answer);
        for service in Service::ALL {
            let error = wire::ping(service, &address, Duration::from_millis(200)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NoAnswer, "{error}");
            assert!(error.to_string().contains(&address), "{error}");
        }
    }
}

#[test]
fn a_nats_server_without_jetstream_will_not_do() {
    let address = impostor(b"INFO {\"server_name\":\"x\"}\r\nPONG\r\n");
    let error = wire::ping(Service::Nats, &address, Duration::from_secs(5)).unwrap_err();
    assert!(error.to_string().ends_with("it has no JetStream, which must be enabled"), "{error}");
}

#[test]
fn a_postgres_that_wants_a_password_has_answered_but_not_queries() {
    // An `R` of eight bytes that asks for SASL, method 10.
    let address = impostor(b"R\0\0\0\x08\0\0\0\x0a");
    let patience = Duration::from_secs(5);
    wire::ping(Service::Postgres, &address, patience).unwrap();
    let error = wire::postgres::query(&address, "SELECT 1", patience).unwrap_err();
    assert!(error.to_string().ends_with("it asks for authentication by method 10"), "{error}");
}
