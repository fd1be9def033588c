//! Catalogue of a table: its columns, and the key by which its rows are told apart.

use dlq_core::StoreErrorKind;
use sqlx::PgConnection;

use super::super::codec::Fields;
use super::super::query::Query;
use crate::error::{Fault, Result};
use crate::values::Take as _;

/// A table, found.
pub(super) struct FoundTable {
    pub(super) schema: String,
    pub(super) table: String,
    pub(super) columns: Vec<Listed>,
    /// Indices of the key's columns; none without a key.
    pub(super) key: Vec<usize>,
}

pub(super) struct Listed {
    number: i64,
    pub(super) name: String,
    /// As it is shown: `character varying(255)`.
    pub(super) type_name: String,
    /// Without what it was declared with: `varchar`; of a domain, what it is made of.
    pub(super) base: String,
}

pub(super) async fn find(conn: &mut PgConnection, name: &str) -> Result<FoundTable> {
    // `to_regclass` finds a name as SQL does, along the search path, and says NULL where there is none.
    let place = Query::new(
        "SELECT n.nspname::text, c.relname::text, c.relkind::text, c.oid::bigint, \
         c.relkind = 'r' AND c.relhassubclass \
         FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
         WHERE c.oid = pg_catalog.to_regclass(",
    );
    let place = place.bind(name).push(")").first(conn, |row| {
        let mut fields = Fields::of(row);
        let names = (fields.text()?, fields.text()?, fields.text()?);
        Ok((names, fields.int()?, fields.flag()?))
    });
    let ((schema, table, kind), oid, has_children) = place
        .await
        .map_err(|fault| match fault.kind() {
            StoreErrorKind::Unexpected => Fault::new(
                StoreErrorKind::InvalidConfig,
                format!("`{name}` is not the name of a table; write TABLE, SCHEMA.TABLE, or \"Odd Name\" in double quotes"),
            ),
            // Only that can be refused here.
            StoreErrorKind::InvalidConfig => Fault::new(
                StoreErrorKind::InvalidConfig,
                format!("a right is missing to find `{name}`; grant USAGE on the schema and SELECT on the table"),
            ),
            _ => fault,
        })?
        .ok_or_else(|| Fault::new(StoreErrorKind::NotFound, missing(name)))?;
    if !matches!(&*kind, "r" | "p" | "v" | "m" | "f") {
        return Err(Fault::new(
            StoreErrorKind::InvalidConfig,
            format!("`{name}` is neither a table nor a view"),
        ));
    }
    let columns = columns(conn, oid).await?;
    // Rows of tables that inherit from it may have the same key.
    let key = if has_children { Vec::new() } else { key(conn, oid, &columns).await? };
    Ok(FoundTable { schema, table, columns, key })
}

fn missing(name: &str) -> String {
    let is_folded = !name.contains('"') && name.contains(|char: char| char.is_uppercase());
    let hint = if is_folded {
        "; a name with capital letters stands in double quotes"
    } else {
        "; see its spelling, its schema, and which database the URL names"
    };
    format!("there is no table `{name}`{hint}")
}

async fn columns(conn: &mut PgConnection, oid: i64) -> Result<Vec<Listed>> {
    // A domain is followed to the type that it is made of, by which values are read.
    let query = Query::new(
        "WITH RECURSIVE base (number, type) AS (
             SELECT attnum, atttypid FROM pg_catalog.pg_attribute
             WHERE attnum > 0 AND NOT attisdropped AND attrelid = ",
    );
    let query = query.bind(oid).push(
        "::oid
             UNION ALL
             SELECT b.number, t.typbasetype FROM base b JOIN pg_catalog.pg_type t ON t.oid = b.type
             WHERE t.typtype = 'd'
         )
         SELECT a.attnum::bigint, a.attname::text, pg_catalog.format_type(a.atttypid, a.atttypmod),
                CASE WHEN t.typnamespace = 'pg_catalog'::regnamespace THEN t.typname::text ELSE '' END
         FROM base b JOIN pg_catalog.pg_type t ON t.oid = b.type AND t.typtype <> 'd'
         JOIN pg_catalog.pg_attribute a ON a.attnum = b.number AND a.attrelid = ",
    );
    let query = query.bind(oid).push("::oid ORDER BY a.attnum");
    let columns = query.all(conn, |row| {
        let mut fields = Fields::of(row);
        Ok(Listed {
            number: fields.int()?,
            name: fields.text()?,
            type_name: fields.text()?,
            base: fields.text()?,
        })
    });
    columns.await
}

/// The primary key, or the smallest unique index of columns that are never NULL.
async fn key(conn: &mut PgConnection, oid: i64, columns: &[Listed]) -> Result<Vec<usize>> {
    // An index that is partial, deferred or of expressions lets two rows have the same columns.
    let query = Query::new(
        "SELECT (SELECT string_agg(k.number::text, ' ' ORDER BY k.place)
                 FROM unnest(i.indkey::int2[]) WITH ORDINALITY k (number, place)
                 WHERE k.place <= i.indnkeyatts)
         FROM pg_catalog.pg_index i
         WHERE i.indisunique AND i.indisvalid AND i.indimmediate AND i.indpred IS NULL AND i.indexprs IS NULL
           AND NOT EXISTS (
               SELECT FROM unnest(i.indkey::int2[]) WITH ORDINALITY k (number, place)
               JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.number
               WHERE k.place <= i.indnkeyatts AND NOT a.attnotnull)
           AND i.indrelid = ",
    );
    let query = query.bind(oid).push(
        "::oid
         ORDER BY i.indisprimary DESC, i.indnkeyatts, i.indexrelid LIMIT 1",
    );
    let numbers = query.first(conn, |row| Fields::of(row).text()).await?;
    let numbers = numbers.unwrap_or_default();
    let places = numbers.split_whitespace().map(|number| {
        let number = number.parse().unwrap_or(0_i64);
        columns.iter().position(|column| column.number == number)
    });
    // Without one of its columns it would not tell rows apart.
    Ok(places.collect::<Option<Vec<_>>>().unwrap_or_default())
}
