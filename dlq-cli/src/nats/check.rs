use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use std::process::ExitCode;

use dlq_nats::admin::{ConsumerPlan, Deployment, Severity, StreamPlan};
use dlq_nats::{DlqStream, RetryStream};

use super::Broker;
use super::connect::existing_retries;
use crate::cli::CheckArgs;
use crate::commands::PARTIAL;
use crate::error::CliError;
use crate::output::{Output, escape};

/// Says what is set wrongly: exit code 3 when something is, other than what is merely worth knowing.
pub(super) async fn run(
    broker: &Broker,
    out: &mut Output,
    args: CheckArgs,
) -> Result<ExitCode, CliError> {
    let deployment = match &args.deployment {
        Some(file) => read(file)?,
        None => given(broker, args).await?,
    };
    let findings = deployment.check(&broker.context).await?;
    if out.is_table() {
        for finding in &findings {
            let says = |text: &str| escape(text);
            out.line(format_args!("{}: {}", finding.severity, says(&finding.subject)))?;
            out.line(format_args!("    {} is {}", says(&finding.setting), says(&finding.found)))?;
            out.line(format_args!("    wanted: {}", says(&finding.want)))?;
            out.line(format_args!("    {}", says(&finding.advice)))?;
        }
    } else {
        out.documents("findings", &findings)?;
    }
    let wrong = findings.iter().filter(|finding| finding.severity > Severity::Note).count();
    if wrong > 0 {
        eprintln!("{wrong} findings at {}", broker.shown);
        return Ok(ExitCode::from(PARTIAL));
    }
    eprintln!("{} is as it should be", broker.shown);
    Ok(ExitCode::SUCCESS)
}

/// What the arguments say; the stream of dead letters is taken as it is.
async fn given(broker: &Broker, args: CheckArgs) -> Result<Deployment, CliError> {
    let mut deployment = Deployment::default();
    let there = broker.config(&broker.stream).await.ok().flatten();
    deployment.letters = match there {
        Some(_) => broker.letters().await?,
        None => DlqStream::new().with_name(&broker.stream),
    };
    // Where no consumer is ours, nobody needs it.
    let retries = broker.config(&args.retry_stream).await.ok().flatten();
    deployment.retries = match retries.as_ref().and_then(existing_retries) {
        Some(there) => Some(there),
        None if args.consumer.is_empty() => None,
        None => Some(RetryStream::new().with_name(&args.retry_stream)),
    };
    deployment.streams = args.stream.into_iter().map(StreamPlan::new).collect();
    let consumers = args.consumer.into_iter();
    deployment.consumers =
        consumers.map(|one| ConsumerPlan::new(one.stream, one.consumer)).collect();
    Ok(deployment)
}

fn read(path: &Path) -> Result<Deployment, CliError> {
    let file = File::open(path)
        .map_err(|error| CliError::refused(format!("cannot read {}: {error}", path.display())))?;
    serde_json::from_reader(BufReader::new(file)).map_err(|error| {
        CliError::refused(format!("{} describes no deployment: {error}", path.display()))
    })
}
