//! The letters that a replay sends.

use dlq_core::replay::{ReplayRules, Skipped};
use dlq_core::store::reading::Row;
use dlq_core::{Message, OperationId, Position, Timestamp};

use crate::letter;

#[test]
fn letters_are_sent_oldest_first_up_to_the_limit() {
    let mut letters = Vec::new();
    for place in [5, 1, 4, 2, 3_u64] {
        let mut letter = letter(Message::new("orders", vec![0; 7]), "e", 1);
        letter.origin = letter.origin.with_position(Position::Offset(place));
        letter.id = dlq_core::LetterId::of(&letter.origin, None, &letter.consumer);
        letter.state.replays = if place == 1 { 10 } else { 0 };
        letters.push(Row::new(letter, place));
    }
    let operation = OperationId::of("ana", Timestamp::EPOCH, 1);
    let select = |limit| {
        let rules = ReplayRules { limit, ..ReplayRules::new(operation) };
        let at = |place| &letters.iter().find(|row| row.place == place).unwrap().letter;
        let sent_by = |death: &_| (*death == at(2).death()).then_some(operation);
        let third = at(3).id;
        let barred =
            |letter: &dlq_core::DeadLetter| (letter.id == third).then_some(Skipped::NoOrigin);
        rules.select(&letters, sent_by, barred)
    };
    let all = select(u64::MAX);
    assert_eq!(all.send.iter().map(|row| row.place).collect::<Vec<_>>(), [4, 5]);
    let skipped: Vec<_> = all.skip.iter().map(|(row, why)| (row.place, *why)).collect();
    assert_eq!(skipped, [(1, Skipped::MaxReplays), (2, Skipped::Sent), (3, Skipped::NoOrigin)]);
    assert_eq!(all.last(), Some(5));
    let plan = all.plan();
    assert_eq!((plan.letters, plan.skipped.len(), plan.sample.len()), (2, 3, 2));
    assert_eq!(plan.sample[0].payload_size, Some(7));
    let one = select(1);
    assert_eq!((one.send.len(), one.skip.len(), one.last()), (1, 3, Some(4)), "5 is not looked at");
}
