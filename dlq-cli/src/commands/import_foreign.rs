//! Letters that were imported from elsewhere, counted.

use std::collections::BTreeMap;
use std::fmt::Display;

use dlq_core::DeadLetter;
use dlq_core::store::Receipt;

use super::Context;
use crate::error::CliError;
use crate::output::escape;

/// Number of bad ones that are said in words; all are counted.
const SAID: u64 = 20;

/// Counts of an import.
pub(crate) struct Imported {
    /// The word for what is imported: `rows`.
    what: &'static str,
    by_receipt: BTreeMap<&'static str, u64>,
    bad: u64,
}

/// Says that an import may be given again.
pub(crate) fn again(error: CliError) -> CliError {
    error.hinting("what was imported is in the store; the same command imports the rest")
}

impl Imported {
    pub(crate) const fn of(what: &'static str) -> Self {
        Self { what, by_receipt: BTreeMap::new(), bad: 0 }
    }

    /// Returns true if some were no letters.
    pub(crate) const fn has_bad(&self) -> bool {
        self.bad > 0
    }

    /// Says and counts those that are no letters; the letters are left.
    pub(crate) fn sort_out<E: Display>(
        &mut self,
        page: Vec<Result<DeadLetter, E>>,
    ) -> Vec<DeadLetter> {
        let mut letters = Vec::with_capacity(page.len());
        for one in page {
            match one {
                Ok(letter) => letters.push(letter),
                Err(bad) => {
                    match self.bad {
                        ..SAID => say!("{}", escape(&bad.to_string())),
                        SAID => say!("more {} cannot be read; they are counted", self.what),
                        _ => {}
                    }
                    self.bad += 1;
                }
            }
        }
        letters
    }

    pub(crate) fn count(&mut self, receipts: &[Receipt]) {
        for receipt in receipts {
            let name = match receipt {
                Receipt::Stored => "stored",
                Receipt::Unchanged => "unchanged",
                Receipt::Reopened => "reopened",
                Receipt::Superseded => "superseded",
                Receipt::Conflicting(_) => "conflicting",
                Receipt::Merged(_) => "merged",
                _ => "other",
            };
            *self.by_receipt.entry(name).or_default() += 1;
        }
    }

    pub(crate) fn show(&self, context: &mut Context) -> Result<(), CliError> {
        let letters: u64 = self.by_receipt.values().sum();
        let what = self.what;
        if let Some(count) = self.by_receipt.get("conflicting") {
            say!(
                "{count} {what} have other bytes than when they were imported before; both letters are kept"
            );
        }
        if !context.out.is_table() {
            let mut document = serde_json::json!({
                "letters": letters,
                "receipts": self.by_receipt,
            });
            document[format!("bad_{what}")] = self.bad.into();
            return context.out.document(&document);
        }
        let mut text = format!("imported: {letters} letters");
        for (receipt, count) in &self.by_receipt {
            text.push_str(&format!(", {count} {receipt}"));
        }
        if self.bad > 0 {
            text.push_str(&format!(", {} bad {what}", self.bad));
        }
        context.out.line(text)
    }
}
