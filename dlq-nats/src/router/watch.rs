/// Which consumers are watched.
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
    }
}
