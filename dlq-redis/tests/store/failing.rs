//! A server whose memory is full, and keys of another type: a call fails whole, and nothing of it is written.

use std::collections::BTreeMap;
use std::time::Duration;

use dlq_core::store::{
    Actor, CheckLimits, ClaimRequest, Claims as _, Finish, Letters as _, Maintenance as _, Mark,
    OperationSpec, Operations as _, Selection, Sink as _,
};
use dlq_core::{
    Filter, Finding, Resolution, RetryQueue as _, StoreError, StoreErrorKind, Timestamp,
};
use dlq_redis::redis::{self, aio::MultiplexedConnection};
use dlq_redis::store::RedisStore;
use dlq_services::Redis;
use dlq_testkit::fixtures::{delayed_retry, died_again, letter};

use crate::fixture::{PATIENCE, available, builder, client, prefix, url};

fn by() -> Actor {
    Actor::new("ana")
}

fn all() -> Selection {
    Selection::matching(Filter::new().with_consumer(letter(0).consumer)).unwrap()
}

/// With the patience of a test.
async fn connect(url: &str) -> MultiplexedConnection {
    let config = redis::AsyncConnectionConfig::new()
        .set_response_timeout(Some(PATIENCE))
        .set_connection_timeout(Some(PATIENCE));
    let client = redis::Client::open(url).unwrap();
    client.get_multiplexed_async_connection_with_config(&config).await.unwrap()
}

async fn damage(store: &RedisStore) -> Vec<Finding> {
    let limits = CheckLimits::default().deep(true);
    let found = store.check(limits).await.unwrap().into_iter();
    found.filter(|finding| finding.setting == "integrity").collect()
}

/// Everything under a prefix, as it is stored.
async fn dump(conn: &mut MultiplexedConnection, prefix: &str) -> BTreeMap<Vec<u8>, String> {
    let keys: Vec<Vec<u8>> =
        redis::cmd("KEYS").arg(format!("{prefix}*")).query_async(conn).await.unwrap();
    let mut all = BTreeMap::new();
    for key in keys {
        let kind: String = redis::cmd("TYPE").arg(&key).query_async(conn).await.unwrap();
        let (read, args) = match kind.as_str() {
            "hash" => ("HGETALL", &[][..]),
            "zset" => ("ZRANGE", &["0", "-1"][..]),
            "list" => ("LRANGE", &["0", "-1"][..]),
            "set" => ("SMEMBERS", &[][..]),
            _ => ("GET", &[][..]),
        };
        let mut cmd = redis::cmd(read);
        let value: redis::Value = cmd.arg(&key).arg(args).query_async(conn).await.unwrap();
        // The order of fields and of members is not kept.
        let mut fields = match (kind.as_str(), value) {
            ("set", redis::Value::Array(members)) => {
                members.iter().map(|member| format!("{member:?}")).collect()
            }
            ("hash", redis::Value::Array(fields)) => {
                fields.chunks(2).map(|field| format!("{field:?}")).collect()
            }
            (_, value) => vec![format!("{value:?}")],
        };
        fields.sort();
        all.insert(key, fields.concat());
    }
    all
}

/// Calls that write, each of which is refused.
async fn try_all(store: &RedisStore) -> Vec<(&'static str, Result<(), StoreError>)> {
    let request = ClaimRequest::due([letter(0).consumer], 10, Duration::from_secs(60));
    let spec = OperationSpec::replay(Filter::new());
    vec![
        ("put new", store.put(vec![letter(900)]).await.map(drop)),
        ("put again", store.put(vec![died_again(&letter(0))]).await.map(drop)),
        ("enqueue", store.enqueue(delayed_retry(&letter(901), 1, Timestamp::EPOCH)).await),
        ("claim", store.claim(request).await.map(drop)),
        ("start", store.start(spec, by()).await.map(drop)),
        ("mark", store.mark(all(), Mark::Quarantined, by()).await.map(drop)),
    ]
}

/// G9: what a full server does not take is an error, so that nothing is acknowledged; what is there stays whole, and letters
/// can be deleted, so that there is room again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g9_a_full_server_writes_nothing_in_halves() {
    if !available() {
        return;
    }
    let server = Redis::builder().ours().start().unwrap();
    let prefix = prefix();
    let store = builder(server.url(), &prefix).await.open().await.unwrap();
    store.put((0..50).map(letter).collect()).await.unwrap();
    for n in 50..60 {
        store.enqueue(delayed_retry(&letter(n), 1, Timestamp::EPOCH)).await.unwrap();
    }
    let request = ClaimRequest::due([letter(0).consumer], 5, Duration::from_secs(600));
    let claimed = store.claim(request).await.unwrap();
    assert_eq!(claimed.len(), 5);
    let mut conn = connect(server.url()).await;
    let set = async |conn: &mut MultiplexedConnection, most: &str| {
        let () =
            redis::cmd("CONFIG").arg(&["SET", "maxmemory", most]).query_async(conn).await.unwrap();
    };
    let before = dump(&mut conn, &prefix).await;
    // Less than a server takes that has nothing, so that every write is refused from now on.
    set(&mut conn, "1mb").await;
    for (what, result) in try_all(&store).await {
        let error = result.expect_err(what);
        assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{what}: {error}");
        assert!(error.to_string().contains("memory of the server is full"), "{what}: {error}");
    }
    let end = Finish::Resolved(Resolution::Succeeded);
    let error = store.finish(vec![(claimed[0].token, end.clone())]).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable);
    assert_eq!(dump(&mut conn, &prefix).await, before, "nothing was written");
    // What is held stays.
    assert_eq!(store.delete(all(), by()).await.unwrap().changed, 55);
    assert_eq!(damage(&store).await, []);
    set(&mut conn, "0").await;
    store.finish(vec![(claimed[0].token, end)]).await.unwrap();
    store.put(vec![letter(900)]).await.unwrap();
    assert_eq!(store.count(Filter::new()).await.unwrap(), 6);
    assert_eq!(damage(&store).await, []);
}

/// Whatever key somebody else uses: a call that needs it is refused before it has written anything, and the check names it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_of_another_type_spoils_nothing() {
    if !available() {
        return;
    }
    let mut conn = connect(url()).await;
    for name in [
        "meta",
        "i",
        "n",
        "groups",
        "lines",
        "own",
        "alias",
        "ops",
        "live",
        "audit",
        "audit:more",
        "sched",
    ] {
        let prefix = prefix();
        let store = builder(url(), &prefix).await.dedup(name == "own").open().await.unwrap();
        store.put((0..3).map(letter).collect()).await.unwrap();
        let key = format!("{prefix}:{name}");
        let moved = format!("{prefix}:kept");
        let was_there: bool = redis::cmd("EXISTS").arg(&key).query_async(&mut conn).await.unwrap();
        if was_there {
            let () =
                redis::cmd("RENAME").arg(&key).arg(&moved).query_async(&mut conn).await.unwrap();
        }
        let () = redis::cmd("SET").arg(&key).arg("x").query_async(&mut conn).await.unwrap();
        let before = dump(&mut conn, &prefix).await;
        let request = ClaimRequest::due([letter(0).consumer], 10, Duration::from_secs(60));
        let spec = OperationSpec::replay(Filter::new());
        let results: [(&str, Result<(), StoreError>); 5] = [
            ("put", store.put(vec![letter(900)]).await.map(drop)),
            ("again", store.put(vec![died_again(&letter(0))]).await.map(drop)),
            ("claim", store.claim(request).await.map(drop)),
            ("start", store.start(spec, by()).await.map(drop)),
            ("mark", store.mark(all(), Mark::Quarantined, by()).await.map(drop)),
        ];
        let failed = results.iter().filter(|(_, result)| result.is_err()).count();
        for (what, result) in &results {
            let kind = result.as_ref().err().map(StoreError::kind);
            assert_ne!(kind, Some(StoreErrorKind::Refused), "{name}, {what}: a letter is given up");
        }
        // Where some calls need the key and others do not, what those have written is no damage.
        if failed == results.len() {
            assert_eq!(dump(&mut conn, &prefix).await, before, "{name}: nothing was written");
        }
        if !matches!(name, "sched" | "audit:more") {
            assert!(failed > 0, "{name} is needed by some call");
        }
        let found = store.check(CheckLimits::default()).await.unwrap();
        let names_it = |finding: &Finding| finding.subject == format!("key `{key}`");
        assert!(found.iter().any(names_it), "{name}: {found:?}");
        let () = redis::cmd("DEL").arg(&key).query_async(&mut conn).await.unwrap();
        if was_there {
            let () =
                redis::cmd("RENAME").arg(&moved).arg(&key).query_async(&mut conn).await.unwrap();
        }
        assert_eq!(damage(&store).await, [], "{name}: what was written was written whole");
    }
}

/// A letter's own key, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_letter_of_another_type_is_no_letter() {
    if !available() {
        return;
    }
    let (mut conn, prefix) = (connect(url()).await, prefix());
    let store = builder(url(), &prefix).await.open().await.unwrap();
    store.put(vec![letter(1)]).await.unwrap();
    let key = [prefix.as_bytes(), b":l:", letter(0).id.as_bytes()].concat();
    let () = redis::cmd("SET").arg(&key).arg("x").query_async(&mut conn).await.unwrap();
    let before = dump(&mut conn, &prefix).await;
    let error = store.put(vec![letter(0)]).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
    assert_eq!(dump(&mut conn, &prefix).await, before);
    assert_eq!(store.count(Filter::new()).await.unwrap(), 1);
}

/// Damage is found, and named.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damage_is_found() {
    if !available() {
        return;
    }
    type Harm = (&'static str, &'static str);
    let harms: [Harm; 5] = [
        ("an id is gone", "SPOP"),
        ("an entry of the index is gone", "ZPOPMIN"),
        ("an entry of the index is of no letter", "ZADD"),
        ("a count is wrong", "HINCRBY"),
        ("a letter is gone", "DEL"),
    ];
    let mut conn = connect(url()).await;
    for (what, command) in harms {
        let prefix = prefix();
        let store = builder(url(), &prefix).await.open().await.unwrap();
        store.put((0..3).map(letter).collect()).await.unwrap();
        assert_eq!(damage(&store).await, []);
        let mut cmd = redis::cmd(command);
        match command {
            "SPOP" => cmd.arg(format!("{prefix}:b:i{}", &letter(0).id.to_string()[..3])),
            "ZPOPMIN" => cmd.arg(format!("{prefix}:i")),
            "ZADD" => cmd.arg(format!("{prefix}:i")).arg(0).arg(b"s0123456789abcdefghijklmn"),
            "HINCRBY" => {
                let fields: Vec<String> = redis::cmd("HKEYS")
                    .arg(format!("{prefix}:n"))
                    .query_async(&mut conn)
                    .await
                    .unwrap();
                cmd.arg(format!("{prefix}:n")).arg(&fields[0]).arg(1)
            }
            _ => cmd.arg([prefix.as_bytes(), b":l:", letter(0).id.as_bytes()].concat()),
        };
        let _: redis::Value = cmd.query_async(&mut conn).await.unwrap();
        assert!(!damage(&store).await.is_empty(), "{what}");
    }
}

/// Settings that the server contradicts are named at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_kept_is_refused() {
    if !available() {
        return;
    }
    let error = builder(url(), "dlq").await.open().await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::InvalidConfig, "{error}");
    let prefix = prefix();
    builder(url(), &prefix).await.open().await.unwrap();
    let mut conn = connect(url()).await;
    let () = redis::cmd("HSET")
        .arg(&[format!("{prefix}:meta"), "schema".to_owned(), "99".to_owned()])
        .query_async(&mut conn)
        .await
        .unwrap();
    let error = builder(url(), &prefix).await.open().await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Incompatible, "{error}");
    let server = Redis::builder().ours().setting("appendonly", "no").start().unwrap();
    let error = builder(server.url(), &prefix).await.open().await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::InvalidConfig, "{error}");
    assert!(error.to_string().contains("append-only file"), "{error}");
    let client = client(server.url()).await;
    use dlq_redis::store::Durability;
    let replicas = RedisStore::builder(&client).prefix(&prefix).durability(Durability::Replicas(1));
    let store = replicas.replica_timeout(Duration::from_millis(50)).open().await.unwrap();
    let error = store.put(vec![letter(0)]).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("0 of 1 replicas"), "{error}");
    let found = store.check(CheckLimits::default()).await.unwrap();
    assert!(found.iter().any(|it| it.setting == "connected replicas"), "{found:?}");
}
