use std::fs::{File, OpenOptions};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use dlq_core::BoxError;
use dlq_core::ingest::{Incident, Ingest, Outcome};
use dlq_nats::{NatsFeed, ingest_marks};

use super::Broker;
use crate::cli::IngestArgs;
use crate::commands::PARTIAL;
use crate::error::CliError;
use crate::open;
use crate::output::Output;
use crate::signals::until_asked;

/// For how long `--once` waits for a store or a server that is not there.
const PATIENCE: Duration = Duration::from_secs(30);

/// Drains the stream of dead letters into a store.
pub(super) async fn run(
    broker: &Broker,
    out: &mut Output,
    args: IngestArgs,
) -> Result<ExitCode, CliError> {
    let mut incidents = Incidents::open(args.incidents.as_deref())?;
    let stream = broker.permitted(broker.letters()).await?;
    refuse_a_lost_store(broker, &stream, &args).await?;
    let store = open::store(&args.into, true).await?;
    let name = store_name(&args.into)?;
    let opening = async {
        Ok(NatsFeed::open(&broker.context, &stream, &args.durable, &name, args.lease).await?)
    };
    let feed = broker.permitted(opening).await?.with_prefetch(args.batch.saturating_mul(2));
    let feed = if args.once { feed.until_end() } else { feed };
    let mut ingest = Ingest::new(feed, store.store().clone()).with_batch(args.batch);
    if args.once {
        ingest = ingest.with_patience(PATIENCE);
    }
    if args.audit {
        ingest = ingest.with_audit(store.store().clone());
    }
    let run = until_asked(|stop| {
        let ingest = &mut ingest;
        eprintln!("letters of {} go into {name}", broker.shown);
        async move {
            let tell = |new: &[Incident]| incidents.write(new);
            ingest.run(stop, tell).await.map_err(|error| CliError::caused_by(&*error))
        }
    });
    let ran = run.await;
    let report = ingest.report();
    if out.is_table() {
        out.line(report)?;
    } else {
        out.document(report)?;
    }
    ran?;
    if report.with_outcome(Outcome::SetAside) > 0 {
        eprintln!(
            "letters that were set aside are named among the incidents, and stay in the stream for as long as it keeps them"
        );
        return Ok(ExitCode::from(PARTIAL));
    }
    Ok(ExitCode::SUCCESS)
}

/// A store that is created anew gets nothing of what was confirmed into one that is lost.
async fn refuse_a_lost_store(
    broker: &Broker,
    stream: &dlq_nats::DlqStream,
    args: &IngestArgs,
) -> Result<(), CliError> {
    let is_there = args.into.split_once("://").is_none_or(|(_, path)| Path::new(path).exists());
    if is_there {
        return Ok(());
    }
    let marks = async { Ok(ingest_marks(&broker.context, stream).await?) };
    let marks = broker.permitted(marks).await?;
    match marks.iter().find(|mark| mark.consumer == args.durable && mark.confirmed > 0) {
        Some(mark) => Err(CliError::refused(format!(
            "{} is not there, and letters up to {} of {} went into {} already; use that store. If it is lost, delete the \
             consumer first (nats consumer rm {} {}): everything that the stream holds is then read again",
            args.into, mark.confirmed, broker.shown, mark.store, broker.stream, mark.consumer
        ))),
        None => Ok(()),
    }
}

/// The store by a name that is the same from every folder.
fn store_name(url: &str) -> Result<String, CliError> {
    let (scheme, path) = url.split_once("://").unwrap_or(("sqlite", url));
    let path = Path::new(path).canonicalize().map_err(|error| {
        CliError::failed(format!("{url}: the file cannot be found again: {error}"))
    })?;
    Ok(format!("{scheme}://{}", path.display()))
}

/// Where incidents are written.
enum Incidents {
    Stderr,
    File(File),
}

impl Incidents {
    fn open(path: Option<&Path>) -> Result<Self, CliError> {
        let Some(path) = path else { return Ok(Self::Stderr) };
        let open = || {
            let mut options = OpenOptions::new();
            let mut file = options.read(true).append(true).create(true).open(path)?;
            // A process that died may have left half a line.
            let mut last = [b'\n'];
            if file.seek(SeekFrom::End(0))? > 0 {
                file.seek(SeekFrom::End(-1))?;
                file.read_exact(&mut last)?;
            }
            if last != [b'\n'] {
                file.write_all(b"\n")?;
            }
            Ok(file)
        };
        open().map(Self::File).map_err(|error: std::io::Error| {
            CliError::failed(format!("cannot write incidents to {}: {error}", path.display()))
        })
    }

    /// They are on the disk when this returns.
    fn write(&mut self, incidents: &[Incident]) -> Result<(), BoxError> {
        let mut lines = Vec::new();
        for incident in incidents {
            serde_json::to_writer(&mut lines, incident)?;
            lines.push(b'\n');
        }
        let written = match self {
            Self::Stderr => std::io::stderr().lock().write_all(&lines),
            Self::File(file) => file.write_all(&lines).and_then(|()| file.sync_data()),
        };
        written.map_err(|error| format!("cannot write incidents: {error}").into())
    }
}
