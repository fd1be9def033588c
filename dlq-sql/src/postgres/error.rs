//! Meaning of errors of Postgres.

use std::error::Error;
use std::fmt;

use dlq_core::StoreErrorKind;
use sqlx::error::DatabaseError;

use super::rights::{RIGHT, missing};
use crate::error::{Again, Fault};

/// A key that is there already.
const UNIQUE: &str = "23505";

/// Returns true if the key is one of the schema, or of the catalogue: two calls at once may want it. An operator may have
/// added others, of which the second letter is never taken.
fn is_ours(error: &dyn DatabaseError) -> bool {
    let Some(constraint) = error.constraint() else { return true };
    let of_table = constraint.strip_prefix(error.table().unwrap_or_default());
    matches!(of_table, Some("_by_key" | "_id_key"))
        || ["_pkey", "_idempotency_by_key", "_schedules_by_consumer"]
            .iter()
            .any(|end| constraint.ends_with(end))
        || constraint.starts_with("pg_")
}

fn again(error: &sqlx::Error) -> Again {
    match error {
        // Whether the call was carried out is not known, and this connection will not say it any more.
        sqlx::Error::Io(_) | sqlx::Error::Protocol(_) => Again::Broken,
        sqlx::Error::Database(database) => match database.code().as_deref() {
            // Serialization failure, deadlock, a letter that has just gone, and a key that another has just taken.
            Some("40001" | "40P01" | "23503") => Again::Collided,
            Some(UNIQUE) if is_ours(&**database) => Again::Collided,
            // The server shut down, or somebody ended the connection.
            Some("57P01" | "57P02") => Again::Broken,
            // It did so itself: nothing came for too long, in a transaction or between two, or that took too long.
            Some("25P03" | "25P04" | "57P05") => Again::Broken,
            // Another connection may lead to a server that takes writes, or this one was told so when it began.
            Some("25006") => Again::Broken,
            _ => Again::No,
        },
        _ => Again::No,
    }
}

impl From<sqlx::Error> for Fault {
    fn from(error: sqlx::Error) -> Self {
        use StoreErrorKind::{Corrupt, InvalidConfig, Unavailable, Unexpected};
        let (kind, detail) = match &error {
            sqlx::Error::Database(database) => refused(&**database),
            sqlx::Error::PoolTimedOut => (
                Unavailable,
                "no connection was to be had in time; see that the database answers, and where it does, allow more connections or \
                 see what holds them"
                    .to_owned(),
            ),
            sqlx::Error::PoolClosed => (Unavailable, "the connections were closed".to_owned()),
            sqlx::Error::Io(_) | sqlx::Error::Protocol(_) | sqlx::Error::WorkerCrashed => {
                (Unavailable, "the database does not answer; see that it runs".to_owned())
            }
            sqlx::Error::Tls(_) => (
                InvalidConfig,
                "no secure connection; see `sslmode` and the certificates, and that dlq-sql was built with `postgres-tls`"
                    .to_owned(),
            ),
            // What stands in the URL may be a password.
            sqlx::Error::Configuration(_) => {
                return Self::new(
                    InvalidConfig,
                    "the URL will not do; expected postgres://USER:PASSWORD@HOST:PORT/DATABASE",
                );
            }
            sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_) => {
                (Corrupt, "what is stored cannot be read; check the tables".to_owned())
            }
            _ => (Unexpected, "the database refused".to_owned()),
        };
        let fault = Self::new(kind, detail).with_again(again(&error));
        match error {
            // Without the line of the server's own source; a right that is missing is named already.
            sqlx::Error::Database(said) if said.code().as_deref() == Some(RIGHT) => fault,
            sqlx::Error::Database(said) => fault.with_source(Said(said)),
            error => fault.with_source(error),
        }
    }
}

/// The same of an error of a statement, which names the rights that the statement needs.
pub(super) fn fault_of(sql: &str, error: sqlx::Error) -> Fault {
    match &error {
        sqlx::Error::Database(said) if said.code().as_deref() == Some(RIGHT) => {
            Fault::new(StoreErrorKind::InvalidConfig, missing(&**said, Some(sql)))
        }
        _ => Fault::from(error),
    }
}

/// An error in the words of the database.
#[derive(Debug)]
struct Said(Box<dyn DatabaseError>);

impl fmt::Display for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the database says: {}", self.0.message())
    }
}

impl Error for Said {}

/// Returns the kind and text of a refusal, by the codes of the manual of PostgreSQL, appendix A.
fn refused(error: &dyn DatabaseError) -> (StoreErrorKind, String) {
    use StoreErrorKind::{
        Corrupt, Incompatible, InvalidConfig, NotFound, Refused, Unavailable, Unexpected,
    };
    let code = error.code().unwrap_or_default();
    let (kind, detail) = match &*code {
        "25006" => (
            Unavailable,
            "the database is read-only, a replica perhaps; connect to one that takes writes",
        ),
        "57014" => (Unavailable, "the statement took longer than its time-out"),
        "25P03" | "25P04" => (
            Unavailable,
            "the call stood still for so long that the database took it back; try again",
        ),
        "55P03" => (Unavailable, "another holds a lock; try again"),
        "53100" => (Unavailable, "the disk of the database is full; make room and try again"),
        "53300" => (
            Unavailable,
            "the database has too many connections; allow it more, or this program fewer",
        ),
        "40001" | "40P01" | "23503" => (Unavailable, "others change the same letters; try again"),
        UNIQUE if is_ours(error) => (Unavailable, "others change the same letters; try again"),
        RIGHT => return (InvalidConfig, missing(error, None)),
        "28000" | "28P01" => {
            (InvalidConfig, "the database refused the login; see user and password")
        }
        "3D000" => (NotFound, "there is no such database; see the URL"),
        "3F000" => (NotFound, "there is no such schema; create it, or let the migration do so"),
        "42P01" => {
            (NotFound, "the tables are not there; run `dlq migrate`, or let opening create them")
        }
        "42703" | "42883" => {
            (Incompatible, "the tables are not those that this program knows; run `dlq migrate`")
        }
        // These are of what was written, and nothing else need be wrong: a limit of size, bytes that the encoding of the
        // database does not have, a constraint or trigger of the operator.
        "54000" | "22001" | "22003" | "22021" | "22P05" | "23502" | UNIQUE | "23514" | "23P01"
        | "P0001" => (Refused, "a limit, constraint or trigger of the database keeps it out"),
        // What was prepared on a connection is not there when it is run, or another's is.
        "26000" | "42P05" => (
            InvalidConfig,
            "a pooler in transaction mode stands before the database; say so (`PostgresBuilder::pooler`, for the command \
             `pooler=true` in the URL), or connect past it",
        ),
        code => match code.get(..2) {
            Some("08" | "57" | "58") => {
                (Unavailable, "the database stopped or the connection broke; try again")
            }
            Some("53") => (Unavailable, "the database is short of resources; try again"),
            Some("XX") => (Corrupt, "the database reports damage; see its log"),
            _ => (Unexpected, "the database refused"),
        },
    };
    (kind, detail.to_owned())
}
