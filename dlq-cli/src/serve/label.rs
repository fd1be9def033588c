//! Labels of bounded number and length.

use std::collections::BTreeMap;

/// Number of topics, and of consumers, that have a label of their own.
// Every label is a series that Prometheus keeps; subjects may hold ids, and be without number.
pub(super) const MOST: usize = 100;
/// The label of the rest.
pub(super) const OTHER: &str = "other";
/// The longest label, in bytes; what is longer is cut.
const LONGEST: usize = 200;

/// A text as it stands in a label.
pub(super) fn label(text: &str) -> &str {
    &text[..text.floor_char_boundary(LONGEST)]
}

/// The largest counts under their own labels, the rest together.
pub(super) fn largest(counts: &BTreeMap<String, u64>) -> BTreeMap<&str, u64> {
    let mut ranked: Vec<_> = counts.iter().collect();
    ranked.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
    let mut bounded = BTreeMap::new();
    for (rank, (text, count)) in ranked.into_iter().enumerate() {
        // Two that are cut alike, and one that is really called so, are added up.
        *bounded.entry(if rank < MOST { label(text) } else { OTHER }).or_default() += count;
    }
    bounded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_have_labels_and_nothing_is_lost() {
        let mut counts: BTreeMap<_, _> =
            (0..150).map(|n| (format!("orders.{n:03}"), n + 1)).collect();
        counts.insert(OTHER.to_owned(), 1000);
        let bounded = largest(&counts);
        assert_eq!(bounded.len(), MOST);
        assert_eq!(bounded["orders.149"], 150);
        assert!(!bounded.contains_key("orders.050"));
        assert_eq!(bounded[OTHER], 1000 + (1..=51).sum::<u64>());
        assert_eq!(bounded.values().sum::<u64>(), counts.values().sum::<u64>());
    }

    #[test]
    fn long_ones_are_cut_between_characters_and_added_up() {
        let long = |end: &str| format!("{}{end}", "ü".repeat(100));
        assert_eq!(label(&long("a")).len(), 200);
        assert_eq!(label(&format!("x{}", long(""))).len(), 199);
        let counts = BTreeMap::from([(long("a"), 2), (long("b"), 3)]);
        assert_eq!(largest(&counts).into_values().collect::<Vec<_>>(), [5]);
    }
}
