use std::process::ExitCode;
use std::time::Duration;

use dlq_nats::admin::{ConsumerPlan, Deployment, StreamPlan};
use dlq_nats::{DlqStream, RetryStream};

use super::Broker;
use super::connect::existing_retries;
use crate::broker;
use crate::cli::CheckAtBrokerArgs;
use crate::commands;
use crate::error::CliError;
use crate::output::Output;

/// Time for which [`DlqStream`] keeps letters unless told otherwise.
const DEFAULT_AGE: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// Says what is set wrongly: exit code 3 when something is, other than what is merely worth knowing.
pub(super) async fn run(
    at: &Broker,
    out: &mut Output,
    args: CheckAtBrokerArgs,
) -> Result<ExitCode, CliError> {
    let deployment = match &args.deployment {
        Some(file) => broker::read_deployment(file)?,
        None => match given(at, args).await {
            Ok(deployment) => deployment,
            Err(error) => {
                // Where there is no JetStream nothing can be looked for, and that is all that there is to say.
                let mut findings = Deployment::default().check(&at.context).await?;
                findings.retain(|finding| finding.setting == "jetstream");
                // JetStream is there, so the error of the arguments is what is wrong.
                if findings.is_empty() {
                    return Err(error);
                }
                return commands::show_findings(out, &at.shown, &findings);
            }
        },
    };
    let findings = deployment.check(&at.context).await?;
    commands::show_findings(out, &at.shown, &findings)
}

/// Reads a deployment from the arguments. The stream of dead letters is taken as it is, but letters are to be kept for as long as they are
/// where nobody says otherwise: what a stream removes earlier is lost before somebody looks.
async fn given(broker: &Broker, args: CheckAtBrokerArgs) -> Result<Deployment, CliError> {
    let mut deployment = Deployment::default();
    let letters = async {
        Ok(match broker.config(&broker.stream).await? {
            Some(found) => {
                let (letters, wanted) = (broker.letters().await?, DEFAULT_AGE);
                let is_brief = !found.max_age.is_zero() && found.max_age < wanted;
                if is_brief { letters.max_age(wanted) } else { letters }
            }
            None => DlqStream::new().name(&broker.stream),
        })
    };
    deployment.letters = broker.permitted(letters).await?;
    // Where no consumer is ours, nobody needs it, and who may not look at it has none there.
    let retries = match broker.unless_refused(broker.config(&args.retry_stream)).await {
        Ok(retries) => retries?,
        Err(_) if args.consumer.is_empty() => None,
        Err(why) => return Err(broker.not_permitted(&why)),
    };
    deployment.retries = match retries.as_ref().and_then(existing_retries) {
        Some(there) => Some(there),
        None if args.consumer.is_empty() => None,
        None => Some(RetryStream::new().name(&args.retry_stream)),
    };
    deployment.streams = args.stream.into_iter().map(StreamPlan::new).collect();
    let consumers = args.consumer.into_iter();
    deployment.consumers =
        consumers.map(|one| ConsumerPlan::new(one.stream, one.consumer)).collect();
    Ok(deployment)
}
