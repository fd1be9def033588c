use std::process::ExitCode;

use dlq_core::store::{CheckLimits, Maintenance as _};
use dlq_core::{DeadLetters, Finding, Severity};

use super::{Context, PARTIAL};
use crate::cli::CheckArgs;
use crate::error::CliError;
use crate::output::{Output, escape};

pub(super) async fn run(
    context: &mut Context,
    store: &DeadLetters,
    args: CheckArgs,
) -> Result<ExitCode, CliError> {
    #[cfg(any(feature = "kafka", feature = "nats", feature = "redis"))]
    if args.at_broker.is_given() {
        return Err(CliError::refused(format!(
            "--stream, --consumer and --deployment are of brokers, and {} is a store; leave them out",
            context.target
        )));
    }
    let limits = CheckLimits::default()
        .overdue(args.at_store.overdue)
        .age(args.at_store.older_than)
        .idle(args.at_store.idle)
        .processed(args.at_store.audit_rows)
        .skew(args.at_store.skew)
        .deep(args.at_store.deep);
    let findings = store.store().check(limits).await?;
    show_findings(&mut context.out, &context.target, &findings)
}

/// Says what is set wrongly: exit code 3 when something is, other than what is merely worth knowing.
pub(crate) fn show_findings(
    out: &mut Output,
    shown: &str,
    findings: &[Finding],
) -> Result<ExitCode, CliError> {
    if out.is_table() {
        for finding in findings {
            let says = |text: &str| escape(text);
            out.line(format_args!("{}: {}", finding.severity, says(&finding.subject)))?;
            out.line(format_args!("    {} is {}", says(&finding.setting), says(&finding.found)))?;
            out.line(format_args!("    wanted: {}", says(&finding.want)))?;
            out.line(format_args!("    {}", says(&finding.advice)))?;
        }
    } else {
        out.documents("findings", findings)?;
    }
    let wrong = findings.iter().filter(|finding| finding.severity > Severity::Note).count();
    if wrong > 0 {
        say!("{wrong} finding{} at {shown}", if wrong == 1 { "" } else { "s" });
        return Ok(ExitCode::from(PARTIAL));
    }
    say!("{shown} is as it should be");
    Ok(ExitCode::SUCCESS)
}
