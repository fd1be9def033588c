//! Printing: tables for people, JSON for programs.

mod progress;
mod table;
mod text;

pub(crate) use dlq_admin::shown::{age, bytes, diff, escape, indented};
pub(crate) use progress::Progress;
pub(crate) use table::{Column, Table};

use std::borrow::Cow;
use std::io::{self, BufWriter, IsTerminal as _, StdoutLock, Write};
#[cfg(any(feature = "kafka", feature = "nats", feature = "redis"))]
use std::process::ExitCode;

use serde::Serialize;

use dlq_admin::mask::Mask;
use dlq_admin::shown::Document;
use dlq_core::DeadLetter;

use crate::cli::Format;
use crate::error::CliError;

/// Standard output.
pub(crate) struct Output {
    pub(crate) format: Format,
    out: BufWriter<StdoutLock<'static>>,
    /// The width that lines for people are cut to: the terminal's, or none.
    width: Option<usize>,
    /// Parts of messages that are masked.
    mask: Mask,
}

impl Output {
    /// `wide` lines are as long as they are, also at a terminal.
    pub(crate) fn new(format: Format, wide: bool) -> Self {
        let width = if wide { None } else { width() };
        Self { format, out: BufWriter::new(io::stdout().lock()), width, mask: Mask::default() }
    }

    /// Sets what is masked of messages. Defaults to nothing.
    pub(crate) fn mask(mut self, mask: Mask) -> Self {
        self.mask = mask;
        self
    }

    /// Returns the rules by which parts of messages are masked.
    pub(crate) fn rules(&self) -> &Mask {
        &self.mask
    }

    /// Returns the letter with what rules mask of it.
    pub(crate) fn masked<'a>(&self, letter: &'a DeadLetter) -> Cow<'a, DeadLetter> {
        self.mask.letter(letter).map_or(Cow::Borrowed(letter), Cow::Owned)
    }

    /// Returns true if the output goes to a terminal.
    pub(crate) fn is_terminal(&self) -> bool {
        io::stdout().is_terminal()
    }

    /// Writes a table, cut to the terminal.
    pub(crate) fn table(&mut self, table: &Table) -> Result<(), CliError> {
        table.lines(self.width).into_iter().try_for_each(|line| self.line(line))
    }

    /// Writes a line, cut to the terminal.
    pub(crate) fn cut_line(&mut self, text: &str) -> Result<(), CliError> {
        match self.width {
            Some(width) => self.line(text::fit(text, width)),
            None => self.line(text),
        }
    }

    /// Returns true if people read the output.
    pub(crate) fn is_table(&self) -> bool {
        self.format == Format::Table
    }

    /// Writes a line of text.
    pub(crate) fn line(&mut self, text: impl std::fmt::Display) -> Result<(), CliError> {
        Ok(writeln!(self.out, "{text}")?)
    }

    /// Writes bytes as they are.
    pub(crate) fn raw(&mut self, bytes: &[u8]) -> Result<(), CliError> {
        Ok(self.out.write_all(bytes)?)
    }

    /// Writes one document on one line.
    pub(crate) fn json_line(&mut self, value: &impl Serialize) -> Result<(), CliError> {
        serde_json::to_writer(&mut self.out, value)?;
        Ok(self.out.write_all(b"\n")?)
    }

    /// Writes one document over several lines.
    fn json(&mut self, value: &impl Serialize) -> Result<(), CliError> {
        serde_json::to_writer_pretty(&mut self.out, value)?;
        Ok(self.out.write_all(b"\n")?)
    }

    /// Writes one document, an object, with a `schema_version`: over several lines for `json`, on one line for `jsonl`.
    pub(crate) fn document(&mut self, value: &impl Serialize) -> Result<(), CliError> {
        let value = &Document::new(value);
        if self.format == Format::Jsonl { self.json_line(value) } else { self.json(value) }
    }

    /// Writes several documents: as `{"schema_version": …, NAME: […]}` for `json`, one a line for `jsonl`.
    pub(crate) fn documents<T: Serialize>(
        &mut self,
        name: &str,
        values: &[T],
    ) -> Result<(), CliError> {
        if self.format == Format::Jsonl {
            return values.iter().try_for_each(|value| self.json_line(value));
        }
        self.document(&serde_json::json!({ name: values }))
    }

    /// Writes out what is buffered.
    pub(crate) fn flush(&mut self) -> Result<(), CliError> {
        Ok(self.out.flush()?)
    }

    /// Writes out what is left, at the end of something that was done whoever reads of it: with this exit code, also where
    /// nobody does any more.
    #[cfg(any(feature = "kafka", feature = "nats", feature = "redis"))]
    pub(crate) fn end(&mut self, exit: ExitCode) -> Result<ExitCode, CliError> {
        match self.flush() {
            Ok(()) | Err(CliError::Closed) => Ok(exit),
            Err(error) => Err(error),
        }
    }
}

impl Drop for Output {
    /// Writes the rest; nobody can be told about an error any more.
    fn drop(&mut self) {
        let _ = self.out.flush();
    }
}

/// The width of the terminal; `None` where there is none, and nothing is cut. `COLUMNS` says better.
fn width() -> Option<usize> {
    if !io::stdout().is_terminal() {
        return None;
    }
    let said = std::env::var("COLUMNS").ok().and_then(|text| text.parse().ok());
    let found = || terminal_size::terminal_size().map(|(width, _)| usize::from(width.0));
    said.or_else(found).filter(|width| *width > 0)
}
