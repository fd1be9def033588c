//! Text fit for a terminal.

use unicode_width::UnicodeWidthStr as _;

/// Maximum number of bytes for a column, with combining marks.
// A letter with a few marks takes less; without a limit one cell could hold a megabyte of them.
const LARGEST: usize = 16;

/// Text cut to this width at a terminal, with a mark. Wide characters count as two.
pub(crate) fn fit(text: &str, width: usize) -> String {
    // Characters of no width are cut too, however many there are.
    if text.width() <= width && text.len() <= width.saturating_mul(LARGEST) {
        return text.to_owned();
    }
    let mut cut = String::new();
    for char in text.chars().take(width.saturating_mul(LARGEST / 4)) {
        let end = cut.len();
        cut.push(char);
        // One column is left for the mark.
        if cut.width() >= width {
            cut.truncate(end);
            break;
        }
    }
    if width > 0 {
        cut.push('…');
    }
    cut
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cutting_counts_columns() {
        assert_eq!(fit("äöü", 3), "äöü");
        assert_eq!(fit("äöüß", 3), "äö…");
        assert_eq!(fit("支払い", 6), "支払い");
        assert_eq!(fit("支払い", 5), "支払…");
        assert_eq!(fit("支払い", 4), "支…");
        assert_eq!(fit("x", 0), "");
        let marked = format!("e{}", "\u{301}".repeat(10_000));
        assert!(fit(&marked, 10).len() < 200);
    }
}
