//! Tasks of somebody on call, one test each. Those that send letters back are in `replays`.

use std::time::Duration;

use dlq_core::store::{Actor, GroupKey, Heartbeat, Maintenance as _, Selection, Triage};
use dlq_core::{Filter, Status};

use crate::page::Page;
use crate::world::{CONSUMER, DAY, HOUR, on_each_store, refused};

#[test]
fn what_began_in_the_last_hour_is_found() {
    on_each_store("began", async |page: &Page, world| {
        world.put(DAY * 3, (0..5).map(|n| refused(n, "acme", "card expired"))).await;
        let anew = (5..7).map(|n| refused(n, "acme", "card expired"));
        let new = (7..9).map(|n| refused(n, "initech", "limit exceeded"));
        world.put(HOUR / 4, anew.chain(new)).await;
        page.click("Groups").await;
        page.click("Began in the last hour").await;
        page.sees("limit exceeded").await;
        page.sees_no("card expired").await;
        page.click("Letters of the last hour").await;
        page.sees("card expired").await;
    });
}

#[test]
fn the_whole_story_of_a_letter_is_read() {
    on_each_store("story", async |page: &Page, world| {
        world.put(HOUR, [refused(1, "acme", "card expired")]).await;
        let letter = refused(1, "acme", "card expired");
        let look_at_it = Actor::new("bo").with_note("the card is fine");
        let all = Selection::matching(Filter::new().with_id(letter.id)).unwrap();
        world.letters.quarantine(all.clone(), look_at_it.clone()).await.unwrap();
        world.letters.release(all, look_at_it).await.unwrap();
        page.click("Letters").await;
        page.click_row("card expired").await;
        page.sees(&letter.id.to_string()).await;
        page.sees("shop::Refused").await;
        assert_eq!(page.fact("attributes").await, "customer=acme");
        assert_eq!(page.fact("origin").await, letter.origin.to_string());
        let text = page.text().await;
        for part in ["1 attempts", "evt-1", "00-0000000000000000000", "\"cents\": 1200"] {
            assert!(text.contains(part), "`{part}` is not in {text}");
        }
        let expected = ["release", "quarantine"].map(|verb| [verb, "bo", "the card is fine"]);
        page.has_rows("Audit", &[&expected[0], &expected[1]]).await;
    });
}

#[test]
fn others_that_failed_of_that_customer_are_found() {
    on_each_store("customer", async |page: &Page, world| {
        world.put(HOUR, [refused(1, "acme", "card expired")]).await;
        world.put(HOUR, [refused(2, "initech", "card expired")]).await;
        world.put(HOUR, [refused(3, "acme", "limit exceeded")]).await;
        page.click("Letters").await;
        page.click_row("limit exceeded").await;
        page.click("acme").await;
        page.sees("2 letters match").await;
        page.click_row("card expired").await;
        // The other way to them: a key that no attribute says.
        page.click("all letters of this key").await;
        page.sees("2 letters found").await;
        page.has_rows("Letters", &[&["limit exceeded"], &["card expired"]]).await;
    });
}

#[test]
fn a_group_is_quarantined_with_a_note() {
    on_each_store("quarantine", async |page: &Page, world| {
        world.put(HOUR, (0..4).map(|n| refused(n, "acme", "card expired"))).await;
        world.put(HOUR, (4..6).map(|n| refused(n, "acme", "limit exceeded"))).await;
        page.click("Groups").await;
        page.click_row("card expired").await;
        page.click("Quarantine").await;
        page.sees("4 letters match").await;
        page.fill("Reason", "the bank looks at it, ticket 4711").await;
        page.fill("Type 4 to confirm", "4").await;
        page.click("Quarantine letters").await;
        page.sees("4 letters were changed").await;
        let quarantined = Filter::new().with_status(Status::Quarantined);
        assert_eq!(world.letters.count(quarantined).await.unwrap(), 4);
        page.click("Audit").await;
        page.has_rows("Audit", &[&["ana", "quarantine", "ticket 4711"]]).await;
    });
}

#[test]
fn who_deleted_letters_yesterday_is_found() {
    on_each_store("deleted", async |page: &Page, world| {
        let delete = async |n: u64, who: &str, why: &str| {
            let letter = refused(n, "acme", "card expired");
            let only = Selection::matching(Filter::new().with_id(letter.id)).unwrap();
            world.past.put(vec![letter]).await.unwrap();
            world.past.quarantine(only.clone(), Actor::new("otto")).await.unwrap();
            world.past.delete(only, Actor::new(who).with_note(why)).await.unwrap();
        };
        world.put(DAY * 3, []).await;
        delete(1, "rita", "old news").await;
        world.put(DAY, []).await;
        delete(2, "bo", "test data").await;
        world.put(Duration::ZERO, []).await;
        delete(3, "ana", "too many").await;
        page.click("Audit").await;
        page.click("Filter").await;
        page.choose("action", "delete").await;
        page.click("Show").await;
        page.has_rows("Audit", &[&["ana"], &["bo"], &["rita"]]).await;
        page.click("Yesterday").await;
        page.has_rows("Audit", &[&["bo", "delete", "test data"]]).await;
    });
}

#[test]
fn a_group_is_snoozed() {
    on_each_store("snooze", async |page: &Page, world| {
        let letter = refused(1, "acme", "card expired");
        let key = GroupKey::new(CONSUMER, letter.fingerprint);
        world.put(HOUR, [letter]).await;
        page.click("Groups").await;
        page.click_row("card expired").await;
        page.click("Decide").await;
        page.choose("Decision", "snooze").await;
        page.fill("Snooze for", "1d").await;
        page.fill("Owner", "payments").await;
        page.fill("Reason", "the bank mends it tonight").await;
        page.click("Save").await;
        page.sees("snoozed until").await;
        assert_eq!(page.fact("owner").await, "payments");
        let record = world.letters.group_record(key).await.unwrap();
        assert!(matches!(record.triage, Triage::Snoozed(_)), "{record:?}");
        page.click("Groups").await;
        page.sees("1 more are snoozed or resolved").await;
        page.sees_no("card expired").await;
    });
}

#[test]
fn a_consumer_that_is_gone_is_seen() {
    on_each_store("gone", async |page: &Page, world| {
        let beat =
            |name: &str| Heartbeat::new(name, format!("1-{name}")).host("web-1").build("1.4.2");
        world.put(HOUR, []).await;
        world.past.store().heartbeat(beat("billing.refund")).await.unwrap();
        world.letters.store().heartbeat(beat(CONSUMER)).await.unwrap();
        page.click("Overview").await;
        page.click("1 consumer is gone").await;
        page.has_rows("Consumers", &[&["billing.refund", "gone", "1h ago"]]).await;
        // It lives for another minute.
        world.letters.store().heartbeat(beat(CONSUMER)).await.unwrap();
        page.click("Show all").await;
        page.has_rows("Consumers", &[&["billing.refund", "gone"], &[CONSUMER, "alive"]]).await;
    });
}
