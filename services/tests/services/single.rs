//! One server of each kind.

use std::time::Duration;

use dlq_services::{
    Builder, ErrorKind, Kafka, Mongo, Nats, Postgres, Redis, Running, Service, or_skip, wire,
};
use serde_json::json;

use crate::{A_TRY, PATIENCE, until};

/// One that we may kill, whatever the environment says; without it the test ends.
pub(crate) fn ours(builder: Builder, service: Service) -> Option<Running> {
    let running = or_skip(service, builder.ours().start()).ok()?;
    assert!(running.is_ours());
    assert_eq!(running.service(), service);
    until(|| running.ping());
    Some(running)
}

/// What `ask` answers is the same after a crash, a pause and an orderly stop.
pub(crate) fn survives<T: PartialEq + std::fmt::Debug>(
    running: Running,
    ask: impl Fn(&Running) -> T,
) {
    survives_from(running, 1, ask);
}

/// The same for one that was started so often.
fn survives_from<T: PartialEq + std::fmt::Debug>(
    mut running: Running,
    starts: u32,
    ask: impl Fn(&Running) -> T,
) {
    let (url, folder) = (running.url().to_owned(), running.folder().unwrap().to_owned());
    let before = ask(&running);

    let killed = running.process_id();
    running.kill().unwrap();
    assert_eq!(running.ping().unwrap_err().kind(), ErrorKind::NoAnswer);
    assert_eq!(running.pause().unwrap_err().kind(), ErrorKind::System, "the dead cannot pause");
    running.restart().unwrap();
    assert_ne!(running.process_id(), killed);
    assert_eq!((running.url(), running.folder()), (url.as_str(), Some(folder.as_path())));
    assert_eq!(ask(&running), before, "after a kill");

    running.pause().unwrap();
    let error = running.ping_within(Duration::from_millis(300)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoAnswer);
    running.resume().unwrap();
    assert_eq!(ask(&running), before, "after a pause");

    running.stop().unwrap();
    assert_eq!(running.ping().unwrap_err().kind(), ErrorKind::NoAnswer);
    running.restart().unwrap();
    assert_eq!(ask(&running), before, "after a stop");

    assert_eq!(running.starts(), starts + 2);
    drop(running);
    assert!(!folder.exists(), "its data are removed");
    let again = wire::ping(Service::Redis, &url.replace("127", "redis://127"), PATIENCE);
    assert_eq!(again.unwrap_err().kind(), ErrorKind::NoAnswer);
}

#[test]
fn nats_survives() {
    let Some(nats) = ours(Nats::builder().setting("max_payload", "4KB"), Service::Nats) else {
        return;
    };
    assert_eq!(wire::nats::info(nats.url(), PATIENCE).unwrap()["max_payload"], 4096);
    let stream = r#"{"name":"KEPT","subjects":["kept.*"],"storage":"file"}"#;
    let ask = |subject: &str, payload: &str| {
        wire::nats::request(nats.url(), subject, payload, PATIENCE).unwrap()
    };
    assert!(ask("$JS.API.STREAM.CREATE.KEPT", stream).contains("\"did_create\":true"));
    assert!(ask("kept.one", "a message").contains("\"seq\":1"));
    survives(nats, |nats| {
        let subject = "$JS.API.STREAM.MSG.GET.KEPT";
        let reply = wire::nats::request(nats.url(), subject, r#"{"seq":1}"#, PATIENCE).unwrap();
        let reply: serde_json::Value = serde_json::from_str(&reply).unwrap();
        assert_eq!(reply["message"]["subject"], "kept.one", "{reply}");
        reply["message"]["data"].clone()
    });
}

#[test]
fn nobody_listening_is_told_from_silence() {
    let Some(nats) = ours(Nats::builder(), Service::Nats) else { return };
    let error = wire::nats::request(nats.url(), "nobody.here", "", PATIENCE).unwrap_err();
    assert!(error.to_string().contains("nobody listens on `nobody.here`"), "{error}");
}

#[test]
fn kafka_survives() {
    let Some(kafka) = ours(Kafka::builder(), Service::Kafka) else { return };
    let versions = wire::kafka::api_versions(kafka.url(), PATIENCE).unwrap();
    assert!(versions.iter().any(|version| version.key == 18 && version.newest >= 3));
    assert_eq!(wire::kafka::quorum_leader(kafka.url(), PATIENCE).unwrap(), 1);
    survives(kafka, |kafka| {
        until(|| {
            let metadata = wire::kafka::metadata(kafka.url(), &["kept"], A_TRY)
                .map_err(|error| error.to_string())?;
            let topic = &metadata.topics[0];
            if topic.replicas == [[1]] { Ok(metadata.clone()) } else { Err(format!("{topic:?}")) }
        })
    });
}

#[test]
fn postgres_survives() {
    let builder = Postgres::builder().setting("max_connections", "17");
    let Some(postgres) = ours(builder, Service::Postgres) else { return };
    let query = |sql: &str| wire::postgres::query(postgres.url(), sql, PATIENCE);
    let one = |sql: &str| query(sql).unwrap()[0][0].clone().unwrap();
    assert_eq!(one("SHOW max_connections"), "17");
    assert_eq!(one("SHOW fsync"), "on");
    let error = query("SELECT nonsense").unwrap_err();
    assert!(error.to_string().contains("(42703)"), "the server's own error: {error}");
    query("CREATE TABLE kept (x text); INSERT INTO kept VALUES ('a row'), (NULL)").unwrap();
    survives(postgres, |postgres| {
        let rows = wire::postgres::query(postgres.url(), "SELECT x FROM kept", PATIENCE).unwrap();
        assert_eq!(rows, [[Some("a row".to_owned())], [None]]);
        rows
    });
}

#[test]
fn a_killed_postgres_finishes_nothing() {
    let Some(mut postgres) = ours(Postgres::builder(), Service::Postgres) else { return };
    let query = |url: &str, sql: &str| wire::postgres::query(url, sql, PATIENCE);
    query(postgres.url(), "CREATE TABLE late (x int)").unwrap();
    let url = postgres.url().to_owned();
    // A session that would commit after the kill, were it left alive; its processes have groups of
    // their own.
    let busy = std::thread::spawn(move || {
        query(&url, "INSERT INTO late SELECT count(*) FROM generate_series(1, 200000000)")
    });
    until(|| {
        let sql = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'INSERT INTO late%'";
        let rows = query(postgres.url(), sql).map_err(|error| error.to_string())?;
        if rows[0][0].as_deref() == Some("1") { Ok(()) } else { Err("not busy".to_owned()) }
    });
    postgres.kill().unwrap();
    assert_eq!(busy.join().unwrap().unwrap_err().kind(), ErrorKind::NoAnswer);
    postgres.restart().unwrap();
    let rows = query(postgres.url(), "SELECT count(*) FROM late").unwrap();
    assert_eq!(rows, [[Some("0".to_owned())]]);
}

#[test]
fn redis_survives() {
    let Some(redis) = ours(Redis::builder(), Service::Redis) else { return };
    let command = |words: &[&str]| wire::redis::command(redis.url(), words, PATIENCE);
    assert_eq!(command(&["SET", "kept", "a value"]).unwrap().as_deref(), Some("OK"));
    assert_eq!(command(&["GET", "never"]).unwrap(), None);
    assert!(command(&["NONSENSE"]).unwrap_err().to_string().contains("unknown command"));
    survives(redis, |redis| {
        let value = wire::redis::command(redis.url(), &["GET", "kept"], PATIENCE).unwrap();
        assert_eq!(value.as_deref(), Some("a value"));
        value
    });
}

#[test]
fn redis_without_its_file_forgets_when_killed() {
    let builder = Redis::builder().setting("appendonly", "no");
    let Some(mut redis) = ours(builder, Service::Redis) else { return };
    let command = |url: &str, words: &[&str]| wire::redis::command(url, words, PATIENCE).unwrap();
    command(redis.url(), &["SET", "lost", "a value"]);
    redis.kill().unwrap();
    redis.restart().unwrap();
    assert_eq!(command(redis.url(), &["GET", "lost"]), None);
}

#[test]
fn mongo_survives() {
    let Some(mongo) = ours(Mongo::builder(), Service::Mongo) else { return };
    let ask = |mongo: &Running, name: &str, rest: serde_json::Value| {
        wire::mongo::command(mongo.url(), "kept", name, &json!("c"), &rest, PATIENCE)
    };
    let build = ask(&mongo, "buildInfo", json!({})).unwrap();
    assert_eq!(build["versionArray"], json!([4, 4, 0]));
    let error = ask(&mongo, "nonsense", json!({})).unwrap_err();
    assert!(error.to_string().contains("no such command"), "{error}");
    // Each is killed right after it was answered, and none is lost.
    let mut mongo = mongo;
    for number in 0..3 {
        let answer = ask(&mongo, "insert", json!({"documents": [{"_id": number}]})).unwrap();
        assert_eq!(answer["n"], 1, "{answer}");
        mongo.kill().unwrap();
        mongo.restart().unwrap();
    }
    let starts = mongo.starts();
    assert_eq!(starts, 4);
    survives_from(mongo, starts, |mongo| {
        let answer = ask(mongo, "find", json!({"filter": {}, "sort": {"_id": 1}})).unwrap();
        assert_eq!(answer["cursor"]["firstBatch"], json!([{"_id": 0}, {"_id": 1}, {"_id": 2}]));
        answer["cursor"]["firstBatch"].clone()
    });
}

#[test]
fn mongo_may_be_older_and_forgetful() {
    let builder = Mongo::builder().setting("file", "").setting("version", "3.6.1");
    let Some(mut mongo) = ours(builder, Service::Mongo) else { return };
    let ask = |mongo: &Running, name: &str, rest: serde_json::Value| {
        wire::mongo::command(mongo.url(), "kept", name, &json!("c"), &rest, PATIENCE).unwrap()
    };
    assert_eq!(ask(&mongo, "buildInfo", json!({}))["versionArray"], json!([3, 6, 1]));
    assert_eq!(ask(&mongo, "insert", json!({"documents": [{"_id": 1}]}))["n"], 1);
    assert_eq!(ask(&mongo, "count", json!({}))["n"], 1);
    mongo.kill().unwrap();
    mongo.restart().unwrap();
    assert_eq!(ask(&mongo, "count", json!({}))["n"], 0);
    assert_eq!(mongo.starts(), 2);
}

#[test]
fn data_are_kept_where_the_caller_says() {
    let folder = std::env::temp_dir().join(format!("dlq-services-kept-{}", std::process::id()));
    for expected in [None, Some("a value")] {
        let builder = Redis::builder().keep_in(&folder);
        let Some(mut redis) = ours(builder, Service::Redis) else { return };
        let command = |words: &[&str]| wire::redis::command(redis.url(), words, PATIENCE).unwrap();
        assert_eq!(command(&["GET", "kept"]).as_deref(), expected);
        command(&["SET", "kept", "a value"]);
        redis.stop().unwrap();
    }
    assert!(folder.is_dir());
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_server_that_ends_shows_the_end_of_its_log() {
    let builder = Redis::builder().setting("nonsense", "yes").ours();
    let Err(error) = builder.start() else { panic!("it knows no such setting") };
    if error.kind() == ErrorKind::NotInstalled {
        let _ = or_skip::<()>(Service::Redis, Err(error));
        return;
    }
    assert_eq!(error.kind(), ErrorKind::NotReady);
    let text = error.to_string();
    assert!(text.starts_with("redis: it ended instead of serving; its log ends:"), "{text}");
    assert!(text.contains("nonsense"), "{text}");
}
