//! The tables of `docs/metrics.md`.

use std::collections::BTreeSet;

use crate::page::Families;
use crate::read;

/// The rows under this heading; of all tables when there is none.
pub(crate) fn documented(heading: Option<&str>) -> Families {
    let text = read("docs/metrics.md");
    let sections =
        text.split("\n## ").filter(|section| heading.is_none_or(|it| section.starts_with(it)));
    let rows: Families = sections.flat_map(rows).collect();
    assert!(!rows.is_empty(), "docs/metrics.md has no table under {heading:?}");
    rows
}

fn rows(section: &str) -> Vec<(String, (String, BTreeSet<String>))> {
    let words = |cell: &str| -> BTreeSet<String> {
        cell.split('`').skip(1).step_by(2).map(str::to_owned).collect()
    };
    let row = |line: &str| {
        let cells: Vec<_> = line.strip_prefix("| `")?.split('|').map(str::trim).collect();
        assert_eq!(cells.len(), 5, "{line}");
        Some((cells[0].trim_end_matches('`').to_owned(), (cells[1].to_owned(), words(cells[2]))))
    };
    section.lines().filter_map(row).collect()
}
