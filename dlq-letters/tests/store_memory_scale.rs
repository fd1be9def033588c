//! The store in memory is not quadratic: four times the letters cost about four times the work, not sixteen.

use std::time::{Duration, Instant};

use dlq_core::store::{
    Actor, ClaimRequest, Claims, Finish, Letters, OperationSpec, Operations, Sink,
};
use dlq_core::{Filter, PageRequest, Resolution};
use dlq_letters::memory::MemoryStore;
use dlq_testkit::fixtures::{CONSUMER, letter};

async fn replay_and_list(count: u64) -> Duration {
    let store = MemoryStore::new();
    let mut letters: Vec<_> = (0..count).map(letter).collect();
    for letter in letters.iter_mut().step_by(2) {
        // Frozen with the others, and never claimed here.
        letter.consumer = "audit.write".to_owned();
    }
    let began = Instant::now();
    store.put(letters).await.expect("the store answers");
    store
        .start(OperationSpec::replay(Filter::new()), Actor::new("test"))
        .await
        .expect("the store answers");
    let mut done = 0;
    loop {
        let request = ClaimRequest::due([CONSUMER], 20, Duration::from_secs(60));
        let claims = store.claim(request).await.expect("the store answers");
        if claims.is_empty() {
            break;
        }
        done += claims.len() as u64;
        let success = || Finish::Resolved(Resolution::Succeeded);
        store
            .finish(claims.iter().map(|c| (c.token, success())).collect())
            .await
            .expect("the store answers");
        store.next_due(vec![CONSUMER.to_owned()]).await.expect("the store answers");
    }
    assert_eq!(done, count / 2);
    let mut page = PageRequest::new();
    while let Some(next) = store.list(Filter::new(), page).await.expect("the store answers").next {
        page = page.after(Some(next));
    }
    began.elapsed()
}

#[tokio::test]
async fn four_times_the_letters_are_about_four_times_the_work() {
    let mut few = Duration::MAX;
    let mut many = Duration::MAX;
    for _ in 0..3 {
        few = few.min(replay_and_list(2_000).await);
        many = many.min(replay_and_list(8_000).await);
    }
    println!("2,000 letters in {few:?}, 8,000 in {many:?}");
    assert!(many < few * 10, "2,000 letters took {few:?} and 8,000 took {many:?}");
}
