use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// A line of a [`Journal`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Event.
    pub what: String,
    /// To which message.
    pub message: u64,
}

/// A file of lines, each with the kernel before the call returns, so that it outlives the process. Clones write to the
/// same file.
///
/// What is noted is printed as well, for whoever follows the process.
#[derive(Clone, Debug)]
pub struct Journal(Arc<Mutex<File>>);

impl Journal {
    /// Opens it, or begins a new one. A last line that was cut off is taken away.
    ///
    /// # Errors
    ///
    /// When the file cannot be opened.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        file.set_len(whole(&std::fs::read_to_string(path)?).len() as u64)?;
        Ok(Self(Arc::new(Mutex::new(file))))
    }

    /// Appends a line.
    ///
    /// # Errors
    ///
    /// When it cannot be written.
    pub fn note(&self, what: &str, message: u64) -> io::Result<()> {
        let mut file = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        file.write_all(format!("{what} {message}\n").as_bytes())?;
        writeln!(io::stdout(), "{what} {message}")
    }

    /// The lines, in order; none when there is no file. A line that was cut off is none.
    ///
    /// # Errors
    ///
    /// When the file cannot be read, or holds something else.
    pub fn read(path: &Path) -> io::Result<Vec<Entry>> {
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let entry = |line: &str| {
            let (what, message) = line.split_once(' ')?;
            Some(Entry { what: what.to_owned(), message: message.parse().ok()? })
        };
        let broken =
            |line| io::Error::new(io::ErrorKind::InvalidData, format!("the line `{line}`"));
        whole(&text).lines().map(|line| entry(line).ok_or_else(|| broken(line))).collect()
    }
}

/// Returns the text up to its last line end.
fn whole(text: &str) -> &str {
    text.rfind('\n').map_or("", |end| &text[..=end])
}
