//! Tables, one line a row, that fit the terminal.

use std::cmp::Ordering;
use std::str::FromStr;

use dlq_core::Timestamp;
use unicode_width::UnicodeWidthStr as _;

use super::text::fit;
use super::{age, colour, escape};
use crate::error::CliError;

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
    kind: Kind,
}

/// Content of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Plain,
    /// Text that the others leave most room.
    Main,
    /// A word that has a colour.
    State,
    /// Shown only where it is asked for.
    Extra,
}

impl Column {
    /// A column that is never cut.
    pub(crate) const fn whole(name: &'static str, rank: u8) -> Self {
        Self { name, rank, least: None, kind: Kind::Plain }
    }

    /// A column that is cut where there is no room, to this width at least.
    pub(crate) const fn text(name: &'static str, rank: u8, least: usize) -> Self {
        Self { name, rank, least: Some(least), kind: Kind::Plain }
    }

    /// A column of states, which is never cut.
    pub(crate) const fn state(name: &'static str, rank: u8) -> Self {
        Self { name, rank, least: None, kind: Kind::State }
    }

    /// The column that the rest is there for: it is cut too, and has more room than any other.
    pub(crate) const fn main(name: &'static str, least: usize) -> Self {
        Self { name, rank: 0, least: Some(least), kind: Kind::Main }
    }

    /// A column that is shown where it is asked for by its name.
    pub(crate) const fn extra(name: &'static str) -> Self {
        Self { name, rank: 0, least: None, kind: Kind::Extra }
    }

    /// Returns the name as it is typed.
    fn typed(&self) -> String {
        self.name.to_lowercase().replace(' ', "-")
    }
}

/// A cell of a table.
#[derive(Clone, Debug)]
pub(crate) struct Cell {
    text: String,
    /// Number by which cells are sorted; texts are sorted as such.
    number: Option<i128>,
}

impl Cell {
    /// A number.
    pub(crate) fn number(number: impl Into<i128>) -> Self {
        let number = number.into();
        Self { text: number.to_string(), number: Some(number) }
    }

    /// A time, as its age.
    pub(crate) fn age(at: Timestamp) -> Self {
        // Negative, so that sorting by age puts the youngest first, as the shown text suggests.
        Self { text: age(at), number: Some(-i128::from(at.as_millis())) }
    }

    /// The same cell with another text.
    pub(crate) fn shown(self, text: impl Into<String>) -> Self {
        Self { text: text.into(), ..self }
    }

    fn cmp(&self, other: &Self) -> Ordering {
        match (self.number, other.number) {
            (Some(one), Some(other)) => one.cmp(&other),
            _ => self.text.cmp(&other.text),
        }
    }
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self { text: text.into(), number: None }
    }
}

/// A column to sort by, and the direction: `-` in front of the name puts the largest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SortBy {
    column: String,
    is_descending: bool,
}

impl FromStr for SortBy {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let column = text.strip_prefix('-').unwrap_or(text);
        Ok(Self { column: column.to_lowercase(), is_descending: column.len() < text.len() })
    }
}

/// A table for people. Every cell is made fit for a terminal.
#[derive(Debug)]
pub(crate) struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<Cell>>,
}

impl Table {
    pub(crate) fn new(columns: &[Column]) -> Self {
        Self { columns: columns.to_vec(), rows: Vec::new() }
    }

    /// Adds a row, with a cell for each column.
    pub(crate) fn row<C: Into<Cell>>(&mut self, cells: impl IntoIterator<Item = C>) {
        let cells = cells.into_iter().map(|cell| {
            let cell: Cell = cell.into();
            // Escaped before it is measured, since escapes are longer than the characters that they stand for.
            let text = escape(&cell.text);
            cell.shown(text)
        });
        self.rows.push(cells.collect());
        debug_assert_eq!(self.rows.last().map(Vec::len), Some(self.columns.len()));
    }

    /// Returns the places of the rows in the order that is asked for. Rows that are the same in it stay as they are.
    pub(crate) fn order(&self, by: &SortBy) -> Result<Vec<usize>, CliError> {
        let column = self.index(&by.column)?;
        let mut order: Vec<_> = (0..self.rows.len()).collect();
        order.sort_by(|one, other| {
            let order = self.rows[*one][column].cmp(&self.rows[*other][column]);
            if by.is_descending { order.reverse() } else { order }
        });
        Ok(order)
    }

    /// Shows these columns, in this order, and no others.
    pub(crate) fn choose(&mut self, names: &[String]) -> Result<(), CliError> {
        let chosen = names.iter().map(|name| self.index(&name.to_lowercase()));
        let chosen = chosen.collect::<Result<Vec<_>, _>>()?;
        let column = |index: &usize| {
            let column = self.columns[*index];
            let kind = if column.kind == Kind::Extra { Kind::Plain } else { column.kind };
            // Somebody has asked for these columns by name, so none of them is left out for want of room.
            Column { rank: 0, kind, ..column }
        };
        self.columns = chosen.iter().map(column).collect();
        for row in &mut self.rows {
            *row = chosen.iter().map(|index| row[*index].clone()).collect();
        }
        Ok(())
    }

    fn index(&self, name: &str) -> Result<usize, CliError> {
        self.columns.iter().position(|column| column.typed() == name).ok_or_else(|| {
            let names: Vec<_> = self.columns.iter().map(Column::typed).collect();
            CliError::refused(format!(
                "there is no column `{name}`; there are: {}",
                names.join(", ")
            ))
        })
    }

    /// The lines of the table, none wider than `width`; as wide as they need to be without one.
    pub(crate) fn lines(&self, width: Option<usize>, has_colours: bool) -> Vec<String> {
        let widths = self.widths(width);
        let header: Vec<_> = self.columns.iter().map(|column| Cell::from(column.name)).collect();
        let line = |(row, cells): (usize, &Vec<Cell>)| {
            let (mut line, mut painted) = (String::new(), String::new());
            let shown = cells.iter().zip(&self.columns).zip(&widths);
            for ((cell, column), width) in shown {
                let Some(width) = width else { continue };
                let gap = if line.is_empty() { 0 } else { GAP };
                let text = fit(&cell.text, *width);
                let is_state = column.kind == Kind::State && row > 0;
                let in_colour = if is_state { colour::painted(&text) } else { text.clone() };
                // The blanks are counted by the text without its colour, whose codes take no room at a terminal.
                let behind = " ".repeat(width.saturating_sub(text.width()));
                line.push_str(&format!("{:gap$}{text}{behind}", ""));
                painted.push_str(&format!("{:gap$}{in_colour}{behind}", ""));
            }
            let line = line.trim_end();
            let fitting = width.map_or_else(|| line.to_owned(), |width| fit(line, width));
            // A line that is cut once more could lose the end of a colour.
            if has_colours && fitting == line { painted.trim_end().to_owned() } else { fitting }
        };
        std::iter::once(&header).chain(&self.rows).enumerate().map(line).collect()
    }

    /// Returns what is not seen at this width, in words.
    pub(crate) fn lacks(&self, width: Option<usize>) -> Option<String> {
        let widths = self.widths(width);
        let columns = self.columns.iter().zip(&widths);
        let left_out =
            columns.filter(|(column, width)| width.is_none() && column.kind != Kind::Extra);
        let left_out: Vec<_> = left_out.map(|(column, _)| column.typed()).collect();
        let is_cut = |row: &Vec<Cell>| {
            let mut cells = row.iter().zip(&widths);
            cells.any(|(cell, width)| width.is_some_and(|width| cell.text.width() > width))
        };
        match left_out.as_slice() {
            [] => self.rows.iter().any(is_cut).then(|| "what is cut".to_owned()),
            names => Some(names.join(", ")),
        }
    }

    /// Returns the width of each column; `None` for a column that is left out.
    fn widths(&self, width: Option<usize>) -> Vec<Option<usize>> {
        let natural = |index: usize| {
            let cells = self.rows.iter().filter_map(move |row| row.get(index));
            let widest = cells.map(|cell| cell.text.width()).max().unwrap_or(0);
            widest.max(self.columns[index].name.width())
        };
        let wanted: Vec<_> = (0..self.columns.len()).map(natural).collect();
        let is_extra = |index: usize| self.columns[index].kind == Kind::Extra;
        let room = width.unwrap_or(usize::MAX);
        let narrow = |index: usize| {
            let column = self.columns[index];
            // Two fifths of a line for what it is all about, before others have any.
            let least = match column.kind {
                Kind::Main => column.least.map(|least| least.max(room / 5 * 2)),
                _ => column.least,
            };
            least.map_or(wanted[index], |least| wanted[index].min(least))
        };
        let all = 0..self.columns.len();
        if width.is_none() {
            return all.map(|index| (!is_extra(index)).then_some(wanted[index])).collect();
        }
        let mut widths: Vec<_> =
            all.map(|index| (!is_extra(index)).then(|| narrow(index))).collect();
        // Whole columns go before a cell becomes too narrow to read. Columns of rank 0 always stay.
        while taken(&widths) > room {
            let left = (0..widths.len()).filter(|index| widths[*index].is_some());
            let least = left.max_by_key(|index| self.columns[*index].rank);
            match least {
                Some(index) if self.columns[index].rank > 0 => widths[index] = None,
                _ => break,
            }
        }
        for (index, wanted) in wanted.iter().enumerate() {
            let left = room.saturating_sub(taken(&widths));
            if let Some(width) = &mut widths[index]
                && self.columns[index].kind == Kind::Main
            {
                *width += left.min(wanted.saturating_sub(*width));
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
        let lines = table().lines(None, false);
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
            for line in table().lines(Some(width), false) {
                assert!(line.width() <= width, "{width}: {line}");
                assert!(!line.chars().any(char::is_control), "{line:?}");
            }
        }
    }

    #[test]
    fn the_main_column_has_most_of_the_room() {
        let mut table = Table::new(&[
            Column::whole("ID", 0),
            Column::text("SUBJECT", 1, 12),
            Column::state("STATUS", 2),
            Column::main("ERROR", 20),
            Column::extra("SIZE"),
        ]);
        let error = "e".repeat(100);
        table.row(["0123456789ab", "orders.created.in.europe", "pending", &error, "7"]);
        let line = |table: &Table, width| table.lines(Some(width), false).swap_remove(1);
        assert_eq!(
            line(&table, 80),
            format!("0123456789ab  orders.crea…  pending  {}…", "e".repeat(42))
        );
        assert_eq!(line(&table, 50), format!("0123456789ab  orders.crea…  {}…", "e".repeat(21)));
        assert_eq!(table.lacks(Some(50)).as_deref(), Some("status"));
        assert_eq!(table.lacks(Some(80)).as_deref(), Some("what is cut"));
        assert_eq!(table.lacks(Some(200)), None);
        assert_eq!(table.lacks(None), None);
        let painted = table.lines(Some(80), true).swap_remove(1);
        assert!(painted.contains("  \u{1b}[33mpending\u{1b}[0m  e"), "{painted:?}");
        table.choose(&["size".to_owned(), "ID".to_owned()]).unwrap();
        assert_eq!(table.lines(None, true), ["SIZE  ID", "7     0123456789ab"]);
        let unknown = table.choose(&["error".to_owned()]).unwrap_err().into_message();
        assert_eq!(unknown, "there is no column `error`; there are: size, id");
    }

    #[test]
    fn rows_are_sorted_as_what_they_are() {
        let mut table = Table::new(&[Column::whole("N", 0), Column::whole("DIED AT", 0)]);
        for (n, at) in [(9_u64, 5_000_000), (10, 9_000_000), (9, 1_000)] {
            table.row([Cell::number(n), Cell::age(Timestamp::from_millis(at))]);
        }
        let order = |by: &str| table.order(&by.parse().unwrap()).unwrap();
        assert_eq!(order("n"), [0, 2, 1]);
        assert_eq!(order("-N"), [1, 0, 2]);
        assert_eq!(order("died-at"), [1, 0, 2], "the youngest first");
        assert!(table.order(&"x".parse().unwrap()).is_err());
    }

    #[test]
    fn narrow_terminals_lose_the_least_important_first() {
        let header = |width| table().lines(Some(width), false).swap_remove(0);
        assert!(header(39).contains("AGE"));
        assert_eq!(header(38), "ID            SUBJECT     ERROR");
        assert_eq!(header(30), "ID            ERROR");
        assert_eq!(table().lines(Some(30), false)[2], "ab            it broke");
        assert!(table().lines(Some(30), false)[1].ends_with('…'));
    }
}
