use std::process::ExitCode;

use dlq_core::store::Letters as _;

use super::Context;
use crate::cli::Format;
use crate::error::CliError;
use crate::filter::FilterArgs;

pub(super) async fn run(context: &mut Context, filter: FilterArgs) -> Result<ExitCode, CliError> {
    let filter = filter.resolve(&context.letters).await?;
    let count = context.letters.count(filter).await?;
    match context.out.format {
        Format::Table => context.out.line(count)?,
        _ => context.out.document(&serde_json::json!({ "count": count }))?,
    }
    Ok(ExitCode::SUCCESS)
}
