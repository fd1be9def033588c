use dlq_core::store::Health;
use tokio::io::{DuplexStream, duplex};
use tokio::net::TcpStream;

use super::*;

const GET: &str = "GET /metrics HTTP/1.1\r\nHost: h\r\n\r\n";

fn page(state: HealthState) -> Arc<Page> {
    let health = Health { state, findings: Vec::new(), backlog: 7 };
    Arc::new(Page { metrics: "dlq_store_up 1\n".to_owned(), health })
}

/// Answers one client.
async fn serve(stream: DuplexStream, seen: Pages) {
    one(stream, None, router(seen, None), false).await;
}

/// The whole answer to what a client sends before it says no more, if it says that it does.
async fn answer_to(request: &[u8], closes: bool, state: HealthState) -> String {
    let (_pages, seen) = watch::channel(Some(page(state)));
    let (mut client, server) = duplex(64 * 1024);
    let asking = async {
        client.write_all(request).await.unwrap();
        if closes {
            client.shutdown().await.unwrap();
        }
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        answer
    };
    tokio::join!(serve(server, seen), asking).1
}

async fn status(request: &str, state: HealthState) -> u16 {
    let answer = answer_to(request.as_bytes(), false, state).await;
    answer.split(' ').nth(1).unwrap_or_else(|| panic!("{request:?}: {answer}")).parse().unwrap()
}

#[tokio::test(start_paused = true)]
async fn every_kind_of_request_has_its_answer() {
    use HealthState::{Degraded, Healthy, Unhealthy};
    let health = "GET /health HTTP/1.0\r\n\r\n";
    let long = format!("GET / HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(HEAD));
    for (request, state, wanted) in [
        (GET, Unhealthy, 200),
        ("GET /metrics?name=x HTTP/1.1\r\n\r\n", Healthy, 200),
        ("GET / HTTP/1.1\r\n\r\n", Healthy, 200),
        (health, Healthy, 200),
        (health, Degraded, 200),
        (health, Unhealthy, 503),
        ("GET /metrics/x HTTP/1.1\r\n\r\n", Healthy, 404),
        ("POST /metrics HTTP/1.1\r\n\r\n", Healthy, 405),
        ("GET /metrics\r\n\r\n", Healthy, 400),
        ("GET  /metrics HTTP/1.1\r\n\r\n", Healthy, 400),
        // Empty lines before a request are none of it.
        ("\r\n\r\n", Healthy, 408),
        (&long, Healthy, 431),
    ] {
        assert_eq!(status(request, state).await, wanted, "{request:?}");
    }
    // One who speaks HTTP/2 would not understand an answer in HTTP/1.
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    assert_eq!(answer_to(preface, false, Healthy).await, "");
    let garbage = [&[0x16, 3, 1, 0xff, 0, 0x80][..], b"\r\n\r\n"].concat();
    assert!(answer_to(&garbage, false, Healthy).await.starts_with("HTTP/1.1 400 "));
}

#[tokio::test(start_paused = true)]
async fn a_head_has_everything_but_the_body() {
    let body = |answer: &str| answer.split_once("\r\n\r\n").unwrap().1.to_owned();
    let got = answer_to(GET.as_bytes(), false, HealthState::Healthy).await;
    assert_eq!(body(&got), "dlq_store_up 1\n");
    assert!(got.contains("content-type: text/plain; version=0.0.4; charset=utf-8\r\n"), "{got}");
    let head = GET.replace("GET", "HEAD");
    let head = answer_to(head.as_bytes(), false, HealthState::Healthy).await;
    assert_eq!(got.replace("dlq_store_up 1\n", ""), head);
    let refused = answer_to(b"PUT / HTTP/1.1\r\n\r\n", false, HealthState::Healthy).await;
    assert!(refused.contains("allow: GET,HEAD\r\n"), "{refused}");
}

#[tokio::test(start_paused = true)]
async fn one_who_says_nothing_is_sent_away() {
    let began = tokio::time::Instant::now();
    let answer = answer_to(b"GET /metrics HTTP/1.1\r\nHost", false, HealthState::Healthy).await;
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    // Waited for are the request, and then the rest of it.
    assert!(began.elapsed() <= Duration::from_secs(7));
    assert_eq!(answer_to(b"GET /me", true, HealthState::Healthy).await, "", "he left");
}

#[tokio::test(start_paused = true)]
async fn one_who_does_not_read_is_left() {
    let (_pages, seen) = watch::channel(Some(page(HealthState::Healthy)));
    let (mut client, server) = duplex(100);
    client.write_all(GET.as_bytes()).await.unwrap();
    let began = tokio::time::Instant::now();
    serve(server, seen).await;
    assert_eq!(began.elapsed(), DEPARTURE);
}

#[tokio::test(start_paused = true)]
async fn the_first_look_is_waited_for() {
    let (pages, seen) = watch::channel(None);
    let (mut client, server) = duplex(64 * 1024);
    client.write_all(GET.as_bytes()).await.unwrap();
    let mut answer = String::new();
    let looking = async {
        sleep(Duration::from_secs(3)).await;
        pages.send_replace(Some(page(HealthState::Healthy)));
        client.read_to_string(&mut answer).await.unwrap();
    };
    tokio::join!(serve(server, seen), looking);
    assert!(answer.ends_with("dlq_store_up 1\n"), "{answer}");
}

#[tokio::test]
async fn who_comes_when_all_places_are_taken_waits_for_one() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (_pages, seen) = watch::channel(Some(page(HealthState::Healthy)));
    let asking = async {
        let mut silent = Vec::new();
        for _ in 0..MOST {
            silent.push(TcpStream::connect(address).await.unwrap());
        }
        let mut client = TcpStream::connect(address).await.unwrap();
        client.write_all(GET.as_bytes()).await.unwrap();
        let mut answer = String::new();
        let early = timeout(PAUSE, client.read_to_string(&mut answer)).await;
        assert!(early.is_err(), "it has no place: {answer}");
        // Well before those who say nothing are sent away.
        silent.pop();
        let read = timeout(ARRIVAL / 2, client.read_to_string(&mut answer));
        read.await.unwrap().unwrap();
        assert!(answer.ends_with("dlq_store_up 1\n"), "{answer}");
    };
    tokio::select! {
        () = answer(listener, seen, None) => unreachable!("it answers until it is dropped"),
        () = asking => {}
    }
}
