use std::collections::BTreeMap;
use std::process::ExitCode;

use dlq_core::store::Receipt;
use dlq_core::{DeadLetter, DeadLetters};
use dlq_sql::postgres::foreign::{BadRow, Field, ForeignTable, Meaning};

use super::{Context, PARTIAL};
use crate::cli::TableArgs;
use crate::error::CliError;
use crate::output::{Column, Progress, Table, escape};
use crate::{ask, open, secret, signals};

/// How many bad rows are said in words; all are counted.
const SAID: u64 = 20;

/// Imports the table of the arguments, which is in the database that they name, or else at `from`.
///
/// Nothing is kept of how far it came: what is in the store already is known there by its identity, so that the same
/// command, whatever it was ended by, is given again and writes the rest.
pub(super) async fn run(
    context: &mut Context,
    store: &DeadLetters,
    from: Option<&str>,
    args: TableArgs,
) -> Result<ExitCode, CliError> {
    let table = args.from_table.as_deref().unwrap_or_default();
    let url = args.database.clone().or_else(|| from.and_then(open::database)).ok_or_else(|| {
        CliError::refused(format!(
            "which database has `{table}`? say --database postgres://USER@HOST/DATABASE, or set DLQ_DATABASE"
        ))
    })?;
    secret::keep(&url);
    let shown = secret::without_password(&url);
    let mut table = open_table(url, table, &args)
        .await
        .map_err(|error| error.about(&format!("table `{table}` of {shown}")))?;
    let rows = table.count().await?;
    describe(&table, rows, args.consumer.is_some());
    if args.dry_run {
        show_columns(context, &table, rows)?;
        say!("dry run: nothing was imported");
        return Ok(ExitCode::SUCCESS);
    }
    let bar = Progress::of(rows, "rows");
    let by = ask::actor(Some(&format!("import of the table {}", table.name())));
    let mut imported = Imported::default();
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
    let is_partial = is_cut_short || imported.bad > 0;
    Ok(if is_partial { ExitCode::from(PARTIAL) } else { ExitCode::SUCCESS })
}

fn again(error: CliError) -> CliError {
    error.hinting("what was imported is in the store; the same command imports the rest")
}

async fn open_table(url: String, table: &str, args: &TableArgs) -> Result<ForeignTable, CliError> {
    let mut builder =
        ForeignTable::builder(url, table).time_zone(&*args.time_zone).class(args.class);
    for (field, column) in &args.map {
        builder = builder.map(*field, column);
    }
    for column in &args.skip_column {
        builder = builder.skip(column);
    }
    if let Some(consumer) = &args.consumer {
        builder = builder.consumer(consumer);
    }
    if let Some(service) = &args.service {
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

#[derive(Default)]
struct Imported {
    by_receipt: BTreeMap<&'static str, u64>,
    bad: u64,
}

impl Imported {
    /// Says and counts rows that are no letters; the letters are left.
    fn sort_out(&mut self, page: Vec<Result<DeadLetter, BadRow>>) -> Vec<DeadLetter> {
        let mut letters = Vec::with_capacity(page.len());
        for row in page {
            match row {
                Ok(letter) => letters.push(letter),
                Err(bad) => {
                    match self.bad {
                        ..SAID => say!("{}", escape(&bad.to_string())),
                        SAID => say!("more rows cannot be read; they are counted"),
                        _ => {}
                    }
                    self.bad += 1;
                }
            }
        }
        letters
    }

    fn count(&mut self, receipts: &[Receipt]) {
        for receipt in receipts {
            let name = match receipt {
                Receipt::Stored => "stored",
                Receipt::Unchanged => "unchanged",
                Receipt::Reopened => "reopened",
                Receipt::Superseded => "superseded",
                Receipt::Conflicting(_) => "conflicting",
                Receipt::Merged(_) => "merged",
                _ => "other",
            };
            *self.by_receipt.entry(name).or_default() += 1;
        }
    }

    fn show(&self, context: &mut Context) -> Result<(), CliError> {
        let letters: u64 = self.by_receipt.values().sum();
        if let Some(count) = self.by_receipt.get("conflicting") {
            say!(
                "{count} rows have other bytes than when they were imported before; both letters are kept"
            );
        }
        if !context.out.is_table() {
            return context.out.document(&serde_json::json!({
                "letters": letters,
                "receipts": self.by_receipt,
                "bad_rows": self.bad,
            }));
        }
        let mut text = format!("imported: {letters} letters");
        for (receipt, count) in &self.by_receipt {
            text.push_str(&format!(", {count} {receipt}"));
        }
        if self.bad > 0 {
            text.push_str(&format!(", {} bad rows", self.bad));
        }
        context.out.line(text)
    }
}
