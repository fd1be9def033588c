use std::process::ExitCode;

use dlq_core::DeadLetters;
use dlq_sql::postgres::foreign::{Field, ForeignTable, Meaning};

use super::{Context, Imported, PARTIAL, again};
use crate::cli::{ForeignArgs, TableArgs};
use crate::error::CliError;
use crate::output::{Column, Progress, Table, escape};
use crate::{ask, open, secret, signals};

/// Imports the table of the arguments, which is in the database that they name, or else at `from`.
///
/// Nothing is kept of how far it came: what is in the store already is known there by its identity, so that the same
/// command, whatever it was ended by, is given again and writes the rest.
pub(super) async fn run(
    context: &mut Context,
    store: &DeadLetters,
    from: Option<&str>,
    args: TableArgs,
    common: ForeignArgs,
) -> Result<ExitCode, CliError> {
    let table = args.from_table.as_deref().unwrap_or_default();
    let url = args.database.clone().or_else(|| from.and_then(open::database)).ok_or_else(|| {
        CliError::refused(format!(
            "which database has `{table}`? say --database postgres://USER@HOST/DATABASE, or set DLQ_DATABASE"
        ))
    })?;
    secret::keep(&url);
    let shown = secret::without_password(&url);
    let mut table = open_table(url, table, &args, &common)
        .await
        .map_err(|error| error.about(&format!("table `{table}` of {shown}")))?;
    let rows = table.count().await?;
    describe(&table, rows, common.consumer.is_some());
    if common.dry_run {
        show_columns(context, &table, rows)?;
        say!("dry run: nothing was imported");
        return Ok(ExitCode::SUCCESS);
    }
    let bar = Progress::of(rows, "rows");
    let by = ask::actor(Some(&format!("import of the table {}", table.name())));
    let mut imported = Imported::of("rows");
    let is_cut_short = signals::until_asked(async |mut stop| {
        loop {
            let page = tokio::select! {
                biased;
                () = &mut stop => return Ok(true),
                page = table.next_page() => page,
            };
            let Some(page) = page.map_err(|error| again(error.into()))? else { return Ok(false) };
            let rows = page.len() as u64;
            let letters = bar.aside(|| imported.sort_out(page));
            let receipts =
                store.restore(letters, by.clone()).await.map_err(|error| again(error.into()))?;
            imported.count(&receipts);
            bar.advance(rows);
        }
    });
    let is_cut_short = is_cut_short.await?;
    bar.end();
    imported.show(context)?;
    if is_cut_short {
        say!("ended before all {rows} rows were read; the same command imports the rest");
    }
    let is_partial = is_cut_short || imported.has_bad();
    Ok(if is_partial { ExitCode::from(PARTIAL) } else { ExitCode::SUCCESS })
}

async fn open_table(
    url: String,
    table: &str,
    args: &TableArgs,
    common: &ForeignArgs,
) -> Result<ForeignTable, CliError> {
    let mut builder =
        ForeignTable::builder(url, table).time_zone(&*args.time_zone).class(common.class);
    for (field, column) in &args.map {
        builder = builder.map(*field, column);
    }
    for column in &args.skip_column {
        builder = builder.skip(column);
    }
    if let Some(consumer) = &common.consumer {
        builder = builder.consumer(consumer);
    }
    if let Some(service) = &common.service {
        builder = builder.service(service);
    }
    if let Some(cluster) = &args.cluster {
        builder = builder.cluster(cluster);
    }
    Ok(builder.open().await?)
}

/// Says what was found, and what its user may not have thought of.
fn describe(table: &ForeignTable, rows: u64, is_consumer_given: bool) {
    let name = escape(table.name());
    let how = table.shape().map_or_else(|| "as mapped".to_owned(), |shape| format!("as `{shape}`"));
    say!("{rows} rows in {name}, read {how}");
    let columns = table.columns();
    let unknown: Vec<_> = columns
        .iter()
        .filter(|column| column.meaning == Meaning::Attribute)
        .map(|column| escape(&column.name))
        .collect();
    if !unknown.is_empty() {
        say!("kept as attributes: {}", unknown.join(", "));
    }
    if table.key().is_empty() {
        say!("it has no key: a row that is changed and imported again is another letter");
    }
    let has_consumer =
        columns.iter().any(|column| column.meaning == Meaning::Field(Field::Consumer));
    if !is_consumer_given && !has_consumer {
        say!(
            "no column says whose deaths these are; they get the table's name, or say --consumer NAME"
        );
    }
}

fn show_columns(context: &mut Context, table: &ForeignTable, rows: u64) -> Result<(), CliError> {
    let meaning = |meaning| match meaning {
        Meaning::Field(field) => field.as_str(),
        Meaning::Skipped => "left out",
        _ => "attribute",
    };
    if context.out.is_table() {
        let mut shown = Table::new(&[
            Column::whole("COLUMN", 0),
            Column::whole("TYPE", 1),
            Column::whole("MEANING", 0),
        ]);
        for column in table.columns() {
            shown.row([column.name, column.type_name, meaning(column.meaning).to_owned()]);
        }
        return context.out.table(&shown);
    }
    let columns = table.columns().into_iter().map(|column| {
        serde_json::json!({
            "name": column.name,
            "type": column.type_name,
            "meaning": meaning(column.meaning),
        })
    });
    context.out.document(&serde_json::json!({
        "table": table.name(),
        "shape": table.shape(),
        "key": table.key(),
        "rows": rows,
        "columns": columns.collect::<Vec<_>>(),
    }))
}
