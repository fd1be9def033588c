//! The letters that a replay sends.

use dlq_core::replay::{ReplayRules, Skipped};
use dlq_core::store::reading::{Collapsed, Row};
use dlq_core::{Filter, Message, OperationId, Position, Timestamp};

use crate::letter;

#[test]
fn letters_are_sent_oldest_first_up_to_the_limit() {
    let mut letters = Collapsed::default();
    for place in [5, 1, 4, 2, 3_u64] {
        let mut letter = letter(Message::new("orders", vec![0; 7]), "e", 1);
        letter.origin = letter.origin.with_position(Position::Offset(place));
        letter.id = dlq_core::LetterId::of(&letter.origin, None, &letter.consumer);
        letter.state.replays = if place == 1 { 10 } else { 0 };
        let _ = letters.add(Row::new(letter, place));
    }
    let operation = OperationId::of("ana", Timestamp::EPOCH, 1);
    let filter = Filter::new();
    let select = |limit| {
        let rules = ReplayRules { limit, ..ReplayRules::new(operation) };
        let second = letters.matching(&filter).find(|row| row.place == 2).unwrap();
        let sent_by = |death: &_| (*death == second.letter.death()).then_some(operation);
        let third = letters.matching(&filter).find(|row| row.place == 3).unwrap().letter.id;
        let barred =
            |letter: &dlq_core::DeadLetter| (letter.id == third).then_some(Skipped::NoOrigin);
        rules.select(letters.matching(&filter), sent_by, barred)
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
