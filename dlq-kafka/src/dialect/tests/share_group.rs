use dlq_core::{ErrorClass, Reason};

use super::*;

fn dead(message: &str) -> Record {
    record("dlq.orders")
        .with("__dlq.errors.topic", "orders")
        .with("__dlq.errors.partition", "3")
        .with("__dlq.errors.offset", "41")
        .with("__dlq.errors.group", "workers")
        .with("__dlq.errors.delivery.count", "5")
        .with("__dlq.errors.message", message)
}

#[test]
fn a_copy_tells_group_deliveries_and_reason() {
    let record = dead("Offset delivery count exceeded the threshold.");
    assert_eq!(of(&record), Some(Dialect::ShareGroup));
    let letter = read(&record);
    assert_producers(&letter, &record, &[]);
    assert_eq!(letter.id, id("orders", 3, 41, None, "workers"));
    assert_eq!((letter.deliveries, letter.attempts), (5, 0));
    assert_eq!((letter.class, letter.reason), (ErrorClass::Transient, Reason::MaxDeliveries));
    assert_eq!(letter.died_at, DIED);
    let unknown = "attempts";
    assert_attributes(&letter, &[("dlq.dialect", "share-group"), ("dlq.unknown", unknown)]);
    let letter = read(&dead("Offset rejected by client."));
    assert_eq!((letter.class, letter.reason), (ErrorClass::Permanent, Reason::Permanent));
    assert_eq!(letter.error(), "Offset rejected by client.");
}

#[test]
fn without_a_copy_it_points_to_the_record() {
    let mut record = dead("Offset rejected by client.");
    (record.key, record.value) = (None, None);
    let letter = read(&record);
    assert_eq!(letter.attributes[POINTER], "orders/3/41");
    assert!(Gap::Payload.is_in(&letter));
    assert_eq!(letter.message.payload(), None);
}

#[test]
fn a_copied_tombstone_is_no_pointer() {
    let mut record = dead("Offset rejected by client.");
    record.value = None;
    let letter = read(&record);
    assert!(!letter.attributes.contains_key(POINTER) && !Gap::Payload.is_in(&letter));
}
