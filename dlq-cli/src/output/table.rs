//! Tables, one line a row, that fit the terminal.

use std::fmt::Write as _;

use unicode_width::UnicodeWidthStr as _;

use super::escape;
use super::text::fit;

/// Space between two columns.
const GAP: usize = 2;

/// A column of a table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Column {
    name: &'static str,
    /// The higher, the sooner it is left out where there is no room; 0 for never.
    rank: u8,
    /// Minimum width; `None` if the column is shown whole or not at all.
    least: Option<usize>,
}

impl Column {
    /// A column that is never cut.
    pub(crate) const fn whole(name: &'static str, rank: u8) -> Self {
        Self { name, rank, least: None }
    }

    /// A column that is cut where there is no room, to this width at least.
    pub(crate) const fn text(name: &'static str, rank: u8, least: usize) -> Self {
        Self { name, rank, least: Some(least) }
    }
}

/// A table for people. Every cell is made fit for a terminal.
#[derive(Debug)]
pub(crate) struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(columns: &[Column]) -> Self {
        Self { columns: columns.to_vec(), rows: Vec::new() }
    }

    /// Adds a row, with a cell for each column.
    pub(crate) fn row<I: IntoIterator<Item = String>>(&mut self, cells: I) {
        let cells: Vec<_> = cells.into_iter().map(|cell| escape(&cell)).collect();
        debug_assert_eq!(cells.len(), self.columns.len());
        self.rows.push(cells);
    }

    /// The lines of the table, none wider than `width`; as wide as they need to be without one.
    pub(crate) fn lines(&self, width: Option<usize>) -> Vec<String> {
        let widths = self.widths(width);
        let header: Vec<_> = self.columns.iter().map(|column| column.name.to_owned()).collect();
        let line = |cells: &Vec<String>| {
            let mut line = String::new();
            let mut shown =
                cells.iter().zip(&widths).filter_map(|(cell, width)| Some((cell, (*width)?)));
            if let Some((cell, width)) = shown.next() {
                push(&mut line, cell, width);
            }
            for (cell, width) in shown {
                line.push_str(&" ".repeat(GAP));
                push(&mut line, cell, width);
            }
            let line = line.trim_end();
            width.map_or_else(|| line.to_owned(), |width| fit(line, width))
        };
        std::iter::once(&header).chain(&self.rows).map(line).collect()
    }

    /// Returns the width of each column; `None` for a column that is left out.
    fn widths(&self, width: Option<usize>) -> Vec<Option<usize>> {
        let natural = |index: usize| {
            let cells = self.rows.iter().filter_map(move |row| row.get(index));
            let widest = cells.map(|cell| cell.width()).max().unwrap_or(0);
            widest.max(self.columns[index].name.width())
        };
        let wanted: Vec<_> = (0..self.columns.len()).map(natural).collect();
        let Some(room) = width else { return wanted.into_iter().map(Some).collect() };
        let narrow = |index: usize| {
            self.columns[index].least.map_or(wanted[index], |least| wanted[index].min(least))
        };
        let mut widths: Vec<_> = (0..self.columns.len()).map(|index| Some(narrow(index))).collect();
        // Whole columns go before a cell becomes too narrow to read. Columns of rank 0 always stay.
        while taken(&widths) > room {
            let left = (0..widths.len()).filter(|index| widths[*index].is_some());
            let least = left.max_by_key(|index| self.columns[*index].rank);
            match least {
                Some(index) if self.columns[index].rank > 0 => widths[index] = None,
                _ => break,
            }
        }
        // What is left goes to those that were cut, a little to each in turn.
        loop {
            let mut grown = false;
            for (index, wanted) in wanted.iter().enumerate() {
                if taken(&widths) >= room {
                    return widths;
                }
                if let Some(width) = &mut widths[index]
                    && *width < *wanted
                {
                    *width += 1;
                    grown = true;
                }
            }
            if !grown {
                return widths;
            }
        }
    }
}

fn taken(widths: &[Option<usize>]) -> usize {
    let shown = widths.iter().flatten();
    shown.clone().sum::<usize>() + GAP * shown.count().saturating_sub(1)
}

fn push(line: &mut String, cell: &str, width: usize) {
    let cell = fit(cell, width);
    let _ = write!(line, "{cell}{}", " ".repeat(width.saturating_sub(cell.width())));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let mut table = Table::new(&[
            Column::whole("ID", 0),
            Column::text("SUBJECT", 1, 8),
            Column::whole("AGE", 2),
            Column::text("ERROR", 0, 10),
        ]);
        table.row(
            ["0123456789ab", "orders.created.eu", "3d", "支払い\u{1b}[31mに失敗しました"]
                .map(str::to_owned),
        );
        table.row(["ab", "x", "11h", "it broke"].map(str::to_owned));
        table
    }

    #[test]
    fn without_a_terminal_nothing_is_cut() {
        let lines = table().lines(None);
        assert_eq!(lines[0], "ID            SUBJECT            AGE  ERROR");
        assert_eq!(
            lines[1],
            "0123456789ab  orders.created.eu  3d   支払い\\u{1b}[31mに失敗しました"
        );
        assert_eq!(lines[2], "ab            x                  11h  it broke");
    }

    #[test]
    fn lines_fit_whatever_the_width() {
        for width in 1..100 {
            for line in table().lines(Some(width)) {
                assert!(line.width() <= width, "{width}: {line}");
                assert!(!line.chars().any(char::is_control), "{line:?}");
            }
        }
    }

    #[test]
    fn narrow_terminals_lose_the_least_important_first() {
        let header = |width| table().lines(Some(width)).swap_remove(0);
        assert!(header(39).contains("AGE"));
        assert_eq!(header(38), "ID            SUBJECT     ERROR");
        assert_eq!(header(30), "ID            ERROR");
        assert_eq!(table().lines(Some(30))[2], "ab            it broke");
        assert!(table().lines(Some(30))[1].ends_with('…'));
    }
}
