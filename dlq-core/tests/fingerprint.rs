//! Fingerprints: what varies does not matter, what differs does.

use std::collections::BTreeMap;

use dlq_core::fingerprint::{Fingerprint, normalize};
use dlq_core::{Cause, ErrorClass, Failure, Reason};
use proptest::prelude::*;

const CORPUS: &str = include_str!("fingerprint_corpus.txt");

fn of(error_type: &str, message: &str) -> Fingerprint {
    let failure = Failure::new(ErrorClass::Transient, Cause::Error, error_type, message);
    Fingerprint::of("payments.charge", Reason::Exhausted, Some(&failure))
}

/// The corpus has one error text a line, groups divided by blank lines.
#[test]
fn the_corpus_falls_into_its_groups() {
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let groups: Vec<Vec<&str>> = CORPUS
        .split("\n\n")
        .map(|group| group.lines().filter(|line| !line.is_empty()).collect())
        .collect();
    assert!(groups.iter().map(Vec::len).sum::<usize>() > 150);
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
    assert_eq!(of("app::{impl#3}::charge", "x"), of("app::charge", "x"));
    assert_ne!(of("app::Error", "x"), of("lib::Error", "x"));

    // Neither the machine that built it nor the version of a dependency matters; which dependency does.
    let registry = "/home/ci/.cargo/registry/src/index-1949cf8c6b5b557f";
    let upgraded =
        r"C:\Users\me\.cargo\registry\src\index-ff00\some-client-2.0.1-rc.1\src\call.rs:7:7";
    assert_eq!(place(&format!("{registry}/some-client-1.2.3/src/call.rs:12:5")), place(upgraded));
    assert_ne!(place(&format!("{registry}/other-client-1.2.3/src/call.rs:12:5")), place(upgraded));
}

#[derive(Debug, thiserror::Error)]
#[error("charging order {order} failed")]
struct Wrapped {
    order: u64,
    source: std::io::Error,
}

#[test]
fn what_lies_behind_a_wrapper_keeps_its_groups_apart() {
    let of = |order: u64, source: &str| {
        let error = Wrapped { order, source: std::io::Error::other(source.to_owned()) };
        let failure = Failure::from_error(ErrorClass::Transient, &error);
        Fingerprint::of("payments.charge", Reason::Exhausted, Some(&failure))
    };
    assert_eq!(of(17, "reset after 12ms"), of(18, "reset after 9s"));
    assert_ne!(of(17, "reset after 12ms"), of(17, "refused after 12ms"));
}

#[test]
fn hostile_texts_are_read_in_linear_time() {
    // Each of these made some scanner, somewhere, quadratic or worse: hours, of a megabyte.
    let started = std::time::Instant::now();
    for unit in
        ["\"", "'a ", "`\\", "a-", "1.", "::1 ", "a:", "@", "<n>, ", "\u{4e00}", "1:2:", "://"]
    {
        let text = unit.repeat(1 << 20);
        assert!(normalize(&text).chars().count() <= 256, "{unit}");
    }
    let distinct: String = ('\u{4e00}'..'\u{9fff}').collect();
    assert!(normalize(&distinct).chars().count() <= 256);
    assert!(started.elapsed() < std::time::Duration::from_secs(60), "{:?}", started.elapsed());
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

/// Two values of the same kind.
fn any_two_values() -> impl Strategy<Value = (String, String)> {
    fn two<S: Strategy<Value = String> + 'static>(
        one: fn() -> S,
    ) -> BoxedStrategy<(String, String)> {
        (one(), one()).boxed()
    }
    let uuid = || {
        any::<u128>().prop_map(|n| {
            let hex = format!("{n:032x}");
            [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
        })
    };
    prop_oneof![
        two(|| any::<u64>().prop_map(|n| n.to_string())),
        two(|| any::<i64>().prop_map(|n| n.to_string())),
        two(|| any::<i32>().prop_map(|n| format!("{}", f64::from(n) / 64.0))),
        two(|| any::<u64>().prop_map(|n| format!("{n:#x}"))),
        two(|| any::<u64>().prop_map(|n| format!("{:?}", std::time::Duration::from_nanos(n)))),
        two(|| any::<u32>().prop_map(|n| std::net::Ipv4Addr::from_bits(n).to_string())),
        two(|| "[a-z]{1,8}@[a-z]{1,8}\\.[a-z]{2,3}".prop_map(|text| text)),
        two(|| "https?://[a-z]{1,8}/[a-z0-9?&=%]{0,12}".prop_map(|text| text)),
        two(|| "'[a-z A-Z0-9@:/-]{0,12}'".prop_map(|text| text)),
        (uuid(), uuid()).boxed(),
    ]
}

/// What stands around a value in its word.
fn glue() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["_", "(_)", "_,", "_:", "[_]", "id=_", "order-_"])
}

/// Words of letters that are no hexadecimal digits.
fn plain_words() -> impl Strategy<Value = String> {
    prop::collection::vec("[g-z]{1,3}", 1..4).prop_map(|words| words.join(" "))
}

proptest! {
    /// Wherever in a real error a value is put, which value it is does not matter.
    #[test]
    fn an_inserted_value_never_changes_the_group(
        line in 0_usize..1000, gap in 0_usize..20, values in any_two_values(), glue in glue(),
    ) {
        let lines: Vec<_> = CORPUS.lines().filter(|line| !line.is_empty()).collect();
        let words: Vec<_> = lines[line % lines.len()].split(' ').collect();
        let gap = gap % (words.len() + 1);
        if values.0.starts_with('\'') {
            // Where a quote stands within quotes, nothing tells which of them belong together; and the quoted name of a
            // field or column is kept on purpose.
            prop_assume!(words.iter().all(|word| !word.contains('\'')));
            let kept = ["field", "column", "constraint", "relation", "table"];
            prop_assume!(gap == 0 || !kept.contains(&words[gap - 1]));
        }
        let with = |value: &str| {
            let mut words: Vec<_> = words.iter().map(|word| (*word).to_owned()).collect();
            words.insert(gap, glue.replace('_', value));
            words.join(" ")
        };
        let (one, other) = (with(&values.0), with(&values.1));
        prop_assert_eq!(of("E", &one), of("E", &other), "{} / {}: {}", one, other, normalize(&one));
    }

    /// Texts of plain words are the same group only if they are the same text.
    #[test]
    fn variants_of_an_enum_stay_apart(
        one in plain_words(), other in plain_words(), number in any::<u32>(), another in any::<u32>(),
    ) {
        let same = one == other;
        let found = of("ChargeError", &format!("{one} ({number})"))
            == of("ChargeError", &format!("{other} ({another})"));
        prop_assert_eq!(found, same);
    }

    #[test]
    fn normalising_twice_changes_nothing(line in 0_usize..1000) {
        let lines: Vec<_> = CORPUS.lines().filter(|line| !line.is_empty()).collect();
        let once = normalize(lines[line % lines.len()]);
        prop_assert_eq!(normalize(&once), once);
    }

    #[test]
    fn any_bytes_are_taken(bytes in prop::collection::vec(any::<u8>(), 0..9000)) {
        prop_assert!(normalize(&String::from_utf8_lossy(&bytes)).chars().count() <= 256);
    }

    #[test]
    fn any_text_is_taken_and_bounded(text in any::<String>(), location in any::<String>(), kind in any::<String>()) {
        prop_assert!(normalize(&text).chars().count() <= 256);
        let failure = Failure::new(ErrorClass::Transient, Cause::Error, kind, &text).with_location(location);
        let fingerprint = Fingerprint::of("c", Reason::Exhausted, Some(&failure));
        prop_assert_eq!(fingerprint.to_string().parse::<Fingerprint>().unwrap(), fingerprint);
    }
}
