//! Entries of a reading of letters of another library.

use std::collections::{HashSet, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use dlq_core::log::{Content, Entries, Entry, Range};
use dlq_core::{DeadLetter, StoreError, Timestamp};
use redis::{Cmd, Value};
use tokio::time::sleep;

use super::kind::Kind;
use super::zset::{self, Member};
use super::{EntryId, ForeignLetters, bullmq, chasquimq, dramatiq, entry_id, rq};
use crate::client::{RedisError, RedisErrorKind};
use crate::dead::entries::{before, millis};
use crate::dead::letters::{READING, place_of};
use crate::dead::passed::Passed;
use crate::dead::scan::{self, Pages, Raw};

/// Pause of a reading without an end before it looks again.
const LOOK: Duration = Duration::from_secs(1);
/// Jobs that are fetched at once, at first and at most.
const FIRST: usize = 32;
const MOST: usize = 256;
/// Bytes of jobs from which on fewer are fetched at once, and up to which more.
const LARGE: usize = 4 * 1024 * 1024;
const SMALL: usize = 512 * 1024;

/// A dead job as it stands at the server.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) place: EntryId,
    pub(super) stands: Stands,
    content: Content,
}

#[derive(Debug)]
pub(super) enum Stands {
    Entry(Raw),
    Member(Member),
}

impl Job {
    pub(super) fn letter(&mut self) -> Option<(EntryId, &mut DeadLetter)> {
        match &mut self.content {
            Content::Letter(letter) => Some((self.place, letter)),
            Content::Outline(_) | Content::Damaged(_) | Content::Foreign => None,
        }
    }

    /// The name of the job in its set, or the id of its entry.
    pub(super) fn name(&self) -> String {
        match &self.stands {
            Stands::Entry(raw) => entry_id(raw.place),
            Stands::Member(member) => String::from_utf8_lossy(&member.name).into_owned(),
        }
    }
}

/// Entries of letters of another library.
#[derive(Debug)]
pub struct ForeignEntries {
    letters: ForeignLetters,
    range: Range,
    cursor: Cursor,
    /// Found, and not yet yielded.
    found: VecDeque<Job>,
    passed: Passed,
}

#[derive(Debug)]
enum Cursor {
    Stream {
        pages: Pages,
        after: Option<EntryId>,
        /// The last place that is wanted; `None` where there is no end.
        to: Option<EntryId>,
    },
    Set {
        /// The rank at which reading begins, until it has.
        start: Option<i64>,
        last: Option<Member>,
        /// Members that were found, and are not yet fetched.
        members: VecDeque<Member>,
        /// Number of jobs that are fetched at once.
        size: usize,
        /// Places that were yielded, where there is no end.
        seen: Option<HashSet<EntryId>>,
    },
}

impl ForeignEntries {
    pub(super) async fn open(letters: ForeignLetters, range: Range) -> Result<Self, StoreError> {
        let failed = |error: RedisError| error.for_store(READING);
        let (client, key) = (&letters.client, &letters.key);
        let from = range.from.first().map(place_of);
        let cursor = if letters.kind.is_stream() {
            let stands = scan::stands(client, key).await.map_err(failed)?;
            let (entries, end) = stands.map_or((0, EntryId::default()), |at| (at.entries, at.last));
            let mut from = from;
            if let Some(since) = range.since {
                from = from.max(Some((millis(since), 0)));
            }
            let mut after = from.and_then(before);
            match range.last {
                Some(0) => after = after.max(Some(end)),
                Some(last) if last < entries => {
                    let first = scan::nth_last(client, key, last).await.map_err(failed)?;
                    after = after.max(first.and_then(before));
                }
                _ => {}
            }
            let to = (!range.for_ever).then_some(end);
            Cursor::Stream { pages: Pages::new(), after, to }
        } else {
            let mut rank = 0;
            if let Some(last) = range.last {
                rank = letters.entries().await?.saturating_sub(last);
            }
            let since = range.since.filter(|_| letters.kind.is_by_time());
            // Only the score of a place can be looked up. Members of the same score that stand before it are passed
            // over once they were read.
            let score = from.map(zset::score_of).into_iter().chain(since.map(of_time));
            for score in score {
                rank = rank.max(zset::below(client, key, score).await.map_err(failed)?);
            }
            // The rank is only where reading begins. From then on it goes by members, as ranks move when others add and
            // remove some.
            let start = Some(i64::try_from(rank).unwrap_or(i64::MAX));
            let seen = range.for_ever.then(HashSet::new);
            Cursor::Set { start, last: None, members: VecDeque::new(), size: FIRST, seen }
        };
        Ok(Self { letters, range, cursor, found: VecDeque::new(), passed: Passed::default() })
    }

    /// Fetches more jobs, and returns false if there are none just now.
    async fn fetch(&mut self) -> Result<bool, RedisError> {
        let letters = &self.letters;
        let jobs = match &mut self.cursor {
            Cursor::Stream { pages, after, to } => {
                if to.is_some() && *after >= *to {
                    return Ok(false);
                }
                let page =
                    pages.after(&letters.client, &letters.key, *after, *to, usize::MAX).await?;
                match (page.back(), *to) {
                    (Some(last), _) => *after = Some(last.place),
                    (None, to) => *after = to.or(*after),
                }
                page.into_iter().map(|raw| letters.of_entry(raw)).collect::<Vec<_>>()
            }
            Cursor::Set { start, last, members, size, seen } => {
                if members.is_empty() {
                    let (client, key) = (&letters.client, &*letters.key);
                    let (page, end) = match start {
                        Some(rank) => zset::range(client, key, *rank).await?,
                        None => zset::after(client, key, last.as_ref()).await?,
                    };
                    *start = None;
                    match end {
                        Some(end) => *last = Some(end),
                        None if seen.is_some() => {
                            // Scores need not grow: it begins anew, and passes over what was yielded.
                            (*start, *last) = (Some(0), None);
                            return Ok(false);
                        }
                        None => return Ok(false),
                    }
                    let is_new = |member: &Member| {
                        seen.as_mut().is_none_or(|seen| seen.insert(member.place()))
                    };
                    members.extend(page.into_iter().filter(is_new));
                }
                let count = members.len().min(*size);
                let chunk: Vec<Member> = members.iter().take(count).cloned().collect();
                let (jobs, bytes) = letters.of_members(chunk).await?;
                // They leave the list only now, so that a call that fails or is dropped fetches them again.
                members.drain(..count);
                if bytes > LARGE {
                    *size = (*size / 4).max(1);
                } else if bytes < SMALL && count == *size {
                    *size = (*size * 2).min(MOST);
                }
                jobs
            }
        };
        let (since, from) = (self.range.since, self.range.from.first().map(place_of));
        self.found.extend(jobs.into_iter().filter_map(|mut job| {
            // Asked of each letter as well: the range by rank or id is only as exact as the scores of the library.
            let is_late = |died_at: Timestamp| since.is_none_or(|since| died_at >= since);
            let is_wanted = job.letter().is_none_or(|(_, letter)| is_late(letter.died_at))
                && from.is_none_or(|from| job.place >= from);
            is_wanted.then_some(job)
        }));
        Ok(true)
    }
}

fn of_time(time: Timestamp) -> f64 {
    // Times in milliseconds are exact.
    millis(time) as f64
}

impl Entries for ForeignEntries {
    async fn next(&mut self, limit: usize) -> Result<Vec<Entry>, StoreError> {
        while self.found.is_empty() {
            if !self.fetch().await.map_err(|error| error.for_running_store(READING))? {
                // Told where there is nothing more just now, so that one line tells of all that came before.
                self.passed.tell();
                if !self.range.for_ever {
                    return Ok(Vec::new());
                }
                sleep(LOOK).await;
            }
        }
        let count = limit.max(1).min(self.found.len());
        self.letters.say_sent(&mut self.found.make_contiguous()[..count]).await?;
        let entry = |job: Job| Entry {
            place: self.letters.origin(job.place),
            again: false,
            content: job.content,
        };
        let entries: Vec<Entry> = self.found.drain(..count).map(entry).collect();
        self.passed.note(&entries);
        Ok(entries)
    }

    /// Nothing is noted at the server.
    async fn confirm(&mut self) -> Result<(), StoreError> {
        Ok(())
    }
}

impl ForeignLetters {
    pub(super) fn of_entry(&self, raw: Raw) -> Job {
        let content = match &self.kind {
            Kind::Chasquimq { queue } => chasquimq::read(queue, &raw),
            _ => Content::Foreign,
        };
        Job { place: raw.place, content, stands: Stands::Entry(raw) }
    }

    /// Fetches jobs, and returns them with the number of their bytes.
    pub(super) async fn of_members(
        &self,
        members: Vec<Member>,
    ) -> Result<(Vec<Job>, usize), RedisError> {
        // Plain reads in one round trip: a script would hold the server up for all of them.
        let looks: Vec<Cmd> = members.iter().flat_map(|member| self.looks(member)).collect();
        let each = looks.len() / members.len().max(1);
        let mut answers = self.client.commands(&looks).await?.into_iter();
        let (mut jobs, mut bytes) = (Vec::with_capacity(members.len()), 0);
        for member in members {
            let mut parts = answers.by_ref().take(each);
            let content = match parts.next().map(|answer| of_type(answer, &member)) {
                Some(Ok(Ok(value))) => {
                    let values = values(value);
                    bytes += values.iter().flatten().map(Bytes::len).sum::<usize>();
                    // A result that cannot be read says nothing; the job is there.
                    let more = parts.next().and_then(Result::ok).unwrap_or(Value::Nil);
                    self.of_member(&member, &values, more)
                }
                Some(Ok(Err(content))) => content,
                Some(Err(error)) => return Err(error),
                None => Content::Damaged("the server gave no answer to it".to_owned()),
            };
            // Whatever was not asked for.
            parts.for_each(drop);
            jobs.push(Job { place: member.place(), content, stands: Stands::Member(member) });
        }
        Ok((jobs, bytes))
    }

    fn looks(&self, member: &Member) -> Vec<Cmd> {
        match &self.kind {
            Kind::Bullmq { base, .. } => vec![bullmq::look(base, &member.name)],
            Kind::Rq { .. } => rq::look(&member.name).to_vec(),
            Kind::Dramatiq { .. } => vec![dramatiq::look(&self.key, &member.name)],
            Kind::Chasquimq { .. } => Vec::new(),
        }
    }

    fn of_member(&self, member: &Member, values: &[Option<Bytes>], more: Value) -> Content {
        let name = &member.name;
        match &self.kind {
            Kind::Bullmq { base, queue } => bullmq::read(base, queue, name, values),
            Kind::Rq { queue } => rq::read(queue, name, values, more),
            Kind::Dramatiq { base, queue } => {
                let bytes = values.first().cloned().flatten();
                dramatiq::read(base, queue, name, &member.score, bytes)
            }
            Kind::Chasquimq { .. } => Content::Foreign,
        }
    }

    /// Fetches the jobs at these places, in their order; `None` where there is none any more.
    pub(super) async fn jobs_at(&self, places: &[EntryId]) -> Result<Vec<Option<Job>>, StoreError> {
        let failed = |error: RedisError| error.for_running_store(READING);
        let mut found: Vec<Option<Job>> = places.iter().map(|_| None).collect();
        if self.kind.is_stream() {
            // In parts: jobs may be large, and all of an answer is in memory at once.
            for (places, found) in places.chunks(FIRST).zip(found.chunks_mut(FIRST)) {
                let look = |place: &EntryId| {
                    let id = entry_id(*place);
                    let mut range = redis::cmd("XRANGE");
                    range.arg(&self.key).arg(&id).arg(&id);
                    range
                };
                let looks: Vec<Cmd> = places.iter().map(look).collect();
                let answers = self.client.commands(&looks).await.map_err(failed)?;
                for (found, answer) in found.iter_mut().zip(answers) {
                    let raw = scan::entries(answer.map_err(failed)?).pop();
                    *found = raw.map(|raw| self.of_entry(raw));
                }
            }
        } else {
            let members = self.members_at(places).await.map_err(failed)?;
            let there = (0..places.len()).filter(|at| members[*at].is_some());
            for chunk in there.collect::<Vec<_>>().chunks(FIRST) {
                let members = chunk.iter().filter_map(|at| members[*at].clone()).collect();
                let (jobs, _) = self.of_members(members).await.map_err(failed)?;
                for (at, job) in chunk.iter().zip(jobs) {
                    found[*at] = Some(job);
                }
            }
        }
        for job in found.iter_mut().flatten() {
            self.say_sent(std::slice::from_mut(job)).await?;
        }
        Ok(found)
    }

    /// Finds the members at these places: those of a score are looked at until all were found.
    async fn members_at(&self, places: &[EntryId]) -> Result<Vec<Option<Member>>, RedisError> {
        let mut found: Vec<Option<Member>> = places.iter().map(|_| None).collect();
        let mut wanted: Vec<(EntryId, usize)> =
            places.iter().enumerate().map(|(at, place)| (*place, at)).collect();
        // Places of the same score are neighbours now, and are looked for together.
        wanted.sort_unstable();
        for group in wanted.chunk_by(|one, other| one.0.0 == other.0.0) {
            let mut left = group.to_vec();
            let score = zset::score_of(group[0].0);
            let rank = zset::below(&self.client, &self.key, score).await?;
            let rank = i64::try_from(rank).unwrap_or(i64::MAX);
            let (mut page, mut last) = zset::range(&self.client, &self.key, rank).await?;
            while let Some(end) = last {
                for member in &page {
                    let place = member.place();
                    left.retain(|(wanted, at)| {
                        let is_it = *wanted == place;
                        if is_it {
                            found[*at] = Some(member.clone());
                        }
                        !is_it
                    });
                }
                // Behind its score there is none of them.
                if left.is_empty() || end.place().0 != group[0].0.0 {
                    break;
                }
                (page, last) = zset::after(&self.client, &self.key, Some(&end)).await?;
            }
        }
        Ok(found)
    }
}

/// A value of the wanted type, or what is there instead, or an error that concerns all.
fn of_type(
    answer: Result<Value, RedisError>,
    member: &Member,
) -> Result<Result<Value, Content>, RedisError> {
    match answer {
        Ok(value) => Ok(Ok(value)),
        Err(error) if error.kind() == RedisErrorKind::WrongType => {
            let name = String::from_utf8_lossy(&member.name);
            let text = format!("the key of its job `{name}` holds a value of another type");
            Ok(Err(Content::Damaged(text)))
        }
        Err(error) => Err(error),
    }
}

pub(super) fn values(value: Value) -> Vec<Option<Bytes>> {
    match value {
        Value::Array(values) => values.into_iter().map(zset::value).collect(),
        value => vec![zset::value(value)],
    }
}
