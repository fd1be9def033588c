use indicatif::{ProgressBar, ProgressStyle};

/// How far a command is, on standard error where that is a terminal.
pub(crate) fn bar(total: u64) -> ProgressBar {
    styled(total, "{wide_bar} {pos}/{len} letters  {per_sec}  {eta} left")
}

/// The same for a file that is read, with the number of letters as message.
pub(crate) fn bar_of_bytes(total: u64) -> ProgressBar {
    styled(total, "{wide_bar} {bytes}/{total_bytes}  {msg}  {eta} left")
}

fn styled(total: u64, template: &str) -> ProgressBar {
    let bar = ProgressBar::new(total);
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}
