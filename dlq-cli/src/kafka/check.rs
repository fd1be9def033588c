use std::process::ExitCode;

use dlq_kafka::DlqTopic;
use dlq_kafka::admin::{ConsumerPlan, Deployment};

use super::{Broker, ladder};
use crate::broker;
use crate::cli::CheckAtBrokerArgs;
use crate::commands;
use crate::error::CliError;
use crate::output::Output;

/// Says what is set wrongly.
pub(super) async fn run(
    at: &Broker,
    out: &mut Output,
    args: CheckAtBrokerArgs,
) -> Result<ExitCode, CliError> {
    let deployment = match &args.deployment {
        Some(file) => broker::read_deployment(file)?,
        None => given(at, args)?,
    };
    at.reach().await?;
    let findings = deployment.check(&at.brokers).await.map_err(|error| at.failed(error))?;
    commands::show_findings(out, &at.shown, &findings)
}

/// What the arguments say: without consumers, the one whose topic gave the dead letters their name.
fn given(at: &Broker, args: CheckAtBrokerArgs) -> Result<Deployment, CliError> {
    let mut deployment = Deployment::default();
    deployment.letters = DlqTopic::new().with_name(&*at.topic);
    let ladder = ladder(&args.ladder);
    for one in args.consumer {
        let mut plan = ConsumerPlan::new(one.of, one.consumer);
        plan.ladder = Some(ladder.clone());
        deployment.consumers.push(plan);
    }
    if deployment.consumers.is_empty() {
        let Some(source) = at.topic.strip_suffix(".dlq").filter(|source| !source.is_empty()) else {
            return Err(CliError::refused(format!(
                "whose dead letters are those of {}? say --consumer TOPIC/GROUP, or --deployment FILE",
                at.shown
            )));
        };
        let mut plan = ConsumerPlan::new(source, "any");
        plan.ladder = None;
        deployment.consumers.push(plan);
    }
    Ok(deployment)
}
