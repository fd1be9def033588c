//! Pages of the console over a store in PostgreSQL.

use dlq_core::DeadLetters;

use super::{Failed, with_server};
use crate::console::{count, fill, measure};
use crate::measure::Size;

pub(crate) fn run(size: Size) -> Result<(), Failed> {
    with_server(|mut bench| async move {
        fill(&bench.store, count(size)).await?;
        bench.sql("ANALYZE dlq_events").await?;
        measure(DeadLetters::new(bench.store), size).await
    })
}
