#[cfg(feature = "router")]
use std::collections::BTreeSet;

/// The durable consumer of the stream of advisories that a router of everything reads. All that watch the same share
/// one; of those that watch something only, the name is this one with `-` and a hash of what they watch.
pub const DURABLE: &str = "dlq-router";

/// Selection of watched consumers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Watch {
    /// Streams of which nothing is routed: those of dead letters, retries and advisories.
    pub(crate) own: Vec<String>,
    /// A stream, and a consumer of it or all. Empty for everything.
    pub(crate) only: Vec<(String, Option<String>)>,
}

impl Watch {
    pub(crate) fn includes_stream(&self, stream: &str) -> bool {
        !self.own.iter().any(|own| own == stream)
            && (self.only.is_empty() || self.only.iter().any(|(watched, _)| watched == stream))
    }

    pub(crate) fn includes(&self, stream: &str, consumer: &str) -> bool {
        let is = |(watched, of): &(String, Option<String>)| {
            watched == stream && of.as_ref().is_none_or(|of| of == consumer)
        };
        self.includes_stream(stream) && (self.only.is_empty() || self.only.iter().any(is))
    }
}

#[cfg(feature = "router")]
impl Watch {
    /// Returns true if this consumer is watched by its name, rather than for its stream.
    pub(crate) fn names(&self, stream: &str, consumer: &str) -> bool {
        self.only.iter().any(|(watched, of)| watched == stream && of.as_deref() == Some(consumer))
    }

    /// Returns the permissions under this `api`: to read what was given up, to see its streams and consumers, and to
    /// make them report what they gave up.
    pub(crate) fn needs(&self, api: &str) -> BTreeSet<String> {
        let all = [("*".to_owned(), None)];
        let watched = if self.only.is_empty() { &all[..] } else { &self.only };
        let needs = watched.iter().flat_map(|(stream, consumer)| {
            let consumer = consumer.as_deref().unwrap_or("*");
            [
                format!("{api}.STREAM.MSG.GET.{stream}"),
                format!("{api}.STREAM.INFO.{stream}"),
                format!("{api}.CONSUMER.LIST.{stream}"),
                format!("{api}.CONSUMER.MSG.NEXT.{stream}.{consumer}"),
            ]
        });
        needs.collect()
    }

    /// The durable consumer of those who watch the same, whatever the order in which they say it. What it acknowledges
    /// without a letter is not theirs; who watches that has another one.
    pub(crate) fn durable(&self) -> String {
        if self.only.is_empty() {
            return DURABLE.to_owned();
        }
        let mut only = self.only.clone();
        only.sort_unstable();
        only.dedup();
        let mut hasher = blake3::Hasher::new();
        for (stream, consumer) in &only {
            // Neither character stands in a name.
            hasher.update(format!("{stream}/{}\n", consumer.as_deref().unwrap_or("")).as_bytes());
        }
        let hash = hasher.finalize().to_hex();
        format!("{DURABLE}-{}", hash.get(..16).unwrap_or(&hash))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_but_our_own_unless_told_otherwise() {
        let mut watch = Watch { own: vec!["DLQ".to_owned()], only: Vec::new() };
        assert!(watch.includes("ORDERS", "billing"));
        assert!(!watch.includes("DLQ", "billing"));
        watch.only =
            vec![("ORDERS".to_owned(), Some("billing".to_owned())), ("USERS".to_owned(), None)];
        assert!(watch.includes("ORDERS", "billing") && watch.includes("USERS", "x"));
        assert!(!watch.includes("ORDERS", "other") && !watch.includes("EVENTS", "x"));
        assert!(watch.names("ORDERS", "billing") && !watch.names("USERS", "x"));
    }

    #[test]
    fn who_watches_the_same_shares_a_durable() {
        let durable = |only: &[(&str, Option<&str>)]| {
            let only =
                only.iter().map(|(stream, of)| ((*stream).to_owned(), of.map(str::to_owned)));
            Watch { own: Vec::new(), only: only.collect() }.durable()
        };
        assert_eq!(durable(&[]), DURABLE);
        let (orders, users) = (("ORDERS", None), ("USERS", Some("mail")));
        // Running routers count on it: a change makes them begin anew.
        assert_eq!(durable(&[orders]), "dlq-router-fc5473327edefc7e");
        assert_eq!(durable(&[orders, users]), durable(&[users, orders, users]));
        let all = [&[orders][..], &[users], &[orders, users], &[("USERS", None)], &[]];
        for (one, other) in [(0, 1), (0, 2), (0, 4), (1, 2), (1, 3), (3, 4)] {
            assert_ne!(durable(all[one]), durable(all[other]));
        }
    }
}
