//! Names of keys, and members of the index.

use std::collections::BTreeSet;

use dlq_core::store::ItemOutcome;
use dlq_core::store::rules::DedupKey;
use dlq_core::{Filter, LetterId, OperationId, Timestamp};
use dlq_letters::{DocumentKey, DocumentKind, Row};

/// A key or a member of the index: any bytes.
pub(super) type Bytes = Vec<u8>;

/// The names of all keys of a store, which have one hash tag.
#[derive(Clone, Debug)]
pub(super) struct Names {
    pub(super) prefix: String,
    pub(super) meta: String,
    pub(super) index: String,
    pub(super) counts: String,
    pub(super) groups: String,
    pub(super) lines: String,
    pub(super) owners: String,
    pub(super) aliases: String,
    pub(super) operations: String,
    pub(super) live: String,
    pub(super) schedules: String,
    pub(super) documents: String,
    pub(super) archive: String,
    pub(super) audit: String,
    pub(super) audit_more: String,
    pub(super) processed: String,
}

impl Names {
    pub(super) fn new(prefix: &str) -> Self {
        let name = |name: &str| format!("{prefix}:{name}");
        Self {
            prefix: prefix.to_owned(),
            meta: name("meta"),
            index: name("i"),
            counts: name("n"),
            groups: name("groups"),
            lines: name("lines"),
            owners: name("own"),
            aliases: name("alias"),
            operations: name("ops"),
            live: name("live"),
            schedules: name("sched"),
            documents: name("doc"),
            archive: name("archive"),
            audit: name("audit"),
            audit_more: name("audit:more"),
            processed: name("processed"),
        }
    }

    /// The keys that are there once, and their types.
    pub(super) fn kinds(&self) -> [(&str, &'static str); 15] {
        [
            (&self.meta, "hash"),
            (&self.index, "zset"),
            (&self.counts, "hash"),
            (&self.groups, "hash"),
            (&self.lines, "hash"),
            (&self.owners, "hash"),
            (&self.aliases, "hash"),
            (&self.operations, "list"),
            (&self.live, "zset"),
            (&self.schedules, "hash"),
            (&self.documents, "hash"),
            (&self.archive, "hash"),
            (&self.audit, "list"),
            (&self.audit_more, "hash"),
            (&self.processed, "stream"),
        ]
    }

    /// The hash of documents of a kind. Those of which there may be many have one of their own, since the other is read as a
    /// whole.
    pub(super) fn documents(&self, kind: DocumentKind) -> &str {
        if kind.is_bulky() { &self.archive } else { &self.documents }
    }

    /// The hash of a letter.
    pub(super) fn letter(&self, id: LetterId) -> Bytes {
        [self.prefix.as_bytes(), b":l:", id.as_bytes()].concat()
    }

    /// The set of the ids that begin with these three digits.
    pub(super) fn ids(&self, digits: &str) -> String {
        format!("{}:b:i{digits}", self.prefix)
    }

    /// The set of letters with producers' ids of which the digest begins with these three digits.
    pub(super) fn messages(&self, digits: &str) -> String {
        format!("{}:b:m{digits}", self.prefix)
    }

    /// The sets that a letter is in, and what it is there: what is looked for by its whole value needs no order, which would
    /// cost as much as all else.
    pub(super) fn sets(&self, row: &Row) -> BTreeSet<(String, Bytes)> {
        let id = row.letter.id;
        let mut sets = BTreeSet::new();
        sets.insert((self.ids(&id.to_string()[..3]), id.as_bytes().to_vec()));
        if let Some(message) = row.letter.message.id() {
            let digest = message_digest(message);
            let key = self.messages(&first_digits(&digest));
            // The digest stands before the id, since several letters may have one message id.
            sets.insert((key, [&digest[..], id.as_bytes()].concat()));
        }
        sets
    }

    /// The hash of an operation.
    pub(super) fn operation(&self, id: OperationId) -> String {
        format!("{}:op:{id}", self.prefix)
    }

    /// The hash of its items.
    pub(super) fn items(&self, id: OperationId) -> String {
        format!("{}:op:{id}:i", self.prefix)
    }

    /// The hash whose fields are the consumers of its letters.
    pub(super) fn consumers(&self, id: OperationId) -> String {
        format!("{}:op:{id}:c", self.prefix)
    }
}

/// The place of a letter in a list: when it was stored, then its id.
pub(super) fn place(at: Timestamp, id: LetterId) -> Bytes {
    [&ordered(at)[..], id.as_bytes()].concat()
}

/// A time whose bytes are in the order of time.
pub(super) fn ordered(at: Timestamp) -> [u8; 8] {
    // Turning the sign bit puts times before 1970 first, and the highest byte first makes the order that of bytes.
    (at.as_nanos().cast_unsigned() ^ (1 << 63)).to_be_bytes()
}

/// Reads what [`ordered`] wrote.
pub(super) fn time(bytes: &[u8]) -> Option<Timestamp> {
    let bits = u64::from_be_bytes(bytes.get(..8)?.try_into().ok()?);
    Some(Timestamp::from_nanos((bits ^ (1 << 63)).cast_signed()))
}

/// The part of the index with every letter.
pub(super) const ALL: &[u8] = b"a";
/// A part of the index: letters that have this value.
pub(super) fn part(facet: u8, value: &[u8]) -> Bytes {
    // It is a hash, so that all parts have one length: no name is the beginning of another, and none makes members long.
    let mut hasher = blake3::Hasher::new();
    hasher.update(&[facet]).update(value);
    let mut part = vec![facet];
    part.extend_from_slice(&hasher.finalize().as_bytes()[..16]);
    part
}

pub(super) const STATUS: u8 = b's';
pub(super) const CONSUMER: u8 = b'c';
pub(super) const SUBJECT: u8 = b'j';
pub(super) const FINGERPRINT: u8 = b'f';
pub(super) const OPERATION: u8 = b'o';
const LINE: u8 = b'd';

/// The line of a consumer: letters in the order in which they can be claimed.
pub(super) fn line(consumer: &str) -> Bytes {
    part(LINE, consumer.as_bytes())
}

/// The line of all consumers.
pub(super) fn any_line() -> Bytes {
    let mut line = vec![LINE];
    line.extend_from_slice(&[0; 16]);
    line
}

/// The lines of these consumers; of all, if none is named.
pub(super) fn lines(consumers: &[String]) -> Vec<Bytes> {
    if consumers.is_empty() {
        return vec![any_line()];
    }
    consumers.iter().map(|name| line(name)).collect::<BTreeSet<_>>().into_iter().collect()
}

/// The digest of a producer's id.
pub(super) fn message_digest(id: &str) -> [u8; 16] {
    let hash = blake3::hash(id.as_bytes());
    std::array::from_fn(|at| hash.as_bytes()[at])
}

/// The first three hexadecimal digits.
pub(super) fn first_digits(digest: &[u8; 16]) -> String {
    LetterId::from_bytes(*digest).to_string()[..3].to_owned()
}

/// The members of the index that a letter has.
pub(super) fn members(row: &Row) -> BTreeSet<Bytes> {
    let letter = &row.letter;
    let state = &letter.state;
    let place = place(state.created_at, letter.id);
    let mut parts = vec![
        ALL.to_vec(),
        part(STATUS, state.status.as_str().as_bytes()),
        part(CONSUMER, letter.consumer.as_bytes()),
        part(SUBJECT, letter.message.subject().as_bytes()),
        part(FINGERPRINT, letter.fingerprint.to_string().as_bytes()),
    ];
    parts.extend(state.operation.map(|id| part(OPERATION, id.as_bytes())));
    let mut members: BTreeSet<_> =
        parts.into_iter().map(|part| [&part[..], &place].concat()).collect();
    if let Some(at) = row.available_at() {
        let status = [status_byte(row)];
        // It stands in the line of its consumer, and in that of all for claims that name none.
        for line in [line(&letter.consumer), any_line()] {
            members.insert([&line[..], &ordered(at), &place, &status].concat());
        }
    }
    members
}

/// Statuses as a letter in line shows them.
fn status_byte(row: &Row) -> u8 {
    row.letter.state.status.as_str().as_bytes().get(4).copied().unwrap_or_default()
}

/// The status of a letter in line.
pub(super) fn status_of(byte: u8) -> dlq_core::Status {
    // The fifth letter of `retrying`, `replaying` and `pending`.
    match byte {
        b'y' => dlq_core::Status::Retrying,
        b'a' => dlq_core::Status::Replaying,
        _ => dlq_core::Status::Pending,
    }
}

/// The part of the index with the items of an operation that have this outcome: queued ones by consumer. `None` for an outcome
/// by which nobody looks.
pub(super) fn items(operation: OperationId, outcome: ItemOutcome, consumer: &str) -> Option<Bytes> {
    let facet = match outcome {
        ItemOutcome::Queued => b'q',
        ItemOutcome::Released => b'r',
        ItemOutcome::Sending => b'z',
        _ => return None,
    };
    let mut part = vec![facet];
    part.extend_from_slice(operation.as_bytes());
    if outcome == ItemOutcome::Queued {
        part.extend_from_slice(&self::part(CONSUMER, consumer.as_bytes())[1..]);
    }
    Some(part)
}

/// The end of an item's member.
pub(super) fn item(index: u64, letter: LetterId) -> Bytes {
    [format!("{index:020}").as_bytes(), letter.as_bytes()].concat()
}

/// The part of the index with the former letters that point at this one.
pub(super) fn aliases(row: LetterId) -> Bytes {
    [b"A", &row.as_bytes()[..]].concat()
}

/// The part of the index with the names of documents of a kind of which there may be many.
pub(super) fn documents(kind: DocumentKind) -> Bytes {
    [b"D", kind.as_str().as_bytes(), b" "].concat()
}

/// The member of the index that a document of such a kind has.
pub(super) fn document(key: &DocumentKey) -> Bytes {
    [&documents(key.kind)[..], key.name.as_bytes()].concat()
}

/// The field of the owner of an original message.
pub(super) fn owner(key: &DedupKey) -> Bytes {
    // A hash, as producers choose these ids: any length would be a field of the hash, for each letter.
    blake3::hash(&key.to_bytes()).as_bytes()[..20].to_vec()
}

/// The lower bound of a part of the index.
pub(super) fn from(part: &[u8]) -> Bytes {
    [b"[", part].concat()
}

/// The upper bound of a part of the index.
pub(super) fn to(part: &[u8]) -> Bytes {
    // The highest byte cannot be counted up, so the one before it is, and what follows is left out.
    let kept = part.iter().rposition(|byte| *byte != u8::MAX).map_or(0, |last| last + 1);
    let mut bound = [b"(", &part[..kept]].concat();
    match bound.last_mut() {
        Some(last) if kept > 0 => *last += 1,
        // Behind a part of nothing but highest bytes there is no bound.
        _ => return b"+".to_vec(),
    }
    bound
}

/// The bounds of a part of the index between two times of storing.
pub(super) fn between(part: &[u8], filter: &Filter) -> (Bytes, Bytes) {
    let at = |sign: &[u8], at: Timestamp| [sign, part, &ordered(at)].concat();
    let lower = filter.since.map_or_else(|| from(part), |since| at(b"[", since));
    let upper = filter.until.map_or_else(|| to(part), |until| at(b"(", until));
    (lower, upper)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_ordered_as_bytes() {
        let all = [i64::MIN, -1, 0, 1, 1_790_000_000_000_000_000, i64::MAX];
        let all = all.map(Timestamp::from_nanos);
        assert!(all.iter().map(|at| ordered(*at)).is_sorted());
        assert!(all.iter().all(|at| time(&ordered(*at)) == Some(*at)));
    }

    #[test]
    fn a_part_ends_before_what_comes_next() {
        assert_eq!(to(b"ab"), b"(ac");
        assert_eq!(to(&[1, 255, 255]), [b'(', 2]);
        assert_eq!(to(&[255]), b"+");
    }
}
