//! Reading of an entry as a letter: the inverse of [`write`](super::write).

use dlq_core::log::Content;
use dlq_core::protocol::split;
use dlq_core::{DeadLetter, Timestamp};

use super::scan::{Raw, millis_of};
use super::write::{REST, Rest};
use crate::consumer::wire::{self, Fields};

/// Reads an entry. One without the field `rest` was written by somebody else; one whose fields do not fit each other was
/// changed since, or was written by a version that this one does not know.
pub(super) fn content(raw: Raw) -> Content {
    if !raw.pairs.iter().any(|(name, _)| name == REST.as_bytes()) {
        return Content::Foreign;
    }
    match letter(raw) {
        Ok(letter) => Content::Letter(Box::new(letter)),
        Err(why) => Content::Damaged(why.to_owned()),
    }
}

fn letter(raw: Raw) -> Result<DeadLetter, &'static str> {
    let Raw { place, mut pairs } = raw;
    // The last one is ours; a producer's field of the same name stands before it.
    let at = pairs.iter().rposition(|(name, _)| name == REST.as_bytes());
    let (_, rest) = at.map(|at| pairs.remove(at)).ok_or("it has no field `rest`")?;
    let rest: Rest = serde_json::from_slice(&rest)
        .map_err(|_| "its field `rest` cannot be read; a newer version may have written it")?;
    // Letters have the default names of fields, whatever those of their stream are, so that one reader reads all.
    let fields = Fields::default();
    let find = |name: &str| pairs.iter().find(|(one, _)| one == name.as_bytes());
    let payload = find(&fields.payload).map(|(_, payload)| payload.clone());
    // A field that somebody has removed is no tombstone: sent back, the letter would be an empty message (G8).
    if payload.is_none() && find("absent").is_none() {
        return Err("its payload has gone");
    }
    let all = wire::read("", pairs, &fields, &"".into());
    let (producers, decoded) = split(all.headers());
    if decoded.death() != Some(rest.death) {
        return Err("its headers and its field `rest` name different deaths");
    }
    let mut message = rest.message.with_payload(payload);
    if !rest.exact {
        message = message.with_headers(producers);
    }
    let written = Timestamp::from_millis(millis_of(place));
    let letter = rest.facts.into_letter(decoded, message, rest.origin, written);
    letter.ok_or("its bytes do not fit its identity: it was changed after it was written")
}

#[cfg(test)]
mod tests {
    use dlq_core::Message;
    use dlq_testkit::fixtures::{died_again, hostile_messages, letter_of, varied};
    use redis::Value;

    use super::*;
    use crate::dead::write;

    fn raw(flat: Vec<Vec<u8>>) -> Raw {
        let flat = flat.into_iter().map(Value::BulkString).collect();
        Raw { place: (1_790_000_000_000, 3), pairs: wire::pairs(Value::Array(flat)) }
    }

    fn there_and_back(letter: &DeadLetter) -> Content {
        content(raw(write::letter(letter).unwrap()))
    }

    #[test]
    fn g8_every_letter_comes_back_byte_for_byte() {
        let mut messages = hostile_messages();
        let odd = Message::new("s", "x")
            .with_header("field:h:a", "1")
            .with_header("field:rest", "2")
            .with_header("rest", "3")
            .with_header("field:d", "4")
            .with_header("dlq.id", "5")
            .with_id("id")
            .with_key(vec![0, 255]);
        messages.push(("odd headers", odd));
        messages.push(("no subject", Message::tombstone("")));
        let many = (0..4_000).fold(Message::new("s", "x"), |message, number| {
            message.with_header(format!("h{}", number % 7), number.to_string())
        });
        messages.push(("many headers", many.with_header("dlq.id", "x")));
        let hostile = messages.into_iter().enumerate();
        let hostile = hostile.map(|(n, (what, message))| (what, letter_of(message, n as u64)));
        let others = (0..40).map(|n| ("varied", varied(n)));
        for (what, letter) in hostile.chain(others).chain([("again", died_again(&varied(3)))]) {
            let Content::Letter(found) = there_and_back(&letter) else { panic!("{what}") };
            assert_eq!(found.state.created_at, Timestamp::from_millis(1_790_000_000_000));
            assert_eq!(found.with_state(letter.state.clone()), letter, "{what}");
        }
    }

    #[test]
    fn g8_an_entry_that_was_changed_is_no_letter() {
        let whole = write::letter(&varied(4)).unwrap();
        let count = whole.len() / 2;
        let mut damaged = 0;
        for field in 0..count {
            let mut flat = whole.clone();
            let name = String::from_utf8(flat[2 * field].clone()).unwrap();
            flat.drain(2 * field..2 * field + 2);
            match content(raw(flat)) {
                Content::Foreign => assert_eq!(name, REST),
                Content::Damaged(_) => damaged += 1,
                Content::Outline(_) => panic!("a stream leaves no payload out"),
                // It stands in the field `rest`, too, or its identity does not depend on it.
                Content::Letter(_) => {
                    let is_beside = ["k", "id", "s"].contains(&name.as_str());
                    assert!(is_beside || name.starts_with("h:"), "{name}");
                }
            }
        }
        assert!(damaged > 3, "{damaged}");
        for (name, value) in [("d", "other"), ("k", "other"), ("rest", "{\"half\":")] {
            let mut flat = whole.clone();
            let Some(at) = flat.iter().step_by(2).position(|one| one == name.as_bytes()) else {
                continue;
            };
            flat[2 * at + 1] = value.into();
            let found = content(raw(flat));
            // The key stands in the field `rest`, too, which is believed.
            assert!(name == "k" || matches!(found, Content::Damaged(_)), "{name}: {found:?}");
        }
        let foreign = raw(vec![b"type".to_vec(), b"paid".to_vec()]);
        assert!(matches!(content(foreign), Content::Foreign));
    }
}
