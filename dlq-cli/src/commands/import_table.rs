use std::process::ExitCode;

use dlq_core::DeadLetters;

use super::foreign::{ATTRIBUTE, Foreign};
use super::{Context, Imported, PARTIAL, again};
use crate::cli::{ForeignArgs, TableArgs};
use crate::error::CliError;
use crate::output::{Column, Progress, Table, escape};
use crate::{ask, signals};

/// Imports the table or the collection of the arguments.
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
    let mut foreign = Foreign::open(from, &args, &common).await?;
    let (whole, noun) = foreign.nouns();
    let rows = foreign.count().await?;
    describe(&foreign, rows, common.consumer.is_some());
    if common.dry_run {
        show_columns(context, &foreign, rows)?;
        say!("dry run: nothing was imported");
        return Ok(ExitCode::SUCCESS);
    }
    let bar = Progress::of(rows, noun);
    let by = ask::actor(Some(&format!("import of the {whole} {}", foreign.name())));
    let mut imported = Imported::of(noun);
    let is_cut_short = signals::until_asked(async |mut stop| {
        loop {
            // The signal is heeded between two pages only: a restore that has begun is waited for.
            let page = tokio::select! {
                biased;
                () = &mut stop => return Ok(true),
                page = foreign.next_page() => page,
            };
            let Some(page) = page.map_err(again)? else { return Ok(false) };
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
        say!("ended before all {rows} {noun} were read; the same command imports the rest");
    }
    let is_partial = is_cut_short || imported.has_bad();
    Ok(if is_partial { ExitCode::from(PARTIAL) } else { ExitCode::SUCCESS })
}

/// Says what was found, and what its user may not have thought of.
fn describe(foreign: &Foreign, rows: u64, is_consumer_given: bool) {
    let name = escape(foreign.name());
    let (whole, noun) = foreign.nouns();
    let how =
        foreign.shape().map_or_else(|| "as mapped".to_owned(), |shape| format!("as `{shape}`"));
    say!("{rows} {noun} in {name}, read {how}");
    let unknown: Vec<_> = foreign
        .parts()
        .iter()
        .filter(|part| part.meaning == ATTRIBUTE)
        .map(|part| escape(&part.name).to_string())
        .collect();
    if !unknown.is_empty() {
        say!("kept as attributes: {}", unknown.join(", "));
    }
    if foreign.key().is_empty() {
        say!("it has no key: a row that is changed and imported again is another letter");
    }
    if !is_consumer_given && !foreign.has_consumer() {
        let part = if noun == "rows" { "column" } else { "field" };
        say!(
            "no {part} says whose deaths these are; they get the {whole}'s name, or say --consumer NAME"
        );
    }
}

fn show_columns(context: &mut Context, foreign: &Foreign, rows: u64) -> Result<(), CliError> {
    let (whole, noun) = foreign.nouns();
    if context.out.is_table() {
        let part = if noun == "rows" { "COLUMN" } else { "FIELD" };
        let mut shown = Table::new(&[
            Column::whole(part, 0),
            Column::whole("TYPE", 1),
            Column::whole("MEANING", 0),
        ]);
        for part in foreign.parts() {
            shown.row([part.name, part.type_name, part.meaning.to_owned()]);
        }
        return context.out.table(&shown);
    }
    let columns = foreign.parts().into_iter().map(|part| {
        serde_json::json!({
            "name": part.name,
            "type": part.type_name,
            "meaning": part.meaning,
        })
    });
    context.out.document(&serde_json::json!({
        whole: foreign.name(),
        "shape": foreign.shape(),
        "key": foreign.key(),
        "rows": rows,
        "columns": columns.collect::<Vec<_>>(),
    }))
}
