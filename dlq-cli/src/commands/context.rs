use std::process::ExitCode;

use serde_json::{Value, json};

use crate::cli::ContextCommand;
use crate::contexts::{File, Location};
use crate::error::CliError;
use crate::output::{Column, Output, Table, escape};

pub(super) fn run(
    out: &mut Output,
    meant: Option<String>,
    command: ContextCommand,
) -> Result<ExitCode, CliError> {
    let file = File::read()?;
    match command {
        ContextCommand::List => list(out, &file)?,
        ContextCommand::Show { name } => {
            let name = name.or(meant).or_else(|| file.default.clone()).ok_or_else(|| {
                CliError::refused("no context is named and there is no default; `dlq context list` shows which there are")
            })?;
            show(out, &file, &name)?;
        }
        ContextCommand::Use { name } => {
            file.set_default(&name)?;
            say!("the default context is `{}`", escape(&name));
        }
    }
    // The warning comes last, where it is seen.
    file.warn();
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

fn list(out: &mut Output, file: &File) -> Result<(), CliError> {
    if !out.is_table() {
        let all: Vec<_> =
            file.contexts.iter().map(|(name, one)| document(file, name, one)).collect();
        return out.documents("contexts", &all);
    }
    if file.contexts.is_empty() {
        say!("no contexts; `dlq context --help` says where they stand");
        return Ok(());
    }
    let mut table = Table::new(&[
        Column::whole("DEFAULT", 2),
        Column::text("NAME", 0, 10),
        Column::text("FROM", 0, 20),
        Column::whole("PASSWORD", 1),
    ]);
    for (name, location) in &file.contexts {
        let mark = if is_default(file, name) { "*" } else { "" };
        table.row([
            mark.to_owned(),
            name.clone(),
            location.shown(),
            location.password_source().to_owned(),
        ]);
    }
    out.table(&table)
}

fn show(out: &mut Output, file: &File, name: &str) -> Result<(), CliError> {
    let location = file.get(name)?;
    if !out.is_table() {
        return out.document(&document(file, name, location));
    }
    let default = if is_default(file, name) { " (the default)" } else { "" };
    out.line(format_args!("context   {}{default}", escape(name)))?;
    out.line(format_args!("from      {}", escape(&location.shown())))?;
    out.line(format_args!("password  {}", location.password_source()))?;
    out.line(format_args!("file      {}", escape(&file.path.display().to_string())))
}

fn document(file: &File, name: &str, location: &Location) -> Value {
    json!({
        "name": name,
        // Variables stay as `${NAME}` and no command is run: to list contexts must need no password.
        "from": location.shown(),
        "password": location.password_source(),
        "default": is_default(file, name),
    })
}

fn is_default(file: &File, name: &str) -> bool {
    file.default.as_deref() == Some(name)
}
