//! The error at the end of a traceback.

/// An error that a traceback ends with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Thrown {
    /// Its type; empty if it is not known.
    pub(super) class: String,
    pub(super) message: String,
    pub(super) trace: Option<String>,
}

/// Longest name of a type.
const NAME: usize = 200;

/// Reads a traceback of Python: after the last frame, which is indented, stands `TYPE: MESSAGE`, where the message may have
/// more lines.
pub(super) fn python(trace: &str) -> Option<Thrown> {
    // The last frame, since a chain of errors has the one that came out at its end.
    let from = trace.rfind("\n  File ").map_or(0, |at| at + 1);
    let mut lines = trace[from..].trim_end().lines();
    let error = lines.by_ref().find(|line| {
        !line.is_empty() && !line.starts_with(' ') && !line.starts_with("Traceback ")
    })?;
    let mut thrown = split(error);
    for line in lines {
        thrown.message.push('\n');
        thrown.message.push_str(line);
    }
    thrown.trace = Some(trace.to_owned());
    Some(thrown)
}

/// Reads a stack of JavaScript, which begins with `TYPE: MESSAGE`. The lines of the message end where frames begin.
pub(super) fn javascript(stack: &str) -> Thrown {
    let is_frame = |line: &&str| line.trim_start().starts_with("at ") && line.starts_with(' ');
    let head: Vec<&str> = stack.lines().take_while(|line| !is_frame(line)).collect();
    let mut thrown = split(&head.join("\n"));
    thrown.trace = Some(stack.to_owned());
    thrown
}

/// Takes `TYPE: MESSAGE` apart. A text that begins with no type is a message alone.
fn split(line: &str) -> Thrown {
    let is_name = |name: &str| {
        let is_first = name.starts_with(|first: char| first.is_alphabetic() || first == '_');
        let allowed = |letter: char| letter.is_alphanumeric() || matches!(letter, '_' | '.' | '$');
        is_first && name.len() <= NAME && name.chars().all(allowed)
    };
    let (name, message) = line.split_once(": ").unwrap_or((line.trim_end_matches(':'), ""));
    match is_name(name) {
        true => Thrown { class: name.to_owned(), message: message.to_owned(), trace: None },
        false => Thrown { message: line.to_owned(), ..Thrown::default() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(thrown: &Thrown) -> (&str, &str) {
        (&thrown.class, &thrown.message)
    }

    #[test]
    fn python_tells_the_last_error() {
        let one = "Traceback (most recent call last):\n  File \"a.py\", line 5, in boom\n    raise ValueError(x)\n          \
                   ^^^^^\nValueError: cannot pay: 17\n";
        assert_eq!(pair(&python(one).unwrap()), ("ValueError", "cannot pay: 17"));
        let chained = format!(
            "{one}\nDuring handling of the above exception, another exception occurred:\n\nTraceback (most recent call \
             last):\n  File \"b.py\", line 9, in pay\n    raise shop.errors.Declined(x)\nshop.errors.Declined: first\nsecond \
             line\n"
        );
        let thrown = python(&chained).unwrap();
        assert_eq!(pair(&thrown), ("shop.errors.Declined", "first\nsecond line"));
        assert_eq!(thrown.trace.as_deref(), Some(&*chained));
        let bare = "Traceback (most recent call last):\n  File \"a.py\", line 5\nKeyError\n";
        assert_eq!(pair(&python(bare).unwrap()), ("KeyError", ""));
        assert_eq!(pair(&python("Moved to FailedJobRegistry, due to X").unwrap()).0, "");
        for nothing in ["", "\n\n", "  File \"a\"\n", "Traceback (most recent call last):\n"] {
            assert_eq!(python(nothing), None, "{nothing:?}");
        }
    }

    #[test]
    fn javascript_tells_its_first_lines() {
        let stack = "TypeError: Cannot read 'x'\nof null\n    at a (b.js:1:2)\n    at c";
        assert_eq!(pair(&javascript(stack)), ("TypeError", "Cannot read 'x'\nof null"));
        assert_eq!(pair(&javascript("Error\n    at a")), ("Error", ""));
        assert_eq!(pair(&javascript("it is late: 5")), ("", "it is late: 5"));
        assert_eq!(pair(&javascript("")), ("", ""));
    }
}
