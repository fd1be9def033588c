use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use std::process::ExitCode;

use dlq_core::{Finding, Severity};
use serde::de::DeserializeOwned;

use crate::commands::PARTIAL;
use crate::error::CliError;
use crate::output::{Output, escape};

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
        eprintln!("{wrong} findings at {shown}");
        return Ok(ExitCode::from(PARTIAL));
    }
    eprintln!("{shown} is as it should be");
    Ok(ExitCode::SUCCESS)
}

/// A deployment from a file.
pub(crate) fn read_deployment<T: DeserializeOwned>(path: &Path) -> Result<T, CliError> {
    let file = File::open(path)
        .map_err(|error| CliError::refused(format!("cannot read {}: {error}", path.display())))?;
    serde_json::from_reader(BufReader::new(file)).map_err(|error| {
        CliError::refused(format!("{} describes no deployment: {error}", path.display()))
    })
}
