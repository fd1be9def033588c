//! Files with one letter a line: `dlq export` writes them, `dlq import` reads them.
//!
//! A line is a letter as JSON, byte for byte: payload, key and headers are text where they are UTF-8 and base64 where
//! they are not. Letters stand oldest first. When the process dies, the file has:
//!
//! | it died | the file ends with | and `--resume` |
//! |---|---|---|
//! | before the first line was written | nothing, or a torn line | cuts it and begins |
//! | in the middle of a line | a torn line | cuts it, and goes on after the letter of the line before |
//! | between two lines | a whole line | goes on after its letter |
//! | after the last line | a whole line | finds nothing more |
//!
//! An import is resumed by running it again: letters that are there stay as they are.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufWriter, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::Path;

use dlq_admin::mask::MASKED;
use dlq_core::{Cursor, DeadLetter};

use crate::error::CliError;

/// A file to which letters are written.
pub(crate) struct LinesFile(BufWriter<File>);

impl LinesFile {
    /// Creates the file, which must not exist.
    pub(crate) fn create(path: &Path) -> Result<Self, CliError> {
        // A backup must not be overwritten by the one that is made next.
        let file = File::create_new(path).map_err(|error| {
            let hint = match error.kind() {
                io::ErrorKind::AlreadyExists => {
                    "; give another path, or say --resume to go on at its end"
                }
                _ => "",
            };
            CliError::failed(format!(
                "cannot write to a new file {}: {error}{hint}",
                path.display()
            ))
        })?;
        Ok(Self(BufWriter::new(file)))
    }

    /// Opens a file that was begun, or creates it; cuts a torn last line. Returns where its last letter stands, and how many
    /// letters the file has.
    pub(crate) fn resume(path: &Path) -> Result<(Self, Option<Cursor>, u64), CliError> {
        let cannot = |error: io::Error| {
            CliError::failed(format!("cannot go on with {}: {error}", path.display()))
        };
        let mut options = OpenOptions::new();
        // It is created where it is missing, so that the same command with `--resume` can be given from the start.
        let file = options.read(true).write(true).create(true).truncate(false).open(path);
        let mut file = file.map_err(cannot)?;
        // The place is in the file itself. A note beside it could be newer or older than what has reached the disk.
        let (end, line) = last_line(&mut file).map_err(cannot)?;
        let last = match line {
            None => None,
            Some(line) => Some(read(&line).map_err(|why| {
                CliError::failed(format!(
                    "cannot go on with {}: its last line is not a letter: {why}; give the file of an export",
                    path.display()
                ))
            })?),
        };
        let length = file.metadata().map_err(cannot)?.len();
        if end < length {
            // Only a file of ours is cut: one without any whole line could be anybody's.
            if last.is_none() && !begins_a_letter(&mut file).map_err(cannot)? {
                return Err(CliError::failed(format!(
                    "cannot go on with {}: it is not the file of an export",
                    path.display()
                )));
            }
            // The cut comes after every check: a file that is refused stays as it is.
            file.set_len(end).map_err(cannot)?;
            say!("cut a torn last line of {} bytes", length - end);
        }
        let written = line_breaks(&mut file).map_err(cannot)?;
        file.seek(SeekFrom::End(0)).map_err(cannot)?;
        let after = last.map(|letter| Cursor::after(letter.state.created_at, letter.id));
        Ok((Self(BufWriter::new(file)), after, written))
    }

    /// Writes one line.
    pub(crate) fn write(&mut self, letter: &DeadLetter) -> Result<(), CliError> {
        serde_json::to_writer(&mut self.0, letter)?;
        // The line break comes last: a line without one is torn, wherever the process died.
        Ok(self.0.write_all(b"\n")?)
    }

    /// Returns once everything is on the disk.
    pub(crate) fn finish(&mut self) -> Result<(), CliError> {
        self.0.flush()?;
        // Whoever deletes letters after their export relies on the file, also after a power cut.
        Ok(self.0.get_ref().sync_all()?)
    }
}

/// Returns the reason why a letter that only points to its message came without it, if it did. Such a letter has no
/// payload and is no tombstone: it is not imported, since a handler would be given something else than what has died.
pub(crate) fn no_message(letter: &DeadLetter) -> Option<&str> {
    let why = ["kafka.pointer.unread", "kafka.pointer.gone"];
    why.iter().find_map(|name| letter.attributes.get(*name)).map(String::as_str)
}

/// The letter of a line, or why it is none, with the column.
fn read(line: &[u8]) -> Result<DeadLetter, String> {
    serde_json::from_slice(line).map_err(|error| {
        let text = error.to_string();
        let why = text.rsplit_once(" at line ").map_or(text.as_str(), |(why, _)| why);
        format!("{why} (column {})", error.column())
    })
}

fn begins_a_letter(file: &mut File) -> io::Result<bool> {
    const START: &[u8] = b"{\"id\":\"";
    let mut start = Vec::new();
    file.rewind()?;
    file.take(START.len() as u64).read_to_end(&mut start)?;
    // What a power cut leaves of a line may be blank.
    Ok(START.starts_with(&start) || start.iter().all(|byte| *byte == 0))
}

/// Returns the end of the last whole line, and that line, if there is one.
fn last_line(file: &mut File) -> io::Result<(u64, Option<Vec<u8>>)> {
    let length = file.seek(SeekFrom::End(0))?;
    let Some(end) = line_break_before(file, length)? else { return Ok((0, None)) };
    let start = line_break_before(file, end)?.map_or(0, |before| before + 1);
    let mut line = Vec::new();
    file.seek(SeekFrom::Start(start))?;
    file.take(end - start).read_to_end(&mut line)?;
    Ok((end + 1, Some(line)))
}

/// Number of line breaks in the file.
fn line_breaks(file: &mut File) -> io::Result<u64> {
    file.rewind()?;
    let (mut chunk, mut count) = (vec![0; 1 << 16], 0);
    loop {
        let length = file.read(&mut chunk)?;
        if length == 0 {
            return Ok(count);
        }
        count += chunk[..length].iter().filter(|byte| **byte == b'\n').count() as u64;
    }
}

/// The last line break before a place.
fn line_break_before(file: &mut File, mut place: u64) -> io::Result<Option<u64>> {
    let mut chunk = vec![0; 1 << 16];
    // Read from the end in pieces: the file may be larger than the memory, and the last line is all that is asked for.
    while place > 0 {
        let start = place.saturating_sub(chunk.len() as u64);
        let chunk = &mut chunk[..(place - start) as usize];
        file.seek(SeekFrom::Start(start))?;
        file.read_exact(chunk)?;
        if let Some(found) = chunk.iter().rposition(|byte| *byte == b'\n') {
            return Ok(Some(start + found as u64));
        }
        place = start;
    }
    Ok(None)
}

/// Some lines that were read.
#[derive(Default)]
pub(crate) struct Batch {
    pub(crate) letters: Vec<DeadLetter>,
    /// Lines that are no letters: their number, and why.
    pub(crate) bad: Vec<(u64, String)>,
    /// The number of the last line.
    pub(crate) line: u64,
    /// Number of bytes of the lines.
    pub(crate) bytes: u64,
}

/// From so many bytes on a batch is full, however few letters it has.
// Large payloads would else fill the memory: two batches are held at a time.
const LARGE: u64 = 8 * 1024 * 1024;

/// Reads letters in batches of at most `size`; blank lines are skipped. Hands each to `take` until that declines.
pub(crate) fn read_batches(
    mut source: impl BufRead,
    size: usize,
    mut take: impl FnMut(io::Result<Batch>) -> bool,
) {
    let mut batch = Batch::default();
    let mut line = Vec::new();
    loop {
        line.clear();
        match source.read_until(b'\n', &mut line) {
            Ok(0) => break,
            Ok(length) => {
                batch.line += 1;
                batch.bytes += length as u64;
            }
            Err(error) => {
                // Lines that were read before the error are handed out first.
                if take(Ok(batch)) {
                    take(Err(error));
                }
                return;
            }
        }
        if line.trim_ascii().is_empty() {
            continue;
        }
        match read(&line) {
            Ok(letter) if letter.attributes.contains_key(MASKED) => batch.bad.push((
                batch.line,
                format!(
                    "it was exported with parts masked ({}), and a handler would be given those; export it again with --unmasked",
                    letter.attributes[MASKED]
                ),
            )),
            Ok(letter) => match no_message(&letter) {
                Some(why) => batch.bad.push((
                    batch.line,
                    format!("it was exported without its message ({why}); where that is there by now, export it again"),
                )),
                None => batch.letters.push(letter),
            },
            Err(why) => batch.bad.push((batch.line, why)),
        }
        // Bad lines fill a batch as well, so that a file without letters does not end up in memory.
        if batch.letters.len() >= size || batch.bad.len() >= size || batch.bytes >= LARGE {
            let next = Batch { line: batch.line, ..Batch::default() };
            if !take(Ok(std::mem::replace(&mut batch, next))) {
                return;
            }
        }
    }
    take(Ok(batch));
}
