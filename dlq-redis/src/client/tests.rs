//! The client against a real server.

use dlq_services::{Builder, Redis, Running, Service, ensure_installed, or_skip};

use super::*;

static COUNT: Script = Script::new("return redis.call('INCRBY', KEYS[1], ARGV[1])");
static READ: Script = Script::new("return redis.call('GET', KEYS[1])");

fn start(builder: Builder) -> Option<Running> {
    or_skip(Service::Redis, ensure_installed(Service::Redis)).ok()?;
    Some(builder.ours().start().expect("a server starts"))
}

async fn opened(server: &Running) -> RedisClient {
    RedisClient::open(server.url()).await.expect("the server can be used")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scripts_are_loaded_where_they_are_unknown() {
    let Some(server) = start(Redis::builder()) else { return };
    let client = opened(&server).await;
    assert_eq!(as_int(&client.script(&COUNT.keys(&["n"]).arg(2)).await.unwrap()), 2);
    client.command(redis::cmd("SCRIPT").arg("FLUSH")).await.unwrap();
    let calls = [
        COUNT.keys(&["n"]).arg(1),
        READ.keys(&["n"]),
        COUNT.keys(&["wrong"]).arg("no number"),
        COUNT.keys(&["n"]).arg(1),
        READ.keys(&["n"]),
    ];
    let answers = client.scripts(&calls).await.unwrap();
    let answers: Vec<_> = answers.iter().map(|answer| answer.as_ref().map(as_int).ok()).collect();
    assert_eq!(answers, [Some(3), Some(3), None, Some(4), Some(4)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_is_repeated_once_after_a_cut() {
    let Some(server) = start(Redis::builder()) else { return };
    let client = opened(&server).await;
    let other = opened(&server).await;
    for _ in 0..3 {
        let mut kill = redis::cmd("CLIENT");
        kill.arg("KILL").arg("TYPE").arg("normal").arg("SKIPME").arg("yes");
        other.command(&kill).await.unwrap();
        client.command(&redis::cmd("PING")).await.expect("the cut is not noticed");
    }
    let impatient = RedisConfig::new().retries(0).open(server.url()).await.unwrap();
    let mut kill = redis::cmd("CLIENT");
    kill.arg("KILL").arg("TYPE").arg("normal").arg("SKIPME").arg("yes");
    other.command(&kill).await.unwrap();
    let error = impatient.command(&redis::cmd("PING")).await.expect_err("nothing repeats it");
    assert_eq!(
        (error.kind(), error.to_string().as_str()),
        (RedisErrorKind::Unavailable, "connection lost")
    );
    impatient.command(&redis::cmd("PING")).await.expect("the next call has a new connection");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_down_or_silent_costs_a_time_limit() {
    let Some(mut server) = start(Redis::builder()) else { return };
    let limit = Duration::from_millis(300);
    let config = RedisConfig::new().response_timeout(limit).connect_timeout(limit);
    let client = config.open(server.url()).await.unwrap();
    server.pause().unwrap();
    let ping = || async { client.command(&redis::cmd("PING")).await };
    let error = ping().await.expect_err("nobody responds");
    assert!(error.is_transient() && error.to_string().starts_with("no response"), "{error}");
    // Many wait together, and not one after another.
    let begun = std::time::Instant::now();
    let all = futures_util::future::join_all((0..100).map(|_| ping())).await;
    assert!(all.iter().all(|answer| answer.as_ref().is_err_and(RedisError::is_transient)));
    assert!(begun.elapsed() < limit * 50, "{:?}", begun.elapsed());
    server.resume().unwrap();
    ping().await.expect("the server responds again");
    server.kill().unwrap();
    assert!(ping().await.is_err_and(|error| error.is_transient()));
    server.restart().unwrap();
    ping().await.expect("the server is found again");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_servers_and_urls_are_refused_and_passwords_not_repeated() {
    let builder = Redis::builder().setting("maxmemory", "50mb");
    let Some(server) = start(builder.setting("maxmemory-policy", "allkeys-lru")) else { return };
    let admin = RedisConfig::new().allow_eviction(true).open(server.url()).await.unwrap();
    let mut password = redis::cmd("CONFIG");
    admin.command(password.arg("SET").arg("requirepass").arg("secret")).await.unwrap();
    let address = server.url().trim_start_matches("redis://").trim_end_matches('/').to_owned();
    for (url, found) in [
        (format!("redis://:hunter2@{address}"), "does not accept user and password"),
        (format!("redis://{address}"), "does not accept user and password"),
        (format!("redis://:secret@{address}"), "`maxmemory-policy` is `allkeys-lru`"),
        ("http://hunter2@host".to_owned(), "cannot read the URL of Redis"),
        ("redis://:hunter2@host:port".to_owned(), "cannot read the URL of Redis"),
    ] {
        let error = RedisClient::open(&url).await.expect_err(&url);
        assert_eq!(error.kind(), RedisErrorKind::InvalidConfig, "{error}");
        assert!(error.to_string().contains(found), "{error}");
        assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
    }
    let config = RedisConfig::new().allow_eviction(true);
    let client = config.open(&format!("redis://:secret@{address}")).await.unwrap();
    assert!(!format!("{client:?}").contains("secret"), "{client:?}");
    let mut set = redis::cmd("SET");
    client.command(set.arg("text").arg("x")).await.unwrap();
    let error = client.script(&COUNT.keys(&["text"]).arg(1)).await.expect_err("no number");
    assert_eq!(error.kind(), RedisErrorKind::Unexpected);
    let error =
        client.command(redis::cmd("LPUSH").arg("text").arg("x")).await.expect_err("no list");
    assert_eq!((error.kind(), error.code()), (RedisErrorKind::WrongType, Some("WRONGTYPE")));
    let mut user = redis::cmd("ACL");
    user.arg("SETUSER").arg("narrow").arg("on").arg(">pw").arg("~*").arg("+@all").arg("-set");
    client.command(&user).await.unwrap();
    let narrow = RedisConfig::new().allow_eviction(true);
    let narrow = narrow.open(&format!("redis://narrow:pw@{address}")).await.unwrap();
    let error = narrow.command(redis::cmd("SET").arg("a").arg("b")).await.expect_err("forbidden");
    assert_eq!(error.to_string(), "the user may not run `set`; grant it with `ACL SETUSER`");
}
