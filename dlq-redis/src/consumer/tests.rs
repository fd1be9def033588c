//! Scripts whose moment no test of the whole can wait for.

use dlq_services::{Redis, Service, ensure_installed, or_skip};
use redis::{Cmd, Value};

use super::place::PREFIX;
use super::scripts::{CLAIM_RECORDS, END_RECORDS, SWEEP, WRITE_RECORD};
use crate::client::{RedisClient, as_array, as_int, as_text};

fn words(text: &str) -> Cmd {
    let mut words = text.split(' ');
    let mut cmd = redis::cmd(words.next().unwrap());
    words.for_each(|word| {
        cmd.arg(word);
    });
    cmd
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_names_of_the_dead_with_nothing_pending_are_removed() {
    if or_skip(Service::Redis, ensure_installed(Service::Redis)).is_err() {
        return;
    }
    let server = Redis::builder().ours().start().unwrap();
    let client = RedisClient::open(server.url()).await.unwrap();
    for text in [
        "XADD s * d 1",
        "XGROUP CREATE s g 0",
        "XREADGROUP GROUP g dlq:busy STREAMS s >",
        "XGROUP CREATECONSUMER s g dlq:dead",
        "XGROUP CREATECONSUMER s g another",
    ] {
        client.command(&words(text)).await.unwrap();
    }
    let sweep = async |idle: i64| {
        let call = SWEEP.keys(&["s"]).arg("g").arg(idle).arg(PREFIX);
        as_int(&client.script(&call).await.unwrap())
    };
    assert_eq!(sweep(3_600_000).await, 0, "nobody is idle for so long");
    assert_eq!(sweep(-1).await, 1);
    let left = client.command(&words("XINFO CONSUMERS s g")).await.unwrap();
    let names: Vec<_> =
        as_array(&left).iter().filter_map(|one| as_text(&as_array(one)[1])).collect();
    assert_eq!(names, ["another", "dlq:busy"]);
    assert_eq!(as_int(&as_array(&client.command(&words("XPENDING s g")).await.unwrap())[0]), 1);
}

/// A record has one owner: whoever lost it ends nothing, and a fence never runs backwards, also where the server's clock or
/// a fail-over does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g6_a_record_is_ended_by_its_fence() {
    if or_skip(Service::Redis, ensure_installed(Service::Redis)).is_err() {
        return;
    }
    let server = Redis::builder().ours().start().unwrap();
    let client = RedisClient::open(server.url()).await.unwrap();
    let write = WRITE_RECORD
        .keys(&["r:1", "due"])
        .arg("1")
        .arg(0)
        .arg("f")
        .arg(0)
        .arg("n")
        .arg(0)
        .arg("b")
        .arg("body");
    assert_eq!(as_int(&client.script(&write).await.unwrap()), 1);
    assert_eq!(as_int(&client.script(&write).await.unwrap()), 0, "it is there already");
    let claim = async |lease: u64| {
        // A lease of nothing ends within the next millisecond.
        loop {
            let call = CLAIM_RECORDS.keys(&["due"]).arg("r:").arg(lease).arg(10);
            let answer = client.script(&call).await.unwrap();
            if let [record] = as_array(&as_array(&answer)[1]) {
                let parts = as_array(record);
                return (as_text(&parts[1]).unwrap(), as_int(&parts[2]));
            }
        }
    };
    let end = async |fence: &str, verb: &str| {
        let call = END_RECORDS
            .keys(&["due"])
            .arg("r:")
            .arg(60_000)
            .arg("1")
            .arg(fence)
            .arg(verb)
            .arg(0)
            .arg("");
        as_int(&as_array(&client.script(&call).await.unwrap())[0])
    };
    let (first, count) = claim(0).await;
    assert_eq!(count, 1);
    client.command(&words("HSET r:1 f 9000000000000000")).await.unwrap();
    let (second, count) = claim(60_000).await;
    assert_eq!((second.as_str(), count), ("9000000000000001", 2), "greater than any before");
    assert_eq!([end(&first, "later").await, end(&first, "extend").await], [0, 0], "lost");
    assert_eq!(end(&second, "later").await, 1);
    let (third, count) = claim(60_000).await;
    assert_eq!(count, 2, "one that was given back does not count");
    assert_eq!(end(&third, "done").await, 1);
    assert_eq!(end(&third, "done").await, 1, "said again");
    assert_eq!(
        as_int(&client.script(&write).await.unwrap()),
        0,
        "the same hop is no second record"
    );
    assert_eq!(client.command(&words("ZCARD due")).await.unwrap(), Value::Int(0));
}
