use crate::{Cursor, DeadLetter, LetterId, LetterSummary, Order, Page, PageRequest, Timestamp};

/// The place of a letter in a list: when it was stored, and its id.
pub type ByAge = (Timestamp, LetterId);

/// Returns the place of a letter in a list.
#[must_use]
pub fn place(letter: &DeadLetter) -> ByAge {
    (letter.state.created_at, letter.id)
}

/// A part of a list that a page is read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// The order in which it is read.
    pub order: Order,
    /// The place after which it begins; `None` for the first letter of that order.
    pub after: Option<ByAge>,
}

/// The parts of the list from which a page is read, one after the other until the page is full and one letter more was
/// found, which tells [`cut`] that there is another page.
///
/// A retry record that dies moves to the newest letters. A walk from the oldest has that end before it. One from the newest
/// reads down to the oldest letter, then up again from where it began.
pub fn stretches(request: &PageRequest) -> impl Iterator<Item = Stretch> + use<> {
    let place = |cursor: Cursor| (cursor.created_at, cursor.id);
    let (last, order) = (request.after.map(place), request.order);
    let start = request.after.and_then(|cursor| cursor.start);
    let start = start.filter(|_| order == Order::NewestFirst);
    let up = |after| Stretch { order: Order::OldestFirst, after: Some(after) };
    let parts = match (last, start) {
        // Letters before the start are shown on the way up only.
        (Some(last), Some(start)) if last > start => [Some(up(last)), None],
        (_, start) => [Some(Stretch { order, after: last }), start.map(up)],
    };
    parts.into_iter().flatten()
}

/// The page of `letters`, of which there may be one more than asked for.
#[must_use]
pub fn cut(mut letters: Vec<LetterSummary>, request: &PageRequest) -> Page {
    let limit = request.limit.max(1) as usize;
    let has_more = letters.len() > limit;
    letters.truncate(limit);
    let place = |letter: &LetterSummary| (letter.state.created_at, letter.id);
    let start = match (request.order, request.after) {
        (Order::OldestFirst, _) => None,
        (Order::NewestFirst, None) => letters.first().map(place),
        (Order::NewestFirst, Some(cursor)) => cursor.start,
    };
    let last = letters.last().filter(|_| has_more).map(place);
    let next = last.map(|(at, id)| Cursor::after(at, id).with_start(start));
    Page { letters, next }
}
