//! Fingerprints: what varies does not matter, what differs does.

use std::collections::BTreeMap;

use dlq_core::fingerprint::{Fingerprint, normalize};
use dlq_core::{Cause, ErrorClass, Failure, Reason};
use proptest::prelude::*;

fn of(error_type: &str, message: &str) -> Fingerprint {
    let failure = Failure::new(ErrorClass::Transient, Cause::Error, error_type, message);
    Fingerprint::of("payments.charge", Reason::Exhausted, Some(&failure))
}

/// The corpus has one error text a line, groups divided by blank lines.
#[test]
fn the_corpus_falls_into_its_groups() {
    let corpus = include_str!("fingerprint_corpus.txt");
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let groups: Vec<Vec<&str>> = corpus
        .split("\n\n")
        .map(|group| group.lines().filter(|line| !line.is_empty()).collect())
        .collect();
    assert!(groups.iter().map(Vec::len).sum::<usize>() >= 80);
    for (index, group) in groups.iter().enumerate() {
        for text in group {
            let normal = normalize(text);
            let first = *seen.entry(normal.clone()).or_insert(index);
            assert_eq!(
                first, index,
                "`{text}` ({normal}) fell into the group of `{}`",
                groups[first][0]
            );
            assert_eq!(
                normal,
                normalize(group[0]),
                "`{text}` is not in the group of `{}`",
                group[0]
            );
        }
    }
}

#[test]
fn identity_depends_on_consumer_type_cause_and_place() {
    let failure = Failure::new(ErrorClass::Transient, Cause::Error, "app::Error", "boom");
    let base = Fingerprint::of("a", Reason::Exhausted, Some(&failure));
    let place = |at: &str| {
        Fingerprint::of("a", Reason::Exhausted, Some(&failure.clone().with_location(at)))
    };
    assert_ne!(Fingerprint::of("b", Reason::Exhausted, Some(&failure)), base);
    assert_ne!(
        Fingerprint::of("a", Reason::Exhausted, Some(&failure.clone().with_cause(Cause::Panic))),
        base
    );
    assert_ne!(
        Fingerprint::of("a", Reason::MaxCrashes, None),
        Fingerprint::of("a", Reason::Rejected, None)
    );
    assert_eq!(place("src/a.rs:10:5"), place("src/a.rs:99:1"));
    assert_ne!(place("src/a.rs:10:5"), place("src/b.rs:10:5"));
    assert_eq!(of("app::Wrapped<app::A>", "x"), of("app::Wrapped<app::B<u8>>", "x"));
    assert_eq!(of("app::charge::{{closure}}::h0123456789abcdef", "x"), of("app::charge", "x"));
}

#[test]
fn a_group_that_the_error_names_wins() {
    let mut failure = Failure::new(ErrorClass::Transient, Cause::Error, "app::Error", "one text");
    failure.group = Some("provider".to_owned());
    let mut other = Failure::new(ErrorClass::Permanent, Cause::Error, "app::Other", "another");
    other.group = Some("provider".to_owned());
    let of = |failure| Fingerprint::of("a", Reason::Exhausted, Some(failure));
    assert_eq!(of(&failure), of(&other));
}

#[test]
fn the_algorithm_is_pinned() {
    // A change of this value is a new version of the algorithm.
    assert_eq!(of("app::Error", "order 17 timed out").to_string(), PINNED);
}

const PINNED: &str = "v1:6667f76bf718dd8a";

#[test]
fn texts_that_are_not_fingerprints_are_refused() {
    for text in [
        "",
        "v1",
        "v1:",
        "v1:123",
        "1:0123456789abcdef",
        "v1:0123456789abcdeg",
        "v+1:0123456789abcdef",
    ] {
        assert!(text.parse::<Fingerprint>().is_err(), "{text}");
    }
}

proptest! {
    #[test]
    fn numbers_and_ids_never_change_the_group(
        number in any::<u64>(), other in any::<u64>(), id in any::<u128>(), another in any::<u128>(),
    ) {
        let uuid = |n: u128| {
            let hex = format!("{n:032x}");
            format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
        };
        let text = |n: u64, u: u128| format!("order {n} of {} failed after {n}ms at 10.0.0.{}: code={n}", uuid(u), n % 256);
        prop_assert_eq!(of("E", &text(number, id)), of("E", &text(other, another)));
    }

    #[test]
    fn variants_of_an_enum_stay_apart(number in any::<u32>()) {
        let variants = ["provider timed out", "amount must be positive", "card was declined", "account is closed"];
        let found: std::collections::BTreeSet<_> =
            variants.iter().map(|text| of("ChargeError", &format!("{text} ({number})"))).collect();
        prop_assert_eq!(found.len(), variants.len());
    }

    #[test]
    fn any_text_is_taken_and_bounded(text in any::<String>(), location in any::<String>(), kind in any::<String>()) {
        prop_assert!(normalize(&text).chars().count() <= 256);
        let failure = Failure::new(ErrorClass::Transient, Cause::Error, kind, &text).with_location(location);
        let fingerprint = Fingerprint::of("c", Reason::Exhausted, Some(&failure));
        prop_assert_eq!(fingerprint.to_string().parse::<Fingerprint>().unwrap(), fingerprint);
    }
}
