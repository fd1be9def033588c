//! A log that is read for the verbs that only look.

use dlq_admin::Snapshot;
use dlq_core::StoreError;
use dlq_core::log::{Entries, Entry, Log, Range};
use dlq_core::store::BoxLetters;
use dlq_letters::log::{Reading, carry, fill};
use dlq_letters::memory::MemoryStore;
use dlq_sql::sqlite::SqliteStore;
use tempfile::TempDir;

use crate::cli::Command;
use crate::error::CliError;
use crate::output::Progress;

/// Number of letters that are kept in memory, at one to three KiB each. More go to a file.
const IN_MEMORY: u64 = 200_000;
/// Number of messages of a partition, from the end, that `peek` looks at.
const PEEKED: u64 = 10_000;

/// A letter of a reading, and where it stands.
#[cfg(any(feature = "kafka", test))]
type Row = dlq_core::store::reading::Row<dlq_core::Origin>;

/// Letters of a log as they were when it was read.
#[derive(Debug)]
pub(crate) struct Read {
    pub(crate) letters: BoxLetters,
    /// Removed with everything in it once the letters were looked at.
    _folder: Option<TempDir>,
}

impl Read {
    /// Returns the letters for the console, with whatever they need.
    pub(super) fn snapshot(self) -> Snapshot {
        let snapshot = Snapshot::new(self.letters.clone());
        snapshot.keep(self)
    }
}

/// Reads a log into memory, or into a temporary file where there are too many letters.
pub(crate) async fn read<L: Log>(log: L, range: Range) -> Result<Read, CliError> {
    Ok(read_beyond(&log, range, IN_MEMORY).await?.of(log))
}

/// Reads a log, and forgets the letters of which `keep` says no.
#[cfg(feature = "kafka")]
pub(crate) async fn read_kept<L: Log>(
    log: L,
    range: Range,
    keep: impl Fn(&Row) -> bool,
) -> Result<Read, CliError> {
    let filled = read_beyond(&log, range, IN_MEMORY).await?;
    filled.retain(keep).await?;
    Ok(filled.of(log))
}

async fn read_beyond<L: Log>(log: &L, range: Range, most: u64) -> Result<Filled, CliError> {
    let mut whole = range.clone();
    whole.headers_only = false;
    if let Some(filled) = read_range(log, range, most).await? {
        return Ok(filled);
    }
    // Only payloads say which of two letters has the identity that both claim.
    let filled = read_range(log, whole, most).await?;
    filled.ok_or_else(|| {
        CliError::failed(format!(
            "cannot read the letters of {log:?}: a reading with payloads yields some without; tell the maintainers"
        ))
    })
}

/// Entries that are counted while they are read.
#[derive(Debug)]
struct Counted<E> {
    entries: E,
    bar: Progress,
}

impl<E: Entries> Entries for Counted<E> {
    async fn next(&mut self, limit: usize) -> Result<Vec<Entry>, StoreError> {
        let some = self.entries.next(limit).await?;
        self.bar.advance(some.len() as u64);
        Ok(some)
    }

    async fn confirm(&mut self) -> Result<(), StoreError> {
        self.entries.confirm().await
    }
}

impl<E> Drop for Counted<E> {
    fn drop(&mut self) {
        self.bar.end();
    }
}

/// A store that was filled, before it is a reading.
enum Filled {
    Memory(MemoryStore),
    File(SqliteStore, TempDir),
}

impl Filled {
    #[cfg(any(feature = "kafka", test))]
    async fn retain(&self, keep: impl Fn(&Row) -> bool) -> Result<(), CliError> {
        match self {
            Self::Memory(memory) => dlq_letters::log::retain(memory, keep).await?,
            Self::File(store, _) => dlq_letters::log::retain(store, keep).await?,
        }
        Ok(())
    }

    fn of(self, log: impl Log) -> Read {
        match self {
            Self::Memory(memory) => {
                Read { letters: BoxLetters::new(Reading::new(log, memory)), _folder: None }
            }
            Self::File(store, folder) => {
                Read { letters: BoxLetters::new(Reading::new(log, store)), _folder: Some(folder) }
            }
        }
    }
}

/// Reads a range; `None` where it has to be read with payloads.
async fn read_range<L: Log>(log: &L, range: Range, most: u64) -> Result<Option<Filled>, CliError> {
    let bar = Progress::endless("messages read");
    let mut entries = Counted { entries: log.read(range).await?, bar };
    // Memory is tried first: most logs fit, and a file has to be written before it can be read.
    let memory = MemoryStore::new();
    let filled = fill(&mut entries, &memory, most).await?;
    if filled.needs_payloads {
        return Ok(None);
    }
    if filled.is_whole {
        return Ok(Some(Filled::Memory(memory)));
    }
    let mut builder = tempfile::Builder::new();
    // The folder holds payloads, in a place where every user of the machine looks around.
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o700));
    let folder = builder.prefix("dlq-read").tempdir().map_err(|error| {
        CliError::failed(format!(
            "cannot keep more than {most} letters: no temporary folder can be made: {error}; set TMPDIR to a folder with \
             room, or ask for less with --since"
        ))
    })?;
    let path = folder.path().join("letters.db");
    let store = SqliteStore::builder().path(path).create(true).open().await?;
    // The log is not read twice: what memory holds moves to the file, and the reading goes on there.
    carry(&memory, &store).await?;
    drop(memory);
    let filled = fill(&mut entries, &store, u64::MAX).await?;
    Ok((!filled.needs_payloads).then_some(Filled::File(store, folder)))
}

/// The part of a log that a verb looks at, which is told where it is not all of it. `messages` is how many each of its
/// partitions has.
pub(crate) fn range(command: &mut Command, messages: &[u64]) -> Range {
    let since = command.filter().and_then(|filter| filter.since());
    if let Some(since) = since {
        say!(
            "only what was written since {since} is read: a letter that died before that, and again since, is listed by its \
             later death"
        );
        return Range::all().since(since);
    }
    let Command::Peek(_) = command else { return Range::all() };
    let all: u64 = messages.iter().sum();
    let left_out: u64 = messages.iter().map(|messages| messages.saturating_sub(PEEKED)).sum();
    if left_out > 0 {
        say!(
            "only the latest {} of {all} messages are looked at, {left_out} are left out; `dlq stats` and `dlq list` look at \
             all",
            all - left_out
        );
    }
    Range::all().last(PEEKED)
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use dlq_core::store::Letters as _;
    use dlq_core::{Filter, PageRequest};
    use dlq_testkit::broker::{BrokerFixture as _, MemoryFixture};
    use dlq_testkit::fixtures::{died_again, varied};

    use super::*;
    use crate::cli::Cli;

    #[test]
    fn peek_reads_from_the_end_and_others_read_all() {
        let of = |args: &[&str], messages| {
            let args = ["dlq"].iter().chain(args);
            range(&mut Cli::try_parse_from(args).unwrap().command, &[messages])
        };
        assert_eq!(of(&["list"], 1_000_000), Range::all());
        assert_eq!(of(&["peek"], 1_000_000), Range::all().last(PEEKED));
        let since = of(&["peek", "--since", "2026-01-02T03:04:05Z"], 1_000_000);
        assert_eq!(since, Range::all().since("2026-01-02T03:04:05Z".parse().unwrap()));
    }

    #[tokio::test]
    async fn what_does_not_fit_into_memory_is_read_into_a_file() {
        let place = MemoryFixture::<0>::fresh("read").await;
        let mut letters: Vec<_> = (0..600).map(varied).collect();
        letters.extend([died_again(&varied(3)), varied(5)]);
        place.bury(letters).await;
        let log = place.letters().log().clone();
        let small = read_beyond(&log, Range::all(), 100).await.unwrap().of(log.clone());
        let large = read(log, Range::all()).await.unwrap();
        let folder = small._folder.as_ref().map(|folder| folder.path().to_owned()).unwrap();
        assert!(folder.join("letters.db").exists() && large._folder.is_none());
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt as _;
            let mode = std::fs::metadata(&folder).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o700, "nobody else reads payloads there");
        }
        let list = async |read: &Read| {
            let page = PageRequest::new().limit(1_000);
            read.letters.list(Filter::new(), page).await.unwrap().letters
        };
        assert_eq!(list(&small).await, list(&large).await);
        let ids: Vec<_> = list(&small).await.iter().map(|letter| letter.id).collect();
        assert_eq!(ids.len(), 600);
        assert_eq!(
            small.letters.get_all(ids.clone()).await.unwrap(),
            large.letters.get_all(ids).await.unwrap()
        );
        drop(small);
        assert!(!folder.exists());
    }

    #[tokio::test]
    async fn letters_that_are_not_kept_are_forgotten_in_memory_and_in_a_file() {
        let place = MemoryFixture::<0>::fresh("keep").await;
        let mut letters: Vec<_> = (0..1_500).map(varied).collect();
        letters.push(died_again(&varied(3)));
        place.bury(letters).await;
        let log = place.letters().log().clone();
        let offset = |row: &Row| match row.place.position() {
            dlq_core::Position::Offset(offset) => *offset,
            position => panic!("{position:?}"),
        };
        for most in [100, u64::MAX] {
            let filled = read_beyond(&log, Range::all(), most).await.unwrap();
            filled.retain(|row| offset(row) < 1_200).await.unwrap();
            let read = filled.of(log.clone());
            let is_there = async |n| read.letters.get(varied(n).id).await.unwrap().is_some();
            assert!(is_there(4).await && is_there(1_100).await);
            assert!(!is_there(1_400).await);
            assert!(!is_there(3).await, "its last death stands elsewhere");
        }
    }
}
