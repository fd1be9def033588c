//! Reading what Prometheus reads.

use std::collections::{BTreeMap, BTreeSet};

/// A scraped page.
pub(crate) struct Page(pub(crate) String);

/// A kind and the labels that series of a name have.
pub(crate) type Families = BTreeMap<String, (String, BTreeSet<String>)>;

impl Page {
    /// The value of the series that is written like this.
    pub(crate) fn value(&self, series: &str) -> Option<f64> {
        let mut lines = self.0.lines();
        let value = lines.find_map(|line| line.strip_prefix(series)?.strip_prefix(' '))?;
        Some(value.parse().unwrap())
    }

    /// The series of a name with their values.
    pub(crate) fn series(&self, name: &str) -> Vec<(&str, f64)> {
        let of_name =
            |line: &&str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']));
        let series = self.0.lines().filter(of_name).map(|line| line.rsplit_once(' ').unwrap());
        series.map(|(series, value)| (series, value.parse().unwrap())).collect()
    }

    /// Every name with its kind and labels.
    pub(crate) fn families(&self) -> Families {
        let types = self.0.lines().filter_map(|line| line.strip_prefix("# TYPE "));
        let family = |line: &str| {
            let (name, kind) = line.split_once(' ').unwrap();
            // A summary is how a histogram without buckets is shown.
            let kind = if kind == "summary" { "histogram" } else { kind };
            let mut labels = BTreeSet::new();
            let parts = if kind == "histogram" {
                vec![format!("{name}_count")]
            } else {
                vec![name.to_owned()]
            };
            for (series, _) in parts.iter().flat_map(|name| self.series(name)) {
                labels.extend(label_names(series));
            }
            (name.to_owned(), (kind.to_owned(), labels))
        };
        types.map(family).collect()
    }
}

fn label_names(series: &str) -> Vec<String> {
    let Some((_, labels)) = series.split_once('{') else { return Vec::new() };
    let ends = labels.match_indices("=\"").map(|(end, _)| &labels[..end]);
    let word = |text: &str| text.rsplit(['{', ',', '"']).next().unwrap().to_owned();
    ends.map(word).filter(|name| !name.is_empty()).collect()
}
