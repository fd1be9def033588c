//! From a URL to a store.

use dlq_core::DeadLetters;
use dlq_sql::sqlite::SqliteStore;

use crate::error::CliError;

/// Opens the store that `--from` names. Never creates one.
pub(crate) async fn open(from: Option<&str>) -> Result<DeadLetters, CliError> {
    let url = from.ok_or_else(|| {
        CliError::refused("where are the dead letters? say --from sqlite://dlq.db, or set DLQ_FROM")
    })?;
    match url.split_once("://") {
        Some(("sqlite", path)) if !path.is_empty() => {
            let opened = SqliteStore::builder().path(path).create(false).open().await;
            let store = opened.map_err(|error| CliError::from(error).about(url))?;
            Ok(DeadLetters::new(store))
        }
        Some((
            scheme @ ("postgres" | "postgresql" | "redis" | "mongodb" | "nats" | "kafka"),
            _,
        )) => Err(CliError::refused(format!(
            "this build of dlq cannot read `{scheme}://`; it reads sqlite://PATH"
        ))),
        _ => Err(CliError::refused(format!(
            "`{}` does not name dead letters; expected sqlite://PATH, e.g. sqlite://dlq.db",
            without_password(url)
        ))),
    }
}

/// A URL fit to be shown.
pub(crate) fn without_password(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let authority_end = rest.find('/').unwrap_or(rest.len());
    match rest[..authority_end].rsplit_once('@') {
        Some((user, _)) => {
            let user_name = user.split(':').next().unwrap_or_default();
            format!("{scheme}://{user_name}@{}", &rest[user.len() + 1..])
        }
        None => url.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::without_password;

    #[test]
    fn a_password_is_never_shown() {
        assert_eq!(without_password("postgres://ana:s3cret@h/db"), "postgres://ana@h/db");
        assert_eq!(without_password("postgres://ana:s@cret@h/db"), "postgres://ana@h/db");
        assert_eq!(without_password("sqlite://a@b/dlq.db"), "sqlite://a@b/dlq.db");
        assert_eq!(without_password("dlq.db"), "dlq.db");
    }
}
