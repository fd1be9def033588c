//! A letter that is sent back too often is set aside, and whoever watches sees it.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::BTreeMap;
use std::time::Duration;

use dlq_core::store::{
    Actor, ClaimRequest, Claims as _, DLQ_MESSAGES_QUARANTINED_TOTAL, Letters as _, OperationSpec,
    Operations as _,
};
use dlq_core::{
    DeadLetter, ErrorClass, Filter, Message, Origin, Position, Reason, Sink as _, Status,
};
use dlq_letters::memory::MemoryStore;
use metrics_util::debugging::{DebugValue, DebuggingRecorder};

#[test]
fn g7_a_letter_set_aside_for_its_replays_is_counted_by_event_and_reason() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    metrics::with_local_recorder(&recorder, || {
        tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap()
            .block_on(replay_past_the_cap());
    });
    let counted: Vec<_> = snapshotter.snapshot().into_vec();
    let [(key, _, _, DebugValue::Counter(1))] = counted.as_slice() else { panic!("{counted:?}") };
    let labels: BTreeMap<_, _> =
        key.key().labels().map(|label| (label.key(), label.value())).collect();
    assert_eq!(key.key().name(), DLQ_MESSAGES_QUARANTINED_TOTAL);
    assert_eq!(labels, BTreeMap::from([("event", "payment.created"), ("reason", "max_replays")]));
}

async fn replay_past_the_cap() {
    let store = MemoryStore::new();
    store.put(vec![letter()]).await.unwrap();
    for replay in 0..2 {
        let spec = OperationSpec::replay(Filter::new()).max_replays(1);
        store.start(spec, Actor::new("test")).await.unwrap();
        let claims = store
            .claim(ClaimRequest::due(["payments"], 10, Duration::from_secs(60)))
            .await
            .unwrap();
        assert_eq!(claims.len(), usize::from(replay == 0));
        for claim in claims {
            let generation = claim.next_death().generation;
            let again = claim.letter.with_generation(generation);
            store.put(vec![again]).await.unwrap();
        }
    }
    let quarantined =
        Filter::new().with_status(Status::Quarantined).with_reason(Reason::MaxReplays);
    assert_eq!(store.count(quarantined).await.unwrap(), 1);
}

fn letter() -> DeadLetter {
    let origin = Origin::new("memory", "payments", Position::Offset(1));
    let message = Message::new("payments", "{}").with_event("payment.created");
    let mut letter = DeadLetter::new(message, origin, "payments", Reason::Manual);
    letter.class = ErrorClass::Transient;
    letter.deliveries = 1;
    letter
}
