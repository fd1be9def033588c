//! A COMMIT whose answer did not come: was it carried out? Nobody but the server knows, so it is asked, by the number of
//! the transaction, before the call is made again. Else a replay would be started twice, over the next letters, and an
//! operator would be told that his edit came too late for itself.
//!
//! Numbers are not durable by themselves: a server that crashes forgets those whose transactions it had not written down,
//! and gives them to others. Its answer may then be about another's transaction. So this is for what operators do, who look
//! at what they did; what messages are acknowledged for is done again instead, which changes nothing.
//!
//! | the connection breaks | what the server says | what follows |
//! |---|---|---|
//! | before the COMMIT is there | aborted, or in progress until it has noticed | the call is made again |
//! | after that | committed | what the call came to is told |
//! | while the server still writes | in progress | it is asked again, for a minute at most |
//! | again, while it is asked | nothing | it is asked on the next connection |

use std::collections::BTreeSet;
use std::time::Duration;

use dlq_core::StoreErrorKind;
use sqlx::PgConnection;
use tokio::time::{Instant, sleep};

use super::codec::Fields;
use super::query::Query;
use crate::error::{Again, Fault, Result};
use crate::values::Take as _;

/// Pause between two questions to the server, and time limit of them.
const PAUSE: Duration = Duration::from_millis(20);
const LONGEST: Duration = Duration::from_secs(60);

/// Result of a call, if its transaction was committed.
pub(super) struct Doubt<T> {
    number: String,
    /// The answer, and whose letters became due.
    ended: (T, BTreeSet<String>),
}

impl<T> Doubt<T> {
    /// Returns the doubt that a failed COMMIT leaves; none if the server has said that it failed.
    pub(super) fn after(
        fault: &Fault,
        number: String,
        ended: (T, BTreeSet<String>),
    ) -> Option<Self> {
        (fault.again() == Again::Broken).then_some(Self { number, ended })
    }
}

/// Returns the result of the call in an earlier transaction; `None` if none was committed.
pub(super) async fn ended_before<T>(
    conn: &mut PgConnection,
    doubt: &mut Option<Doubt<T>>,
) -> Result<Option<(T, BTreeSet<String>)>> {
    let Some(number) = doubt.as_ref().map(|before| before.number.clone()) else { return Ok(None) };
    // A server that has lost its client may take some time to notice, and says `in progress` until it does.
    let began = Instant::now();
    loop {
        // One that is yet to come was lost in a crash.
        let state = Query::new("SELECT CASE WHEN n < pg_snapshot_xmax(pg_current_snapshot()) ");
        let state = state.push("THEN pg_xact_status(n) ELSE 'aborted' END FROM (SELECT ");
        let state = state.bind(number.as_str()).push("::text::xid8 AS n) asked");
        let state = state.first(conn, |row| Fields::of(row).text_or_none()).await?;
        match state.flatten().as_deref() {
            // The call is not made again: a second replay, or a second edit, would be another one.
            Some("committed") => return Ok(doubt.take().map(|before| before.ended)),
            Some("in progress") if began.elapsed() < LONGEST => sleep(PAUSE).await,
            Some("aborted") => {
                *doubt = None;
                return Ok(None);
            }
            // The transaction is too old to be known, or still in progress: only a look at the letters helps.
            _ => return Err(unknown()),
        }
    }
}

fn unknown() -> Fault {
    Fault::new(
        StoreErrorKind::Unavailable,
        "the connection broke while the call was committed, and the database cannot say whether it was carried out; look \
         before it is made again",
    )
}
