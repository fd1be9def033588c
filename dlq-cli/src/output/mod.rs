//! Printing: tables for people, JSON for programs.

mod colour;
mod pager;
mod progress;
mod table;
mod text;

pub(crate) use dlq_admin::shown::{age, bytes, diff, escape, indented};
pub(crate) use progress::Progress;
pub(crate) use table::{Cell, Column, SortBy, Table};

use std::borrow::Cow;
use std::io::{self, BufWriter, IsTerminal as _, StdoutLock, Write};
#[cfg(any(feature = "kafka", feature = "nats", feature = "redis"))]
use std::process::ExitCode;

use serde::Serialize;
use unicode_width::UnicodeWidthStr as _;

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
    has_colours: bool,
    /// Text that is kept for the pager; `None` where it is written as it comes.
    page: Option<Vec<u8>>,
    /// Columns that the terminal has no room for.
    lacks: Option<String>,
}

impl Output {
    /// `wide` lines are as long as they are, also at a terminal.
    pub(crate) fn new(format: Format, wide: bool) -> Self {
        let width = if wide { None } else { width() };
        let has_colours = io::stdout().is_terminal() && colour::is_wanted();
        // It is locked once, and every line is written without asking again: nothing else of this process prints there.
        let out = BufWriter::new(io::stdout().lock());
        Self { format, out, width, mask: Mask::default(), has_colours, page: None, lacks: None }
    }

    /// Shows what people read at a terminal in a pager, where it is longer than the terminal. For verbs that ask nothing.
    pub(crate) fn paged(mut self) -> Self {
        // JSON is for programs, which a pager would keep waiting.
        self.page = (self.is_terminal() && self.is_table()).then(Vec::new);
        self
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
        self.lacks = table.lacks(self.width);
        table.lines(self.width, self.has_colours).into_iter().try_for_each(|line| self.line(line))
    }

    /// Returns a state, in its colour at a terminal.
    pub(crate) fn state(&self, text: String) -> String {
        if self.has_colours { colour::painted(&text) } else { text }
    }

    fn writer(&mut self) -> &mut dyn Write {
        match &mut self.page {
            Some(page) => page,
            None => &mut self.out,
        }
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
        Ok(writeln!(self.writer(), "{text}")?)
    }

    /// Writes bytes as they are.
    pub(crate) fn raw(&mut self, bytes: &[u8]) -> Result<(), CliError> {
        Ok(self.writer().write_all(bytes)?)
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

    /// Writes out what is buffered, and returns once it was read if a pager shows it. Then says what the terminal had no
    /// room for.
    pub(crate) fn flush(&mut self) -> Result<(), CliError> {
        // The page is taken out, so that a second flush shows only what came since.
        if let Some(page) = self.page.as_mut().map(std::mem::take)
            // Where no pager can be started the text is written as if there had never been one.
            && !(is_longer_than_terminal(&page) && pager::show(&page)?)
        {
            self.out.write_all(&page)?;
        }
        self.out.flush()?;
        if let Some(lacks) = self.lacks.take() {
            let hint = format!("--wide shows {lacks}");
            say!("{}", self.width.map_or_else(|| hint.clone(), |width| text::fit(&hint, width)));
        }
        Ok(())
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
        let _ = self.flush();
    }
}

/// Returns true if the text has at least as many lines as the terminal, with those that it breaks.
fn is_longer_than_terminal(text: &[u8]) -> bool {
    let Some((width, height)) = terminal_size::terminal_size() else { return false };
    let (width, height) = (usize::from(width.0).max(1), usize::from(height.0));
    let lines = text.split(|byte| *byte == b'\n');
    let rows = lines.map(|line| String::from_utf8_lossy(line).width().div_ceil(width).max(1));
    height > 0 && rows.sum::<usize>() > height
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
