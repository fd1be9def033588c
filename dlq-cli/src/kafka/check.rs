use std::process::ExitCode;

use dlq_core::StoreErrorKind;
use dlq_kafka::admin::{ConsumerPlan, Deployment};
use dlq_kafka::{DlqTopic, Ladder, find_topic};

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
        None => {
            // The arguments are looked up at the cluster, so an address that is wrong is told before any of them.
            at.reach().await?;
            given(at, args).await?
        }
    };
    at.reach().await?;
    let findings = deployment.check(&at.brokers).await.map_err(|error| at.failed(error))?;
    commands::show_findings(out, &at.shown, &findings)
}

/// The topic of dead letters that a consumer of ours has for this one.
fn ours(topic: &str) -> String {
    format!("{topic}.dlq")
}

/// Returns true if any of the retry topics is there that this consumer would have. One whose dead letters another system writes,
/// as Spring does, has none of them, and nobody would read them.
async fn has_some(at: &Broker, ladder: &Ladder, of: &ConsumerPlan) -> Result<bool, CliError> {
    let stages = ladder.stages(&of.topic, &of.group);
    for stage in stages.map_err(|error| CliError::refused(error.to_string()))? {
        match find_topic(&at.brokers, &stage.topic).await {
            Err(error) if error.kind() == StoreErrorKind::NotFound => {}
            Err(error) => return Err(at.failed(error)),
            Ok(_) => return Ok(true),
        }
    }
    Ok(false)
}

/// Returns the deployment of the arguments: without consumers, the consumer whose topic gave the dead letters their
/// name.
async fn given(at: &Broker, args: CheckAtBrokerArgs) -> Result<Deployment, CliError> {
    let mut deployment = Deployment::default();
    deployment.letters = DlqTopic::new().name(&*at.topic);
    let ladder = ladder(&args.ladder);
    let is_default = ladder == Ladder::new();
    for one in args.consumer {
        let mut plan = ConsumerPlan::new(one.stream, one.consumer);
        // The default ladder is a guess. It is checked only if the topic or a retry topic shows that it is used.
        plan.ladder = Some(ladder.clone()).filter(|_| !is_default || at.topic == ours(&plan.topic));
        if plan.ladder.is_none() && has_some(at, &ladder, &plan).await? {
            plan.ladder = Some(ladder.clone());
        }
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
