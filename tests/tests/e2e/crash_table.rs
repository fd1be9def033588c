//! The crash table says nothing that no test proves.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// One row of a table.
struct Row {
    cells: Vec<String>,
    line: usize,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace is above").to_owned()
}

/// The rows of every table, without headings.
fn rows() -> Vec<Row> {
    let text =
        std::fs::read_to_string(root().join("docs/crash-table.md")).expect("the table is there");
    let mut rows = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let Some(inner) = line.strip_prefix('|').and_then(|line| line.strip_suffix('|')) else {
            continue;
        };
        if inner.contains("---") || inner.contains("the process dies after") {
            continue;
        }
        let cells = inner.split('|').map(|cell| cell.trim().to_owned()).collect();
        rows.push(Row { cells, line: index + 1 });
    }
    rows
}

#[test]
fn every_row_is_complete() {
    let rows = rows();
    assert!(rows.len() >= 30, "{} rows", rows.len());
    for Row { cells, line } in rows {
        assert_eq!(cells.len(), 5, "line {line}");
        assert!(cells.iter().all(|cell| !cell.is_empty()), "line {line} has an empty cell");
    }
}

#[test]
fn every_row_names_a_test_that_exists() {
    for Row { cells, line } in rows() {
        let proof = cells[4].trim_matches('`');
        let (path, name) =
            proof.rsplit_once("::").unwrap_or_else(|| panic!("line {line}: `{proof}`"));
        let source = std::fs::read_to_string(root().join(path))
            .unwrap_or_else(|error| panic!("line {line}: {path}: {error}"));
        // Scenarios of the explorer become tests by being listed.
        let listed = source.contains("explored!(") && source.contains(&format!("\n    {name},\n"));
        let defined = ["(", "<"].iter().any(|next| source.contains(&format!("fn {name}{next}")));
        assert!(listed || defined, "line {line}: no `{name}` in {path}");
    }
}

#[test]
fn every_guarantee_has_a_row() {
    let found: BTreeSet<_> = rows().into_iter().map(|row| row.cells[3].clone()).collect();
    let all: BTreeSet<_> = (1..=10).map(|number| format!("G{number}")).collect();
    assert_eq!(found, all);
}
