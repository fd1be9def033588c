//! `mongodb://…`: a store in MongoDB.
//!
//! `mongodb://[USER:PASSWORD@]HOST[:PORT][,HOST…][/DATABASE][?prefix=NAME&…]`, or `mongodb+srv://`. All but `prefix` is read
//! by the driver.

#[cfg(any(feature = "kafka", feature = "nats", feature = "postgres", feature = "redis"))]
use dlq_core::{StoreError, StoreErrorKind};
use dlq_mongo::{MongoBuilder, MongoStore};

/// Returns true if a URL of this scheme is a store in MongoDB.
pub(crate) fn is_store(scheme: &str) -> bool {
    matches!(scheme, "mongodb" | "mongodb+srv")
}

/// Reads how the store at this URL is opened.
pub(crate) fn builder(url: &str) -> MongoBuilder {
    let (url, prefix) = without_prefix(url);
    let builder = MongoStore::builder(url).max_connections(4);
    match prefix {
        Some(prefix) => builder.prefix(prefix),
        None => builder,
    }
}

/// Returns true if there is a store at this URL.
#[cfg(any(feature = "kafka", feature = "nats", feature = "postgres", feature = "redis"))]
pub(crate) async fn is_there(url: &str) -> Result<bool, StoreError> {
    // A migration would create what is looked for.
    match builder(url).migrate(false).open().await {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == StoreErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// The database that a store's URL names, where it is one of MongoDB.
pub(crate) fn database(url: &str) -> Option<String> {
    let (scheme, _) = url.split_once("://")?;
    is_store(scheme).then(|| without_prefix(url).0)
}

/// Returns the URL as the driver takes it, and the prefix that it named.
fn without_prefix(url: &str) -> (String, Option<&str>) {
    let (place, query) = url.split_once('?').unwrap_or((url, ""));
    let parts = query.split('&').filter(|part| !part.is_empty());
    // The driver refuses options that it does not know.
    let (ours, theirs): (Vec<_>, Vec<_>) = parts.partition(|part| part.starts_with("prefix="));
    let url = match &theirs[..] {
        [] => place.to_owned(),
        theirs => format!("{place}?{}", theirs.join("&")),
    };
    (url, ours.last().and_then(|part| part.strip_prefix("prefix=")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_prefix_is_ours_and_the_rest_the_drivers() {
        let read = |url| {
            let (url, prefix) = without_prefix(url);
            (url, prefix.map(str::to_owned))
        };
        let of = |url: &str, prefix: Option<&str>| (url.to_owned(), prefix.map(str::to_owned));
        assert_eq!(read("mongodb://h/shop"), of("mongodb://h/shop", None));
        assert_eq!(read("mongodb://h/shop?prefix=dead_"), of("mongodb://h/shop", Some("dead_")));
        assert_eq!(
            read("mongodb://a,b/shop?replicaSet=rs&prefix=x_&tls=true"),
            of("mongodb://a,b/shop?replicaSet=rs&tls=true", Some("x_"))
        );
    }
}
