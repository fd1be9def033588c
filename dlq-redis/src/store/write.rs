//! Changes of a verb, as arguments of the script that writes them.
//!
//! Everything is decided here; the script compares and writes. It checks the types of keys before it writes, since a wrong
//! type is the only error that could come between two writes. Where memory is full the server refuses the first write, and
//! nothing is written; letters can be deleted all the same, since that comes first.
//!
//! | code | what it compares | | code | what it writes |
//! |---|---|---|---|---|
//! | `h` | a field of a hash | | `W` | a command |
//! | `t` | the type of a key | | `L` | fields and version of a letter or an operation |
//! | `l` | the length of a list | | `C` | an increment; a count of zero is removed |
//! | `z` | a part of the index | | `A` | the aliases of a letter, removed |
//! | `c` | that an operation has no canary out | | `O` | the counts and the state of an operation |
//! | `e` | that a field of a hash is there, or is not | | `F`, `N` | the last fencing token; a note |

use std::collections::{BTreeMap, BTreeSet};

use dlq_core::store::{Operation, OperationState};
use dlq_core::{OperationId, StoreErrorKind};
use dlq_letters::{
    Changed, DocumentChange, ItemChange, LetterChange, Note, OperationChange, Row, Rows,
};

use super::codec::{self, json};
use super::fault::{Fault, Result};
use super::names::{self, Bytes, Names};
use super::ops::{self, Record, count_field, nanos};
use super::seen::{Seen, Watch, write_alias};

/// The arguments of a commit.
#[derive(Debug)]
pub(super) struct Commit<'n> {
    names: &'n Names,
    pub(super) checks: usize,
    pub(super) compares: Vec<Bytes>,
    pub(super) writes: Vec<Bytes>,
    typed: BTreeSet<Bytes>,
    counts: BTreeMap<(&'n str, Bytes), i64>,
}

/// Operations that are changed and of which it must be known how they stand: those with a canary out.
pub(super) fn to_load(rows: &Rows, seen: &Seen) -> Vec<OperationId> {
    let is_unknown = |id: &OperationId| {
        let is_started = rows.started().iter().any(|operation| operation.id == *id);
        let state = seen.states.get(id).map(|state| &state[..]);
        // An operation whose state was seen and is no canary is only counted, and the script looks for a canary once more.
        let is_plain = state.is_some_and(|state| state != b"canary");
        !is_started && !is_plain && !seen.operations.contains_key(id)
    };
    rows.operations().map(|(id, _)| id).filter(is_unknown).collect()
}

/// Makes the arguments of a commit.
pub(super) fn commit<'n>(names: &'n Names, rows: &Rows, seen: &Seen) -> Result<Commit<'n>> {
    let mut commit = Commit {
        names,
        checks: 0,
        compares: Vec::new(),
        writes: Vec::new(),
        typed: BTreeSet::new(),
        counts: BTreeMap::new(),
    };
    // All comparisons come before the first write: scripts do not roll back.
    commit.compare_all(rows, seen);
    commit.letters(rows);
    commit.operations(rows, seen);
    commit.items(rows, seen)?;
    commit.others(rows);
    Ok(commit)
}

impl Commit<'_> {
    fn compare(&mut self, args: &[&[u8]]) {
        self.checks += 1;
        self.compares.extend(args.iter().map(|arg| arg.to_vec()));
    }

    fn hash(&mut self, key: &[u8], field: &[u8], expected: &[u8]) {
        self.compare(&[b"h", key, field, expected]);
    }

    /// Checks the type of a key, once.
    fn typed(&mut self, key: &[u8], kind: &str) {
        if self.typed.insert(key.to_vec()) {
            self.compare(&[b"t", key, kind.as_bytes()]);
        }
    }

    fn write(&mut self, args: &[&[u8]]) {
        self.writes.push(b"W".to_vec());
        self.writes.push(args.len().to_string().into_bytes());
        self.writes.extend(args.iter().map(|arg| arg.to_vec()));
    }

    fn special(&mut self, args: &[&[u8]]) {
        self.writes.extend(args.iter().map(|arg| arg.to_vec()));
    }

    fn compare_all(&mut self, rows: &Rows, seen: &Seen) {
        let names = self.names;
        for (id, version) in &seen.letters {
            self.hash(&names.letter(*id), b"v", version);
        }
        for ((operation, index), record) in &seen.items {
            self.hash(names.items(*operation).as_bytes(), index.to_string().as_bytes(), record);
        }
        for (id, change) in rows.operations() {
            if rows.started().iter().any(|operation| operation.id == id) {
                continue;
            }
            let key = names.operation(id);
            match seen.operations.get(&id) {
                Some((watch, stored)) => {
                    let is_canary = stored
                        .as_ref()
                        .is_some_and(|it| it.operation.state == OperationState::Canary);
                    // While a canary is out, the count of each letter decides whether it is over, so any change of the
                    // operation counts.
                    let is_whole = *watch == Watch::Whole || is_canary;
                    let stored = stored.as_ref();
                    let (field, version) = if is_whole {
                        (b"v", stored.map(|it| &it.version))
                    } else {
                        (b"w", stored.map(|it| &it.steering))
                    };
                    let version = version.map_or(&[][..], |version| &version[..]);
                    self.hash(key.as_bytes(), field, version);
                }
                None => {
                    debug_assert!(change.state.is_none(), "who steers has read it");
                    // A call that only counts compares no version: increments of others do no harm, unless a canary has
                    // come out meanwhile.
                    self.compare(&[b"c", key.as_bytes()]);
                }
            }
        }
        for (key, owner) in &seen.owners {
            self.hash(names.owners.as_bytes(), &names::owner(key), owner);
        }
        for (id, alias) in &seen.aliases {
            self.hash(names.aliases.as_bytes(), id.as_bytes(), alias);
        }
        for (id, aliases) in &seen.aliases_of {
            let part = names::aliases(*id);
            let members = aliases.iter().map(|alias| [&part[..], alias.as_bytes()].concat());
            let members: Vec<_> = members.collect();
            self.compare(&[b"z", &names::from(&part), &names::to(&part), &members.concat()]);
        }
        for (consumer, last) in &seen.schedules {
            self.hash(names.schedules.as_bytes(), consumer.as_bytes(), last);
        }
        for (key, text) in &seen.documents {
            let (hash, field) = (names.documents(key.kind).as_bytes(), key.to_string());
            if key.kind.is_bulky() {
                // These are never changed, only written and taken away, and many of them would be a large call.
                let is_there = if text.is_empty() { b"0" } else { b"1" };
                self.compare(&[b"e", hash, field.as_bytes(), is_there]);
            } else {
                self.hash(hash, field.as_bytes(), text);
            }
        }
        if let Some(dedup) = &seen.dedup {
            self.hash(names.meta.as_bytes(), b"dedup", dedup);
        }
        if let Some(number) = seen.operation_number {
            self.compare(&[b"l", names.operations.as_bytes(), number.to_string().as_bytes()]);
        }
    }

    fn letters(&mut self, rows: &Rows) {
        let names = self.names;
        let (index, owners) = (names.index.as_bytes(), names.owners.as_bytes());
        if rows.letters().next().is_some() {
            self.typed(index, "zset");
            for key in [&names.counts, &names.groups, &names.lines, &names.owners] {
                self.typed(key.as_bytes(), "hash");
            }
        }
        // Deletions need no memory, and a key is free before another letter takes it.
        for LetterChange { id, after, .. } in rows.letters() {
            if after.is_none() {
                self.write(&[b"DEL", &names.letter(id)]);
            }
        }
        for LetterChange { id, before, after, .. } in rows.letters() {
            let key = before.and_then(|before| before.key.as_ref());
            if let Some(key) = key.filter(|key| after.and_then(|it| it.key.as_ref()) != Some(key)) {
                self.write(&[b"HDEL", owners, &names::owner(key)]);
            }
            if after.is_none() {
                self.typed(names.aliases.as_bytes(), "hash");
                let part = names::aliases(id);
                self.special(&[b"A", &names::from(&part), &names::to(&part)]);
            }
        }
        for change in rows.letters() {
            self.letter(change);
        }
        for LetterChange { before, after, .. } in rows.letters() {
            let key = after.and_then(|after| after.key.as_ref());
            let former = before.and_then(|before| before.key.as_ref());
            if let (Some(key), Some(after)) = (key.filter(|key| former != Some(key)), after) {
                let id = after.letter.id;
                self.write(&[b"HSET", owners, &names::owner(key), id.as_bytes()]);
            }
        }
        // Summed up before: letters of one commit mostly share their counters, and each is written once.
        let counts = std::mem::take(&mut self.counts);
        for ((key, field), by) in counts.into_iter().filter(|(_, by)| *by != 0) {
            self.special(&[b"C", key.as_bytes(), &field, by.to_string().as_bytes()]);
        }
    }

    fn letter(&mut self, change: LetterChange<'_>) {
        let LetterChange { id, before, after, changed } = change;
        let names = self.names;
        let key = names.letter(id);
        if let Some(after) = after {
            let changed = if before.is_none() { Changed::All } else { changed };
            let (fields, gone) = codec::fields(after, changed);
            self.special(&[b"L", &key, fields.len().to_string().as_bytes()]);
            self.writes.extend(fields);
            if let Some(before) = before {
                // A field that was not there need not be deleted. Of the other fields, the head of a letter does not
                // tell.
                let was_there = |name: &&str| match *name {
                    "o" => before.item.is_some(),
                    "q" => before.key.is_some(),
                    _ => true,
                };
                let gone: Vec<_> = gone.into_iter().filter(was_there).collect();
                if !gone.is_empty() {
                    let mut args: Vec<&[u8]> = vec![b"HDEL", &key];
                    args.extend(gone.iter().map(|name| name.as_bytes()));
                    self.write(&args);
                }
            }
        }
        let index = names.index.as_bytes();
        let was = before.map(names::members).unwrap_or_default();
        let is = after.map(names::members).unwrap_or_default();
        let gone: Vec<_> = was.difference(&is).collect();
        if !gone.is_empty() {
            let mut args: Vec<&[u8]> = vec![b"ZREM", index];
            args.extend(gone.iter().map(|member| &member[..]));
            self.write(&args);
        }
        let new: Vec<_> = is.difference(&was).collect();
        if !new.is_empty() {
            let mut args: Vec<&[u8]> = vec![b"ZADD", index];
            // All scores are 0, so that the server orders the members by their bytes.
            args.extend(new.iter().flat_map(|member| [&b"0"[..], &member[..]]));
            self.write(&args);
        }
        let was = before.map(|row| names.sets(row)).unwrap_or_default();
        let is = after.map(|row| names.sets(row)).unwrap_or_default();
        for (key, member) in was.difference(&is) {
            self.typed(key.as_bytes(), "set");
            self.write(&[b"SREM", key.as_bytes(), member]);
        }
        for (key, member) in is.difference(&was) {
            self.typed(key.as_bytes(), "set");
            self.write(&[b"SADD", key.as_bytes(), member]);
        }
        for (row, by) in [(before, -1), (after, 1)] {
            for (key, field) in row.into_iter().flat_map(|row| counted(names, row)) {
                *self.counts.entry((key, field)).or_default() += by;
            }
        }
    }

    fn operations(&mut self, rows: &Rows, seen: &Seen) {
        let names = self.names;
        for operation in rows.started() {
            let change = rows.operations().find(|(id, _)| *id == operation.id);
            self.start(operation, change.map(|(_, change)| change), rows, seen);
        }
        for (id, change) in rows.operations() {
            if rows.started().iter().any(|operation| operation.id == id) {
                continue;
            }
            self.typed(names.operation(id).as_bytes(), "hash");
            self.typed(names.live.as_bytes(), "zset");
            self.operation(id, change, rows, seen);
        }
    }

    fn start(
        &mut self,
        operation: &Operation,
        change: Option<&OperationChange>,
        rows: &Rows,
        seen: &Seen,
    ) {
        let names = self.names;
        let mut operation = operation.clone();
        if let Some(change) = change {
            change.apply(&mut operation, rows.now());
        }
        let id = operation.id.to_string();
        let key = names.operation(operation.id);
        self.typed(names.live.as_bytes(), "zset");
        self.typed(key.as_bytes(), "hash");
        let fields = ops::fields(&operation);
        self.special(&[b"L", key.as_bytes(), (fields.len() * 2 + 2).to_string().as_bytes()]);
        // No commit has the number 0, so that whoever steers first changes it.
        self.special(&[b"w", b"0"]);
        for (name, value) in fields {
            self.special(&[&name, &value]);
        }
        self.write(&[b"RPUSH", names.operations.as_bytes(), id.as_bytes()]);
        if !operation.state.is_final() {
            // The number is the score, so that those that run are listed in the order in which they were started.
            let number = seen.operation_number.unwrap_or(0).to_string();
            self.write(&[b"ZADD", names.live.as_bytes(), number.as_bytes(), id.as_bytes()]);
        }
    }

    /// Counts are increments; the state is what was decided, where nobody else can have changed it meanwhile.
    fn operation(&mut self, id: OperationId, change: &OperationChange, rows: &Rows, seen: &Seen) {
        let stored = seen.operations.get(&id);
        let is_whole = stored.is_some_and(|(watch, _)| *watch == Watch::Whole);
        let stored = stored.and_then(|(_, stored)| stored.as_ref());
        let is_canary = stored.is_some_and(|it| it.operation.state == OperationState::Canary);
        let mut state = String::new();
        if let Some(stored) = stored
            && (is_whole || is_canary || change.state.is_some())
        {
            let mut operation = stored.operation.clone();
            change.apply(&mut operation, rows.now());
            state = operation.state.to_string();
        }
        // What decides over releases gets a new version, by which those who release notice it. Counts alone leave the
        // version as it is, since they change with every letter.
        let steers = change.state.is_some()
            || change.next_release.is_some()
            || change.spec.is_some()
            || change.total > 0
            || is_canary;
        if let (Some(spec), Some(stored)) = (&change.spec, stored) {
            let fixed = ops::fixed(&Operation { spec: spec.clone(), ..stored.operation.clone() });
            let key = self.names.operation(id);
            self.write(&[b"HSET", key.as_bytes(), ops::FIXED, &fixed]);
        }
        let next = change.next_release.map(nanos).unwrap_or_default();
        let mut counts: Vec<(Bytes, i64)> = Vec::new();
        if change.total > 0 {
            counts.push((b"t".to_vec(), i64::try_from(change.total).unwrap_or(i64::MAX)));
        }
        let changed = change.counts.iter().filter(|(_, by)| **by != 0);
        counts.extend(changed.map(|(outcome, by)| (count_field(*outcome), *by)));
        self.special(&[
            b"O",
            id.to_string().as_bytes(),
            &nanos(rows.now()),
            state.as_bytes(),
            &next,
            if steers { b"1" } else { b"0" },
            counts.len().to_string().as_bytes(),
        ]);
        for (field, by) in counts {
            self.special(&[&field, by.to_string().as_bytes()]);
        }
    }

    fn items(&mut self, rows: &Rows, seen: &Seen) -> Result<()> {
        let names = self.names;
        let zset = names.index.as_bytes();
        for (operation, index, change) in rows.items() {
            let key = names.items(operation);
            let (before, after) = match change {
                ItemChange::Append { item, consumer } => {
                    let consumers = names.consumers(operation);
                    self.typed(key.as_bytes(), "hash");
                    self.typed(consumers.as_bytes(), "hash");
                    // Queued items stand apart by consumer in the index, and these fields say which parts there are.
                    self.write(&[b"HSET", consumers.as_bytes(), consumer.as_bytes(), b""]);
                    (None, Record::new(item, consumer))
                }
                ItemChange::Outcome { outcome, why, at } => {
                    let Some(text) =
                        seen.items.get(&(operation, index)).filter(|it| !it.is_empty())
                    else {
                        let detail = format!("item {index} of operation {operation} was not read");
                        return Err(Fault::new(StoreErrorKind::Unexpected, detail));
                    };
                    let before = Record::read(text)?;
                    let mut after = before.clone();
                    after.outcome = outcome.to_string();
                    after.why.clone_from(why);
                    after.at = at.as_nanos();
                    (Some(before), after)
                }
            };
            self.typed(zset, "zset");
            self.write(&[b"HSET", key.as_bytes(), index.to_string().as_bytes(), &json(&after)]);
            let member = |record: &Record| {
                let part = names::items(operation, record.outcome().ok()?, &record.consumer)?;
                Some([&part[..], &names::item(index, record.letter)].concat())
            };
            let (was, is) = (before.as_ref().and_then(member), member(&after));
            if was != is {
                if let Some(was) = was {
                    self.write(&[b"ZREM", zset, &was]);
                }
                if let Some(is) = is {
                    self.write(&[b"ZADD", zset, b"0", &is]);
                }
            }
        }
        Ok(())
    }

    fn others(&mut self, rows: &Rows) {
        let names = self.names;
        for (id, alias) in rows.aliases() {
            self.typed(names.aliases.as_bytes(), "hash");
            self.typed(names.index.as_bytes(), "zset");
            let text = write_alias(alias);
            self.write(&[b"HSET", names.aliases.as_bytes(), id.as_bytes(), &text]);
            // By the letter that is pointed at, so that whoever deletes that one finds what points to it.
            let member = [&names::aliases(alias.row)[..], id.as_bytes()].concat();
            self.write(&[b"ZADD", names.index.as_bytes(), b"0", &member]);
        }
        for consumer in rows.schedules() {
            self.typed(names.schedules.as_bytes(), "hash");
            let key = names.schedules.as_bytes();
            self.write(&[b"HSET", key, consumer.as_bytes(), &nanos(rows.now())]);
        }
        for DocumentChange { key, after, .. } in rows.changed_documents() {
            let (hash, field) = (names.documents(key.kind).as_bytes(), key.to_string());
            self.typed(hash, "hash");
            match after {
                Some(text) => self.write(&[b"HSET", hash, field.as_bytes(), text.as_bytes()]),
                None => self.write(&[b"HDEL", hash, field.as_bytes()]),
            }
            if key.kind.is_bulky() {
                let (index, member) = (names.index.as_bytes(), names::document(key));
                self.typed(index, "zset");
                match after {
                    Some(_) => self.write(&[b"ZADD", index, b"0", &member]),
                    None => self.write(&[b"ZREM", index, &member]),
                }
            }
        }
        // The script keeps the greater of two, as commits need not come in the order of their tokens.
        if let Some(last) = rows.last_fence() {
            self.special(&[b"F", last.to_string().as_bytes()]);
        }
        for note in rows.notes() {
            match note {
                Note::New(entry) => {
                    self.typed(names.audit.as_bytes(), "list");
                    self.special(&[b"N", &json(entry)]);
                }
                Note::Grow { entry, by } => {
                    self.typed(names.audit_more.as_bytes(), "hash");
                    let (entry, by) = (entry.to_string(), by.to_string());
                    let key = names.audit_more.as_bytes();
                    self.write(&[b"HINCRBY", key, entry.as_bytes(), by.as_bytes()]);
                }
            }
        }
    }
}

/// The counts that a letter is part of: the hash and the field of each.
pub(super) fn counted<'n>(names: &'n Names, row: &Row) -> Vec<(&'n str, Bytes)> {
    let letter = &row.letter;
    // A fingerprint has no space, so that the first one ends it whatever the consumer is called.
    let group = format!("{} {}", letter.fingerprint, letter.consumer).into_bytes();
    let mut counts = vec![(&*names.counts, super::counts::field(letter)), (&*names.groups, group)];
    // Only consumers with letters in line, so that waking and counting walk no line that is empty.
    if row.available_at().is_some() {
        counts.push((&*names.lines, letter.consumer.clone().into_bytes()));
    }
    counts
}
