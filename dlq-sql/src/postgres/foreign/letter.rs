//! From a row to a letter.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use bytes::Bytes;
use dlq_core::store::rules::born;
use dlq_core::{
    Attempt, Cause, DeadLetter, ErrorClass, Failure, Headers, History, LetterId, LetterState,
    MAX_TEXT, Message, Origin, Position, Reason, Resolution, Status, Timestamp, bounded,
};
use sqlx::Row as _;
use sqlx::postgres::PgRow;

use super::{BadRow, Field, ForeignColumn, Meaning, value};

/// Maximum size of unknown columns of a row that become attributes: lists show them.
const MAX_UNKNOWN: usize = 1 << 20;

/// Form in which a column is selected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Bytes,
    Text,
    /// A time without a zone.
    LocalTime,
}

#[derive(Debug)]
pub(super) struct Column {
    pub(super) shown: ForeignColumn,
    pub(super) kind: Kind,
}

/// Settings that are the same for every row of a table.
#[derive(Debug)]
pub(super) struct Reader {
    pub(super) cluster: String,
    pub(super) stream: String,
    pub(super) columns: Vec<Column>,
    /// Columns that tell rows apart. Without any, the part of the row after its columns does.
    pub(super) key: Vec<usize>,
    pub(super) consumer: String,
    pub(super) service: Option<String>,
    pub(super) class: ErrorClass,
    /// Time of opening by the database's clock.
    pub(super) opened_at: Timestamp,
}

/// Returns the number of bytes of a row's values.
pub(super) fn size(record: &PgRow) -> usize {
    (0..record.len()).filter_map(|index| raw(record, index)).map(<[u8]>::len).sum()
}

/// A value as it came; `None` for NULL.
fn raw(record: &PgRow, index: usize) -> Option<&[u8]> {
    record.try_get_raw(index).ok()?.as_bytes().ok()
}

impl Reader {
    pub(super) fn read(&self, record: &PgRow) -> Result<DeadLetter, BadRow> {
        let key = self.key_of(record);
        let position = position(&key);
        let shown = key.iter().map(|(name, value)| format!("{name}={value}"));
        let shown = shown.collect::<Vec<_>>().join(", ");
        let mut cells = Cells { reader: self, record, attributes: BTreeMap::new() };
        let read = cells.letter(self.origin(position));
        read.map_err(|why| BadRow { key: shown.chars().take(200).collect(), why })
    }

    fn key_of(&self, record: &PgRow) -> Vec<(&str, String)> {
        if self.key.is_empty() {
            let digest = raw(record, self.columns.len()).unwrap_or_default();
            return vec![("digest", String::from_utf8_lossy(digest).into_owned())];
        }
        let key = self.key.iter().map(|&index| {
            let bytes = raw(record, index).unwrap_or_default();
            let value = match self.columns[index].kind {
                Kind::Bytes => hex(bytes),
                Kind::Text | Kind::LocalTime => String::from_utf8_lossy(bytes).into_owned(),
            };
            (&*self.columns[index].shown.name, value)
        });
        key.collect()
    }

    fn origin(&self, position: Position) -> Origin {
        Origin::new("postgres", &*self.stream, position).with_cluster(&*self.cluster)
    }
}

/// The place of a row in its table: its number where its key is one, else a hash of the key.
fn position(key: &[(&str, String)]) -> Position {
    if let [(_, value)] = key
        && let Ok(number) = value.parse::<u64>()
        // `007` and `7` may both be keys, and must not stand at one position.
        && number.to_string() == *value
    {
        return Position::Offset(number);
    }
    let mut text = String::new();
    // With lengths in front, the parts `1`, `23` and `12`, `3` are different keys.
    for (_, value) in key {
        let _ = write!(text, "{}:{value}", value.len());
    }
    // The hash by which ids are made is at hand, and takes any text.
    let hash = LetterId::of(&Origin::new("postgres", text, Position::Offset(0)), None, "");
    let number = u128::from_be_bytes(*hash.as_bytes());
    // The halves of 128 bits.
    Position::Pair((number >> 64) as u64, number as u64)
}

/// The values of one row.
struct Cells<'r> {
    reader: &'r Reader,
    record: &'r PgRow,
    attributes: BTreeMap<String, String>,
}

impl<'r> Cells<'r> {
    /// The letter, or what is wrong with the row.
    fn letter(&mut self, origin: Origin) -> Result<DeadLetter, String> {
        self.keep_what_has_no_place()?;
        let message = self.message()?;
        let mut times = self.times()?;
        if times.all().next().is_none() {
            // A letter has a time. The attribute says that the row had none.
            times.created = Some(self.reader.opened_at);
            self.attributes.insert("import.created-at".to_owned(), "unknown".to_owned());
        }
        let died_at = times.died_at();
        let consumer = self.text(Field::Consumer)?.unwrap_or(&self.reader.consumer).to_owned();
        let class = self.word(Field::Class)?.unwrap_or(self.reader.class);
        let reason = self.word(Field::Reason)?.unwrap_or(Reason::Exhausted);
        let mut history = History::new();
        if let Some(failure) = self.failure(class, died_at)? {
            history.push(Attempt { number: 1, generation: 0, failure });
        }
        let state = self.state(&times)?;
        let service = self.text(Field::Service)?.map(str::to_owned);
        // Whoever's death it is said to be: read again for another consumer, it is the same letter.
        let id = LetterId::of(&origin, None, "");
        let mut letter = DeadLetter::new(message, origin, consumer, reason).with_id(id);
        letter.class = class;
        letter = letter.with_history(history);
        letter.service = service.or_else(|| self.reader.service.clone());
        // A row tells of one attempt at most, however many there were.
        letter.attempts = u32::from(letter.failure().is_some());
        letter.died_at = died_at;
        letter.attributes = std::mem::take(&mut self.attributes);
        letter.state = state;
        Ok(letter)
    }

    fn message(&mut self) -> Result<Message, String> {
        let event = self.text(Field::Event)?;
        let subject = self.text(Field::Subject)?.or(event);
        let subject = subject.ok_or("it has neither a subject nor an event")?;
        let mut message = Message::tombstone(subject)
            .with_payload(self.bytes(Field::Payload).map(Bytes::copy_from_slice));
        if let Some(event) = event {
            message = message.with_event(event);
        }
        if let Some(id) = self.text(Field::Id)? {
            message = message.with_id(id);
        }
        if let Some(key) = self.bytes(Field::Key) {
            message = message.with_key(Bytes::copy_from_slice(key));
        }
        if let Some(at) = self.time(Field::PublishedAt)? {
            message = message.with_published_at(at);
        }
        Ok(message.with_headers(self.headers()?))
    }

    /// The headers; what is not an object of texts is kept beside them as it is.
    fn headers(&mut self) -> Result<Headers, String> {
        let Some((index, bytes)) = self.find(Field::Headers) else { return Ok(Headers::new()) };
        let read = std::str::from_utf8(bytes).ok().and_then(value::headers);
        // Without a header an empty object and NULL would look the same.
        let is_whole = matches!(&read, Some((headers, true)) if !headers.is_empty());
        if !is_whole {
            self.keep(index, bytes)?;
        }
        Ok(read.map(|(headers, _)| headers).unwrap_or_default())
    }

    fn failure(&mut self, class: ErrorClass, at: Timestamp) -> Result<Option<Failure>, String> {
        let error_type = self.long(Field::ErrorType)?;
        let backtrace = self.long(Field::Stacktrace)?;
        let Some(error) = self.long(Field::Error)? else {
            // Nothing says that it was tried, and these would have no place.
            for field in [Field::ErrorType, Field::Stacktrace] {
                if let Some((index, bytes)) = self.find(field) {
                    self.keep(index, bytes)?;
                }
            }
            return Ok(None);
        };
        let mut failure = Failure::new(class, Cause::Error, error_type.unwrap_or_default(), error);
        failure.at = at;
        failure.backtrace = backtrace.map(bounded);
        Ok(Some(failure))
    }

    fn state(&self, times: &Times) -> Result<LetterState, String> {
        let (mut status, mut resolution) =
            self.text(Field::Status)?.and_then(value::status).unwrap_or((Status::Pending, None));
        if times.retried.is_some() {
            (status, resolution) = (Status::Resolved, Some(Resolution::Succeeded));
        }
        if times.quarantined.is_some() {
            (status, resolution) = (Status::Quarantined, None);
        }
        let mut state = born(times.died_at()).with_status(status);
        state.resolution = resolution;
        state.retry_count = self.count(Field::RetryCount)?.unwrap_or(0);
        state.updated_at = times.latest();
        state.last_retry_at = times.last_retry.or(times.retried);
        Ok(state)
    }

    fn times(&self) -> Result<Times, String> {
        Ok(Times {
            created: self.time(Field::CreatedAt)?,
            updated: self.time(Field::UpdatedAt)?,
            last_retry: self.time(Field::LastRetryAt)?,
            retried: self.time(Field::RetriedAt)?,
            quarantined: self.time(Field::QuarantinedAt)?,
        })
    }

    /// Puts into attributes what the letter would not hold exactly.
    fn keep_what_has_no_place(&mut self) -> Result<(), String> {
        let mut unknown = 0;
        for (index, column) in self.reader.columns.iter().enumerate() {
            let Some(bytes) = raw(self.record, index) else { continue };
            match column.shown.meaning {
                Meaning::Skipped => {}
                Meaning::Field(field) => {
                    if !field.is_exact() {
                        self.keep(index, bytes)?;
                    }
                    if field == Field::Payload && column.kind != Kind::Bytes {
                        let type_name = column.shown.type_name.clone();
                        self.attributes.insert("import.payload-type".to_owned(), type_name);
                    }
                }
                Meaning::Attribute => {
                    self.keep(index, bytes)?;
                    unknown += self.attributes.get(&name_of(column)).map_or(0, String::len);
                    if unknown > MAX_UNKNOWN {
                        return Err(format!(
                            "its columns that are not known hold more than {MAX_UNKNOWN} bytes, of which {} are in \
                             `{}`; map that column to where it belongs, or leave it out",
                            bytes.len(),
                            column.shown.name
                        ));
                    }
                }
            }
        }
        // Both are when it was sent back, and a letter has one such time; so it is with when it was set aside.
        let quarantined = self.find(Field::QuarantinedAt);
        let retried = self.find(Field::RetriedAt);
        let retried = retried.filter(|_| self.find(Field::LastRetryAt).is_some());
        for (index, bytes) in quarantined.into_iter().chain(retried) {
            self.keep(index, bytes)?;
        }
        Ok(())
    }

    /// Keeps a value as an attribute.
    fn keep(&mut self, index: usize, bytes: &[u8]) -> Result<(), String> {
        let column = &self.reader.columns[index];
        let value = match column.kind {
            Kind::Bytes => hex(bytes),
            Kind::Text | Kind::LocalTime => utf8(&column.shown.name, bytes)?.to_owned(),
        };
        self.attributes.insert(name_of(column), value);
        Ok(())
    }

    /// Returns the column with this meaning, and its value; `None` for NULL.
    fn find(&self, field: Field) -> Option<(usize, &'r [u8])> {
        let wanted = Meaning::Field(field);
        let index = self.reader.columns.iter().position(|column| column.shown.meaning == wanted)?;
        raw(self.record, index).map(|bytes| (index, bytes))
    }

    fn bytes(&self, field: Field) -> Option<&'r [u8]> {
        self.find(field).map(|(_, bytes)| bytes)
    }

    fn text(&self, field: Field) -> Result<Option<&'r str>, String> {
        let found = self.find(field);
        found.map(|(index, bytes)| utf8(&self.reader.columns[index].shown.name, bytes)).transpose()
    }

    /// A text that a history holds cut: then the whole is kept beside it.
    fn long(&mut self, field: Field) -> Result<Option<&'r str>, String> {
        let text = self.text(field)?;
        if let Some((index, bytes)) = self.find(field).filter(|(_, bytes)| bytes.len() > MAX_TEXT) {
            self.keep(index, bytes)?;
        }
        Ok(text)
    }

    /// A word that we know; others are in attributes anyway.
    fn word<T: std::str::FromStr>(&self, field: Field) -> Result<Option<T>, String> {
        Ok(self.text(field)?.and_then(|word| word.trim().to_ascii_lowercase().parse().ok()))
    }

    fn count(&self, field: Field) -> Result<Option<u32>, String> {
        self.parsed(field, "a count", |text| text.parse().ok())
    }

    fn time(&self, field: Field) -> Result<Option<Timestamp>, String> {
        self.parsed(field, "a time between the years 1678 and 2261", value::time)
    }

    fn parsed<T>(
        &self,
        field: Field,
        wanted: &str,
        parse: impl Fn(&str) -> Option<T>,
    ) -> Result<Option<T>, String> {
        let Some(text) = self.text(field)? else { return Ok(None) };
        let shown = || text.chars().take(80).collect::<String>();
        let column =
            self.find(field).map_or("", |(index, _)| &self.reader.columns[index].shown.name);
        let refusal = || format!("column `{column}` is `{}`, which is not {wanted}", shown());
        parse(text).map(Some).ok_or_else(refusal)
    }
}

/// Returns the name of the attribute that has a column's value.
fn name_of(column: &Column) -> String {
    format!("column.{}", column.shown.name)
}

fn utf8<'r>(column: &str, bytes: &'r [u8]) -> Result<&'r str, String> {
    std::str::from_utf8(bytes).map_err(|error| {
        format!("column `{column}` is not UTF-8 ({error}); see the encoding of the database")
    })
}

/// As the database shows bytes.
fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 + bytes.len() * 2);
    text.push_str("\\x");
    for byte in bytes {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// When what happened to a row.
struct Times {
    created: Option<Timestamp>,
    updated: Option<Timestamp>,
    last_retry: Option<Timestamp>,
    retried: Option<Timestamp>,
    quarantined: Option<Timestamp>,
}

impl Times {
    fn all(&self) -> impl Iterator<Item = Timestamp> {
        [self.created, self.updated, self.last_retry, self.retried, self.quarantined]
            .into_iter()
            .flatten()
    }

    /// When it was written, or else the first that is known of it.
    fn died_at(&self) -> Timestamp {
        self.created.or_else(|| self.all().min()).unwrap_or(Timestamp::EPOCH)
    }

    fn latest(&self) -> Timestamp {
        self.updated.or_else(|| self.all().max()).unwrap_or(Timestamp::EPOCH)
    }
}
