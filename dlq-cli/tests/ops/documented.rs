//! The table against the names in the code.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::page::Families;
use crate::table::documented;
use crate::{read, root};

/// Crates that count.
const CRATES: [&str; 6] = ["dlq-core", "dlq-tower", "dlq-nats", "dlq-kafka", "dlq-sql", "dlq-cli"];
pub(crate) const SERVE: &str = "`dlq serve`";
pub(crate) const AT_BROKER: &str = "At a broker";

fn sources() -> Vec<String> {
    fn visit(folder: &Path, sources: &mut Vec<String>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                visit(&path, sources);
            } else if path.extension().is_some_and(|end| end == "rs") {
                sources.push(std::fs::read_to_string(path).unwrap());
            }
        }
    }
    let mut sources = Vec::new();
    CRATES.iter().for_each(|name| visit(&root().join(name).join("src"), &mut sources));
    sources
}

fn is_metric(name: &str) -> bool {
    ["dlq_", "events_", "messages_"].iter().any(|start| name.starts_with(start))
}

/// Public constants that are names of metrics, by their own names.
fn constants(sources: &[String]) -> BTreeMap<String, String> {
    let constant = |line: &str| {
        let (id, value) = line.trim().strip_prefix("pub const ")?.split_once(": &str = \"")?;
        let value = value.strip_suffix("\";")?;
        is_metric(value).then(|| (id.to_owned(), value.to_owned()))
    };
    sources.iter().flat_map(|source| source.lines()).filter_map(constant).collect()
}

/// What the counting macros are called with: a constant or a literal, and the kind.
fn counted(sources: &[String]) -> BTreeSet<(String, &'static str)> {
    let mut found = BTreeSet::new();
    for kind in ["counter", "gauge", "histogram"] {
        for source in sources {
            for (at, call) in source.match_indices(&format!("{kind}!(")) {
                let argument = source[at + call.len()..].split([',', ')']).next().unwrap().trim();
                // Variables and fields are looked at where they come from.
                if argument.starts_with(|first: char| first.is_ascii_uppercase() || first == '"') {
                    found.insert((argument.to_owned(), kind));
                }
            }
        }
    }
    found
}

#[test]
fn every_name_in_the_code_is_in_the_table_and_no_other() {
    let sources = sources();
    let constants = constants(&sources);
    let mut rows = documented(None);
    for (argument, kind) in counted(&sources) {
        let name = constants.get(&argument).map_or(argument.trim_matches('"'), String::as_str);
        let row =
            rows.get(name).unwrap_or_else(|| panic!("`{argument}` ({name}) is not in the table"));
        assert_eq!(row.0, kind, "{name}");
    }
    let serve = [SERVE, AT_BROKER].into_iter();
    let serve: Vec<_> = serve.flat_map(|heading| documented(Some(heading)).into_keys()).collect();
    rows.retain(|name, _| !serve.contains(name));
    let elsewhere = constants.values().filter(|name| !serve.contains(name));
    let elsewhere: BTreeSet<_> = elsewhere.cloned().collect();
    assert_eq!(elsewhere, rows.into_keys().collect(), "left: the code, right: the table");
    for name in constants.values() {
        let (kind, _) = &documented(None)[name];
        assert_eq!(kind == "counter", name.ends_with("_total"), "{name} is a {kind}");
    }
}

#[test]
fn manuals_of_modules_agree_with_the_table() {
    let rows = documented(Some("Consumers"));
    for line in
        read("dlq-tower/src/metrics/mod.rs").lines().filter(|line| line.starts_with("//! | `"))
    {
        let cells: Vec<_> = line.split('|').map(str::trim).collect();
        let (name, kind) = (cells[1].trim_matches('`'), cells[2]);
        assert_eq!(rows[name].0, kind, "{line}");
    }
}

/// Holds what was really exported against the rows under a heading.
#[track_caller]
pub(crate) fn agree(exported: &Families, heading: &str) {
    let rows = documented(Some(heading));
    for (name, (kind, labels)) in exported {
        let (row_kind, row_labels) =
            rows.get(name).unwrap_or_else(|| panic!("{name} is not under {heading}"));
        assert_eq!(
            (kind, labels),
            (row_kind, row_labels),
            "{name}: left: exported, right: the table"
        );
    }
    let missing: Vec<_> = rows.keys().filter(|name| !exported.contains_key(*name)).collect();
    assert!(missing.is_empty(), "under {heading}, and not exported: {missing:?}");
}

pub(crate) fn agree_serve(exported: &Families) {
    agree(exported, SERVE);
}
