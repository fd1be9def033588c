//! Overlap of patterns of subjects.

/// Returns true if some subject matches both.
pub(crate) fn overlap(one: &str, other: &str) -> bool {
    let (mut one, mut other) = (one.split('.'), other.split('.'));
    loop {
        match (one.next(), other.next()) {
            (None, None) => return true,
            (Some(">"), Some(_)) | (Some(_), Some(">")) => return true,
            (Some(a), Some(b)) if a == b || a == "*" || b == "*" => {}
            _ => return false,
        }
    }
}

/// Returns true if every subject that matches `part` matches `whole`.
pub(crate) fn covers(whole: &str, part: &str) -> bool {
    let (mut whole, mut part) = (whole.split('.'), part.split('.'));
    loop {
        match (whole.next(), part.next()) {
            (None, None) => return true,
            (Some(">"), Some(_)) => return true,
            (Some("*"), Some(token)) if token != ">" => {}
            (Some(a), Some(b)) if a == b => {}
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_meet_or_do_not() {
        for (one, other) in [
            ("dlq.>", ">"),
            ("dlq.>", "dlq.orders"),
            ("*.x", "dlq.>"),
            ("a.*.c", "a.b.*"),
            ("a", "a"),
        ] {
            assert!(overlap(one, other) && overlap(other, one), "{one} {other}");
        }
        for (one, other) in
            [("dlq.>", "dlq"), ("dlq.>", "dlq-aside.>"), ("a.*", "a.b.c"), ("a.b", "a.c")]
        {
            assert!(!overlap(one, other) && !overlap(other, one), "{one} {other}");
        }
    }

    #[test]
    fn the_whole_covers_the_part() {
        for (whole, part) in [
            (">", "dlq.>"),
            ("dlq.>", "dlq.>"),
            ("dlq.>", "dlq.a.b"),
            ("*.a", "dlq.a"),
            ("a.*", "a.*"),
        ] {
            assert!(covers(whole, part), "{whole} {part}");
        }
        for (whole, part) in
            [("dlq.*", "dlq.>"), ("dlq.a", "dlq.>"), ("dlq.>", ">"), ("a.b", "a.*"), ("a.>", "a")]
        {
            assert!(!covers(whole, part), "{whole} {part}");
        }
    }
}
