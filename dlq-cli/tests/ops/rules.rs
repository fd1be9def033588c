//! The alert rules and the dashboard.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::Value;

use crate::documented::{AT_BROKER, SERVE};
use crate::table::documented;
use crate::{read, root};

/// Runs `promtool` in `ops/`.
fn promtool(args: &[&str]) {
    let Ok(promtool) = dlq_services::require_promtool() else { return };
    let output =
        Command::new(promtool).args(args).current_dir(root().join("ops")).output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&said));
}

#[test]
fn prometheus_takes_the_rules() {
    promtool(&["check", "rules", "alerts.yml"]);
}

#[test]
fn each_rule_fires_when_it_shall_and_only_then() {
    promtool(&["test", "rules", "alerts_test.yml"]);
}

/// What follows `key` on the lines that begin with it.
fn all<'a>(text: &'a str, key: &'a str) -> impl Iterator<Item = &'a str> {
    text.lines()
        .filter_map(move |line| line.trim_start_matches([' ', '-']).strip_prefix(key))
        .map(str::trim)
}

fn alerts() -> BTreeSet<String> {
    let alerts: BTreeSet<_> = all(&read("ops/alerts.yml"), "alert:").map(str::to_owned).collect();
    assert!(alerts.contains("HighDLQSize"), "{alerts:?}");
    alerts
}

#[test]
fn each_rule_is_tested_both_ways_and_has_its_runbook() {
    let tests = read("ops/alerts_test.yml");
    // Each part begins behind the name of an alert, and holds what is expected of it.
    let parts: Vec<(&str, bool)> = tests
        .split("alertname:")
        .skip(1)
        .map(|part| (part.split_whitespace().next().unwrap(), part.contains("exp_labels:")))
        .collect();
    let (runbook, rules) = (read("ops/README.md"), read("ops/alerts.yml"));
    for alert in alerts() {
        for fires in [true, false] {
            assert!(
                parts.contains(&(&alert, fires)),
                "{alert} has no test in which it fires: {fires}"
            );
        }
        let section =
            runbook.split("\n### ").find(|section| section.lines().next() == Some(&alert));
        let section = section.unwrap_or_else(|| panic!("ops/README.md says nothing of {alert}"));
        assert!(section.contains("```text\n"), "{alert}: nothing to type");
        assert!(
            rules.contains(&format!("README.md#{}\"", alert.to_lowercase())),
            "{alert}: its runbook"
        );
    }
    let headings: BTreeSet<_> = all(&runbook, "### ").map(str::to_owned).collect();
    assert_eq!(headings, alerts());
}

/// Every word of an expression that is the name of a series of ours; `_sum` and `_count` belong to their histogram.
#[track_caller]
fn names(expression: &str) -> Vec<String> {
    let rows = documented(None);
    let words = expression.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    let ours =
        |word: &&str| ["dlq_", "events_", "messages_"].iter().any(|start| word.starts_with(start));
    let names = words.filter(ours).map(|word| {
        let family = ["_sum", "_count"].iter().find_map(|end| word.strip_suffix(end));
        let is_part =
            |family: &&str| rows.get(*family).is_some_and(|(kind, _)| kind == "histogram");
        let name = family.filter(is_part).unwrap_or(word);
        assert!(rows.contains_key(name), "`{name}` of `{expression}` is not in docs/metrics.md");
        name.to_owned()
    });
    names.collect()
}

#[test]
fn every_name_in_the_rules_is_exported() {
    for file in ["ops/alerts.yml", "ops/alerts_test.yml"] {
        let text = read(file);
        let expressions: Vec<_> = all(&text, "expr:").chain(all(&text, "series:")).collect();
        assert!(expressions.len() >= alerts().len());
        for expression in expressions {
            assert!(!names(expression).is_empty(), "{file}: {expression}");
        }
    }
}

/// Every expression in a dashboard, and every reference to a data source.
fn visit<'a>(value: &'a Value, expressions: &mut Vec<&'a str>, sources: &mut Vec<&'a Value>) {
    match value {
        Value::Object(fields) => fields.iter().for_each(|(name, value)| match (&**name, value) {
            ("expr" | "definition", Value::String(text)) => expressions.push(text),
            ("datasource", source) => sources.push(source),
            _ => visit(value, expressions, sources),
        }),
        Value::Array(items) => items.iter().for_each(|item| visit(item, expressions, sources)),
        _ => {}
    }
}

#[test]
fn the_dashboard_can_be_imported_and_shows_what_is_exported() {
    let dashboard: Value = serde_json::from_str(&read("ops/dashboard.json")).unwrap();
    assert!(dashboard["id"].is_null() && dashboard["uid"].is_string(), "it has an id of nobody's");
    let (mut expressions, mut sources) = (Vec::new(), Vec::new());
    visit(&dashboard, &mut expressions, &mut sources);
    let mut shown = BTreeSet::new();
    for expression in &expressions {
        let names = names(expression);
        assert!(!names.is_empty(), "{expression}");
        shown.extend(names);
    }
    assert!(sources.iter().all(|source| source["uid"] == "${datasource}"), "{sources:?}");
    let variables = dashboard["templating"]["list"].as_array().unwrap();
    assert!(variables.iter().any(|it| it["name"] == "datasource" && it["type"] == "datasource"));
    let panels = dashboard["panels"].as_array().unwrap();
    let ids: BTreeSet<_> = panels.iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
    assert_eq!(ids.len(), panels.len(), "every panel has an id of its own");
    // What `dlq serve` counts is there to be seen.
    let counted = [SERVE, AT_BROKER].into_iter().flat_map(|heading| documented(Some(heading)));
    let unseen: Vec<_> =
        counted.map(|(name, _)| name).filter(|name| !shown.contains(name)).collect();
    assert_eq!(unseen, ["dlq_store_last_answer_seconds"], "which alone is for queries by hand");
    check_with_promtool(&expressions);
}

/// Has Prometheus parse every expression, as a rule of its own.
fn check_with_promtool(expressions: &[&str]) {
    let Ok(promtool) = dlq_services::require_promtool() else { return };
    let mut rules = "groups:\n- name: dashboard\n  rules:\n".to_owned();
    for (index, expression) in
        expressions.iter().filter(|it| !it.starts_with("label_values")).enumerate()
    {
        let expression = expression.replace("$__rate_interval", "5m");
        rules += &format!("  - record: panel:{index}\n    expr: {}\n", Value::from(expression));
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), rules).unwrap();
    let output = Command::new(promtool).args(["check", "rules"]).arg(file.path()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn every_command_in_the_runbook_is_one() {
    let (id, runbook) = ("0".repeat(32), read("ops/README.md"));
    let commands: Vec<_> = runbook
        .lines()
        .filter_map(|line| line.trim_start_matches("time ").strip_prefix("dlq "))
        .collect();
    assert!(commands.len() > alerts().len(), "{commands:?}");
    for command in commands {
        // What comes behind is not looked at once help is asked for; what stands before is.
        let typed =
            command.replace("FINGERPRINT", "v1:0123456789abcdef").replace(" ID", &format!(" {id}"));
        let words = typed.split('"').enumerate().flat_map(|(index, part)| {
            if index % 2 == 0 { part.split_whitespace().collect() } else { vec![part] }
        });
        let args: Vec<_> = words.chain(["--help"]).collect();
        let ran = crate::common::Ran::from(crate::common::dlq(&args).output().unwrap());
        assert_eq!(ran.code, 0, "dlq {command}: {}", ran.err);
    }
}
