//! Relations between two patterns.

/// Returns true if everything that `narrow` matches is matched by `wide` as well.
pub(super) fn covers(wide: &str, narrow: &str) -> bool {
    let mut narrow = narrow.split('.');
    for wide in wide.split('.') {
        match (wide, narrow.next()) {
            (_, None) => return false,
            (">", Some(_)) => return true,
            // `>` may stand for several tokens, and only another `>` covers those.
            (_, Some(">")) => return false,
            ("*", Some(_)) => {}
            (wide, Some(narrow)) if wide == narrow => {}
            _ => return false,
        }
    }
    narrow.next().is_none()
}

/// Returns true if anything is matched by both.
pub(super) fn meet(left: &str, right: &str) -> bool {
    let (mut left, mut right) = (left.split('.'), right.split('.'));
    loop {
        match (left.next(), right.next()) {
            (None, None) => return true,
            (None, Some(_)) | (Some(_), None) => return false,
            // `>` stands for one token or more, and the other pattern has at least one left.
            (Some(">"), Some(_)) | (Some(_), Some(">")) => return true,
            (Some("*"), Some(_)) | (Some(_), Some("*")) => {}
            (Some(left), Some(right)) if left == right => {}
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use dlq_core::SubjectPattern;
    use proptest::prelude::*;

    use super::*;

    fn pattern() -> impl Strategy<Value = String> {
        let token = prop_oneof![Just("a"), Just("b"), Just("*")];
        (prop::collection::vec(token, 1..4), any::<bool>()).prop_map(|(mut tokens, open)| {
            if open {
                tokens.push(">");
            }
            tokens.join(".")
        })
    }

    fn subjects() -> Vec<String> {
        let mut all: Vec<String> = vec!["a".into(), "b".into()];
        let mut last = all.clone();
        for _ in 0..5 {
            last = last.iter().flat_map(|s| [format!("{s}.a"), format!("{s}.b")]).collect();
            all.extend(last.clone());
        }
        all
    }

    proptest! {
        #[test]
        fn they_agree_with_what_is_matched(left in pattern(), right in pattern()) {
            let (wide, narrow): (SubjectPattern, SubjectPattern) =
                (left.parse().unwrap(), right.parse().unwrap());
            let subjects = subjects();
            let both = subjects.iter().any(|s| wide.matches(s) && narrow.matches(s));
            prop_assert_eq!(meet(&left, &right), both);
            let covered = subjects.iter().all(|s| !narrow.matches(s) || wide.matches(s));
            // With two letters only, `*` may look covered by a set of literals; one pattern never is.
            prop_assert_eq!(covers(&left, &right), covered);
        }
    }
}
