//! Example of a sink: dead letters go to a file, one line of JSON each, as `dlq import` reads them.
//!
//! `cargo run -p custom-store-example` handles five messages, of which two cannot be read, and keeps those in `letters.jsonl`.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use tower_dlq::core::store::{Receipt, Sink};
use tower_dlq::core::{Binding, DeadLetter, LetterId, StoreError, StoreErrorKind};
use tower_dlq::memory::{MemoryBroker, MemoryTransport};
use tower_dlq::prelude::*;

/// A file of letters. One process writes it at a time.
#[derive(Clone, Debug)]
struct LetterFile(Arc<Mutex<Letters>>);

#[derive(Debug)]
struct Letters {
    file: File,
    /// Length of the lines that are whole.
    length: u64,
    /// Generation and content of each letter in the file.
    known: HashMap<LetterId, (u32, Binding)>,
}

impl LetterFile {
    fn open(path: impl AsRef<Path>) -> io::Result<Self> {
        let file = File::options().read(true).append(true).create(true).open(path)?;
        let (mut length, mut known) = (0, HashMap::new());
        let mut lines = BufReader::new(&file);
        let mut line = Vec::new();
        // Half a line is what a process left that died while it wrote. Its message was not acknowledged, and comes again.
        while lines.read_until(b'\n', &mut line)? > 0 && line.ends_with(b"\n") {
            let letter: DeadLetter = serde_json::from_slice(&line)?;
            known.insert(letter.id, (letter.generation, content(&letter)));
            length += line.len() as u64;
            line.clear();
        }
        Ok(Self(Arc::new(Mutex::new(Letters { file, length, known }))))
    }

    fn len(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).known.len()
    }
}

/// Payload and key, in short.
fn content(letter: &DeadLetter) -> Binding {
    Binding::of(&letter.id, &letter.message)
}

impl Letters {
    /// Appends the letters that are new, and returns once the disk has them.
    fn put(&mut self, letters: Vec<DeadLetter>) -> io::Result<Vec<Receipt>> {
        let (mut text, mut known, mut receipts) = (Vec::new(), HashMap::new(), Vec::new());
        for mut letter in letters {
            let mut receipt =
                receipt(known.get(&letter.id).or(self.known.get(&letter.id)), &letter);
            if let Receipt::Conflicting(id) = receipt {
                // Another message with the same identity: both are kept.
                letter.id = id;
                if known.contains_key(&id) || self.known.contains_key(&id) {
                    receipt = Receipt::Unchanged;
                }
            }
            receipts.push(receipt);
            if matches!(receipt, Receipt::Unchanged | Receipt::Superseded) {
                continue;
            }
            serde_json::to_writer(&mut text, &letter)?;
            text.push(b'\n');
            known.insert(letter.id, (letter.generation, content(&letter)));
        }
        // What a write that failed may have left goes first.
        self.file.set_len(self.length)?;
        self.file.write_all(&text)?;
        self.file.sync_data()?;
        self.length += text.len() as u64;
        self.known.extend(known);
        Ok(receipts)
    }
}

/// Returns what becomes of `letter`, where the file has `known` under its id.
fn receipt(known: Option<&(u32, Binding)>, letter: &DeadLetter) -> Receipt {
    let Some((generation, known)) = known else { return Receipt::Stored };
    if *known != content(letter) {
        return Receipt::Conflicting(letter.id.conflicting(&letter.message));
    }
    match letter.generation.cmp(generation) {
        std::cmp::Ordering::Less => Receipt::Superseded,
        std::cmp::Ordering::Equal => Receipt::Unchanged,
        std::cmp::Ordering::Greater => Receipt::Reopened,
    }
}

impl Sink for LetterFile {
    async fn put(&self, letters: Vec<DeadLetter>) -> Result<Vec<Receipt>, StoreError> {
        let file = Arc::clone(&self.0);
        // On a thread that may wait for the disk.
        let written = tokio::task::spawn_blocking(move || {
            file.lock().unwrap_or_else(PoisonError::into_inner).put(letters)
        });
        let failed = |error| {
            StoreError::new(StoreErrorKind::Unavailable, "append letters").with_source(error)
        };
        written.await.map_err(io::Error::other).flatten().map_err(failed)
    }
}

#[dlq_handler(name = "mail.send", max_attempts = 3)]
async fn send(Json(_number): Json<u32>) -> Result<(), io::Error> {
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let broker = MemoryBroker::new().stream("mail");
    for text in ["1", "2", "three", "4", "five"] {
        broker.publish(Message::new("mail.new", text));
    }
    let letters = LetterFile::open("letters.jsonl")?;
    let consumer = Consumer::on(MemoryTransport::new("mail"), &broker)
        .handler(send::handler().build()?)
        .sink(letters.clone())
        .open()
        .await?;
    let report = consumer.run(broker.idle("mail.send")).await;
    println!("{} handled, {} dead", report.handled, report.dead);
    println!("{} letters in letters.jsonl", letters.len());
    Ok(())
}
