use std::fmt;

use comfy_table::{ContentArrangement, Row, presets};

use super::escape;

/// A table that fits the terminal, one line a row; without a terminal it is as wide as it needs to be.
pub(crate) struct Table(comfy_table::Table);

impl Table {
    pub(crate) fn new(columns: &[&str]) -> Self {
        let mut table = comfy_table::Table::new();
        table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
        table.set_header(columns.to_vec());
        Self(table)
    }

    /// Adds a row; every cell is made fit for a terminal.
    pub(crate) fn row<I: IntoIterator<Item = String>>(&mut self, cells: I) {
        let mut row = Row::from(cells.into_iter().map(|cell| escape(&cell)));
        row.max_height(1);
        self.0.add_row(row);
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.trim_fmt())
    }
}
