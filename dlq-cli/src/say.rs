//! Messages for people, on standard error.

use std::fmt;
use std::io::{self, Write as _};

/// Says a line. That nobody listens any more, as behind `dlq … 2>&1 | head -1`, is no reason to leave work half done.
macro_rules! say {
    ($($text:tt)*) => { $crate::say::line(format_args!($($text)*)) };
}

pub(crate) fn line(text: fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}
