use std::process::ExitCode;

use dlq_nats::{AdvisoryStream, DlqStream, EventRouter};

use super::Broker;
use crate::cli::RouteArgs;
use crate::commands::PARTIAL;
use crate::error::CliError;
use crate::output::Output;
use crate::serve::Counted;
use crate::signals::until_asked;

/// Runs the event router until the process is asked to end.
pub(super) async fn run(
    broker: &Broker,
    out: &mut Output,
    args: RouteArgs,
) -> Result<ExitCode, CliError> {
    // The recorder has to be there before the router makes its counters.
    let counted = Counted::open(args.metrics.as_deref(), "this router").await?;
    let router = broker.permitted(open(broker, &args)).await?;
    if broker.has_others() {
        say!(
            "note: {} names one server of several; name all of them (nats://HOST,HOST,HOST/STREAM), and each is listened to, so \
             that the death of one makes nobody deaf",
            broker.shown
        );
    }
    let report = until_asked(|stop| async {
        let (what, to) = (watched(&args), &broker.shown);
        say!("routing what {what} give up into {to}; ask me to end with Ctrl-C");
        Ok(router.run(stop).await)
    });
    let report = counted.beside(report).await?;
    if out.is_table() {
        out.line(report)?;
    } else {
        out.document(&report)?;
    }
    // The report comes before the error: what was routed is in the stream.
    if report.broken > 0 {
        let text = "a part of the router broke down, which ended it; start it again, and what was in flight comes again";
        return Err(CliError::failed(text));
    }
    Ok(if report.given_up > 0 { ExitCode::from(PARTIAL) } else { ExitCode::SUCCESS })
}

async fn open(broker: &Broker, args: &RouteArgs) -> Result<EventRouter, CliError> {
    // What exists is taken as it is.
    let letters = match broker.config(&broker.stream).await? {
        Some(_) => broker.letters().await?,
        None => DlqStream::new().name(&broker.stream).replicas(args.replicas),
    };
    let mut advisories = AdvisoryStream::new().name(&args.advisory_stream);
    advisories = match broker.config(&args.advisory_stream).await? {
        Some(there) => advisories.max_age(there.max_age).replicas(there.num_replicas),
        None => advisories.replicas(args.replicas),
    };
    // Of a client it is known which rights it needs.
    let builder = if broker.is_own {
        EventRouter::builder(broker.context.client())
    } else {
        EventRouter::builder(broker.context.clone())
    };
    let mut builder = builder
        .letters(letters)
        .advisories(advisories)
        .sweep_every(args.sweep_every)
        .cluster(args.cluster.as_str())
        .retries(args.retry_stream.as_str());
    if let Some(key) = &broker.key {
        builder = builder.binding_key(key.clone());
    }
    if let Some(deliveries) = args.max_retries {
        builder = builder.max_retries(deliveries);
    }
    if let Some(header) = &args.event_header {
        builder = builder.event_header(header.as_str());
    }
    if let Some(url) = &args.into {
        // As ingest does: a store that is not there yet is made.
        let store = crate::open::store(url, true).await?;
        builder = builder.store(store.store().clone());
    }
    // Advisories are plain messages that a server forgets: each server is listened to, so that one which dies makes
    // nobody deaf.
    for client in broker.each().await? {
        builder = builder.also_heard_by(client);
    }
    for stream in &args.stream {
        builder = builder.stream(stream);
    }
    for watched in &args.consumer {
        builder = builder.consumer(&watched.stream, &watched.consumer);
    }
    if let Some(lease) = args.lease {
        builder = builder.lease(lease);
    }
    Ok(builder.open().await?)
}

fn watched(args: &RouteArgs) -> String {
    let streams = args.stream.iter().map(|stream| format!("the consumers of {stream}"));
    let consumers = args.consumer.iter().map(|one| format!("{}/{}", one.stream, one.consumer));
    let all: Vec<String> = streams.chain(consumers).collect();
    if all.is_empty() { "all consumers".to_owned() } else { all.join(", ") }
}
