//! The gauges of dead letters in Redis.

use dlq_redis::redis;

use super::foreign::{BULLMQ, Fixture, RQ};
use super::run;
use crate::common::dlq;
use crate::scrape::{agree, has, served, until};

const SERVE: [&str; 5] = ["serve", "--metrics", "127.0.0.1:0", "--every", "100ms"];

#[tokio::test(flavor = "multi_thread")]
async fn letters_are_counted_without_reading_them() {
    let Some(place) = Fixture::with(&[BULLMQ, RQ]).await else { return };
    let own = "orders-dlq";
    place.command(&["XADD", own, "1000-1", "d", "x"]).await;
    place.command(&["XADD", own, "*", "d", "x"]).await;
    for (key, letters) in [("bull:mail:failed", 7), ("rq:failed:mail", 3), (own, 2)] {
        let url = place.url(key);
        let (process, address) = served(dlq(&[&SERVE[..], &["--from", &url]].concat()));
        let counted = format!("dlq_broker_letters{{part=\"{key}\"}} {letters}");
        let none = format!("dlq_broker_letters{{part=\"{key}\"}} 0");
        let page = tokio::task::block_in_place(|| {
            until(&address, "/metrics", has(&[&counted, "dlq_store_up 1"]))
        });
        let names = ["dlq_store_up", "dlq_broker_letters", "dlq_broker_oldest_age_seconds"];
        agree(&page, &names);
        let has_age = !page.contains("dlq_broker_oldest_age_seconds 0\n");
        assert_eq!(has_age, key != "rq:failed:mail", "{page}");
        if key == "bull:mail:failed" {
            // The last one goes, and the key with it.
            let _: redis::Value = place.command(&["DEL", key]).await;
            tokio::task::block_in_place(|| {
                until(&address, "/metrics", has(&[&none, "dlq_store_up 1"]))
            });
        }
        process.signal("-TERM");
        process.end().ok();
    }
    let own = place.url(own);
    let consumer = [&SERVE[..], &["--consumer", "a/b", "--from", &own]].concat();
    assert_eq!(run(&consumer).code, 2);
}
