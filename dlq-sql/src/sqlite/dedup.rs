//! Deduplication: letters of the same original message are kept as a single one.

use dlq_core::LetterId;
use dlq_core::store::rules::DedupKey;
use rusqlite::Connection;

use super::codec::{Fields, read_head};
use super::load;
use super::names::Names;
use super::query::Query;
use crate::error::Result;
use crate::values::Take as _;

/// Switches it on or off, unless it is so already.
pub(super) fn switch(conn: &Connection, names: &Names, is_dedup: bool) -> Result<()> {
    match (load::meta(conn, names, "dedup")? != 0, is_dedup) {
        (false, true) => switch_on(conn, names),
        (true, false) => set_flag(conn, names, false),
        _ => Ok(()),
    }
}

fn set_flag(conn: &Connection, names: &Names, is_dedup: bool) -> Result<()> {
    let sql = format!("UPDATE {} SET value = ?1 WHERE name = 'dedup'", names.meta);
    conn.prepare_cached(&sql)?.execute([is_dedup])?;
    Ok(())
}

/// Switches it on, and gives each key to the oldest letter of its original, unless another letter has it. Records take
/// none. Also where it was on: a key may have become free.
pub(super) fn switch_on(conn: &Connection, names: &Names) -> Result<()> {
    set_flag(conn, names, true)?;
    let Names { letters, .. } = names;
    let ids = Query::new(format!("SELECT letter_id FROM {letters} ORDER BY created_at, letter_id"));
    let ids: Vec<LetterId> = ids.all(conn, |row| Fields::after(row, 0).letter())?;
    let set_key = format!("UPDATE {letters} SET dedup_key = ?1 WHERE seq = ?2");
    // Only the ids are in memory all at once, and the rows one by one.
    for id in ids {
        let head = Query::new(&names.head_by[0]).bound(id).first(conn, read_head)?;
        let Some(row) = head.filter(|row| !row.is_record()) else { continue };
        let key = DedupKey::of(&row.letter);
        if row.key == key {
            continue;
        }
        // The unique index would refuse the whole step for one letter: a key that another has stays with it.
        let free = match key {
            Some(key) if load::owner(conn, names, &key)?.is_none() => Some(key.to_bytes()),
            _ => None,
        };
        conn.prepare_cached(&set_key)?.execute((free, row.tag))?;
    }
    Ok(())
}
