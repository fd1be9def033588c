//! Tasks that send letters back.

use dlq_core::store::{ItemOutcome, OperationState, Target};
use dlq_core::{Filter, Status};

use crate::page::Page;
use crate::world::{HOUR, World, on_each_store, payment, refused};

/// Waits until so many letters have this status.
async fn letters_are(page: &Page, world: &World, status: Status, count: u64) {
    page.until(&format!("{count} letters that are {status}"), async || {
        let found = world.letters.count(Filter::new().with_status(status)).await.unwrap();
        Ok((found == count).then_some(()))
    })
    .await;
}

#[test]
fn a_letter_is_sent_back_to_its_handler() {
    on_each_store("handler", async |page: &Page, world| {
        let one = refused(1, "acme", "card expired");
        world.put(HOUR, [one.clone(), refused(2, "acme", "limit exceeded")]).await;
        world.consume().await;
        page.click("Letters").await;
        page.click_row("card expired").await;
        page.click("Replay").await;
        page.sees("1 letters would be sent back to the consumers that failed").await;
        page.fill("Reason", "the customer has a new card").await;
        page.fill("Type 1 to confirm", "1").await;
        page.click("Replay 1 letters").await;
        // Nobody loads the page again: it shows what comes.
        page.sees("completed").await;
        letters_are(page, world, Status::Resolved, 1).await;
        assert_eq!(world.letters.get(one.id).await.unwrap().state.status, Status::Resolved);
        assert_eq!(world.broker.messages().len(), 0, "nobody else sees it");
        page.has_rows("Letters of the operation", &[&["succeeded"]]).await;
    });
}

#[test]
fn a_group_is_sent_to_its_origin_watched_paused_and_cancelled() {
    const ALL: u64 = 400;
    on_each_store("origin", async |page: &Page, world| {
        world.put(HOUR, (0..ALL).map(|n| refused(n, "acme", "card expired"))).await;
        world.consume().await;
        page.click("Groups").await;
        page.click_row("card expired").await;
        page.click("Replay this group").await;
        page.fill("Rate at most", "3/s").await;
        page.fill("Canary", "2").await;
        page.fill("Destination", "origin").await;
        page.click("Show what would be sent").await;
        page.sees("everybody who listens there sees them again").await;
        page.sees("The first 2 go alone").await;
        // What is typed after the plan counts as well.
        page.fill("Rate at most", "2/s").await;
        page.fill("Reason", "the bank is back").await;
        page.fill("Type 400 to confirm", "400").await;
        page.click("Replay 400 letters").await;
        page.shows_operation("running").await;
        assert_eq!(page.fact("rate").await, "2/s");
        // The figures move on a page that nobody loads again.
        let done = async || {
            let done = "return document.querySelector('progress').value";
            page.script(done).await.as_u64().unwrap_or_default()
        };
        let before = done().await;
        page.until("progress", async || Ok((done().await > before).then_some(()))).await;
        page.fill("Reason", "the bank asks us to wait").await;
        page.click("Pause").await;
        page.shows_operation("paused").await;
        page.fill("Reason", "not today").await;
        page.click("Cancel for good").await;
        page.sees("Replay what was not sent").await;
        let operations = world.letters.operations(9).await.unwrap();
        let [operation] = &operations[..] else { panic!("{operations:?}") };
        assert_eq!(operation.state, OperationState::Cancelled);
        assert_eq!((&operation.spec.target, operation.spec.canary), (&Target::Origin, Some(2)));
        assert_eq!(operation.by.note.as_deref(), Some("the bank is back"));
        let sent = operation.progress.with_outcome(ItemOutcome::Succeeded);
        assert!((2..ALL).contains(&sent), "{operation:?}");
        assert!(!world.broker.messages().is_empty());
    });
}

#[test]
fn a_payload_is_edited_and_sent() {
    on_each_store("edit", async |page: &Page, world| {
        let wrong = "{\n  \"order\": 1,\n  \"cents\": \"12,00\"\n}";
        let one = payment(1, "acme", wrong.to_owned(), "cents are no number");
        world.put(HOUR, [one.clone()]).await;
        world.consume().await;
        page.click("Letters").await;
        page.click_row("cents are no number").await;
        page.click("Edit").await;
        assert_eq!(page.value("Text").await, wrong);
        page.fill("Text", "{\n  \"order\": 1,\n  \"cents\": 1200\n}").await;
        page.click("Show what would change").await;
        page.sees("This would change").await;
        page.sees("-   \"cents\": \"12,00\"").await;
        page.fill("Reason", "the amount was text").await;
        page.click("Save").await;
        page.sees("\"cents\": 1200").await;
        page.click("Replay").await;
        page.fill("Reason", "the amount is a number").await;
        page.fill("Type 1 to confirm", "1").await;
        page.click("Replay 1 letters").await;
        page.sees("completed").await;
        letters_are(page, world, Status::Resolved, 1).await;
        let edited = world.letters.get(one.id).await.unwrap();
        assert_eq!(
            edited.message.payload().unwrap(),
            &b"{\n  \"order\": 1,\n  \"cents\": 1200\n}"[..]
        );
    });
}
