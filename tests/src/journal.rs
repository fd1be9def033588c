use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// A file of lines, each on the disk before the call returns. Clones write to the same file.
#[derive(Clone, Debug)]
pub struct Journal(Arc<Mutex<File>>);

impl Journal {
    /// Opens it, or begins a new one.
    ///
    /// # Errors
    ///
    /// When the file cannot be opened.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        Ok(Self(Arc::new(Mutex::new(file))))
    }

    /// Appends a line.
    ///
    /// # Errors
    ///
    /// When it cannot be written.
    pub fn note(&self, what: &str, n: u64) -> io::Result<()> {
        let mut file = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        file.write_all(format!("{what} {n}\n").as_bytes())?;
        file.sync_data()
    }

    /// The numbers of a kind of line, in order. A line that was cut off is none.
    ///
    /// # Errors
    ///
    /// When the file cannot be read.
    pub fn read(path: &Path, what: &str) -> io::Result<Vec<u64>> {
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(error),
        };
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        let numbers = whole.lines().filter_map(|line| line.strip_prefix(what)?.trim().parse().ok());
        Ok(numbers.collect())
    }
}
