//! Names of consumers in a sentence.

use super::escape;

/// Number of names that are said.
const MOST: usize = 5;

/// Returns the names of these consumers as a list of a sentence, the first of many.
#[must_use]
pub fn consumer_names(consumers: &[String]) -> String {
    let mut names: Vec<_> =
        consumers.iter().take(MOST).map(|name| format!("`{}`", escape(name))).collect();
    let more = consumers.len().saturating_sub(names.len());
    if more > 0 {
        names.push(format!("{more} more"));
    }
    match names.as_slice() {
        [] => String::new(),
        [one] => one.clone(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_names_stand_for_many() {
        let names: Vec<_> = (0..9).map(|n| n.to_string()).collect();
        assert_eq!(consumer_names(&names[..1]), "`0`");
        assert_eq!(consumer_names(&names[..3]), "`0`, `1` and `2`");
        assert_eq!(consumer_names(&names), "`0`, `1`, `2`, `3`, `4` and 4 more");
    }
}
