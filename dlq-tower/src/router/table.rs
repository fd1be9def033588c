use std::collections::HashMap;

use dlq_core::SubjectPattern;

use super::pattern::{covers, meet};
use crate::handler::InvalidConfig;

/// Handlers by subject or event, as numbers.
#[derive(Debug, Default)]
pub(super) struct Table {
    literal: HashMap<String, usize>,
    // In an order in which no pattern stands behind one that covers it.
    wild: Vec<(SubjectPattern, usize)>,
}

impl Table {
    /// Adds a route, and refuses one that is in conflict with another.
    pub(super) fn add(
        &mut self,
        what: &str,
        pattern: &str,
        handler: usize,
    ) -> Result<(), InvalidConfig> {
        let pattern: SubjectPattern = pattern.parse().map_err(InvalidConfig::pattern)?;
        let twice = || {
            InvalidConfig::new(format!("there are two routes for the {what} `{pattern}`; drop one"))
        };
        if pattern.is_literal() {
            let known = self.literal.insert(pattern.as_str().to_owned(), handler);
            return known.map_or(Ok(()), |_| Err(twice()));
        }
        let mut place = self.wild.len();
        for (index, (known, _)) in self.wild.iter().enumerate() {
            let (known, new) = (known.as_str(), pattern.as_str());
            match (covers(known, new), covers(new, known)) {
                (true, true) => return Err(twice()),
                // It goes before the first pattern that covers it, since `find` takes the first that matches.
                (true, false) => place = place.min(index),
                (false, false) if meet(known, new) => {
                    return Err(InvalidConfig::new(format!(
                        "the routes for the {what}s `{known}` and `{new}` meet, and neither is narrower; \
                         add no pattern that crosses another"
                    )));
                }
                _ => {}
            }
        }
        self.wild.insert(place, (pattern, handler));
        Ok(())
    }

    /// The handler of the narrowest route that matches.
    pub(super) fn find(&self, subject: &str) -> Option<usize> {
        let wild = || self.wild.iter().find(|(pattern, _)| pattern.matches(subject));
        self.literal.get(subject).copied().or_else(|| wild().map(|(_, handler)| *handler))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_narrowest_wins_in_any_order_of_declaration() {
        let routes = ["orders.>", "orders.*", "orders.created", ">", "*.eu.>", "orders.*.x.>"];
        let routes = &routes[..4];
        for shift in 0..routes.len() {
            let mut table = Table::default();
            for index in 0..routes.len() {
                let route = (index + shift) % routes.len();
                table.add("subject", routes[route], route).unwrap();
            }
            let found = |subject: &str| table.find(subject).map(|route| routes[route]);
            assert_eq!(found("orders.created"), Some("orders.created"));
            assert_eq!(found("orders.paid"), Some("orders.*"));
            assert_eq!(found("orders.eu.paid"), Some("orders.>"));
            assert_eq!(found("payments"), Some(">"));
        }
    }

    #[test]
    fn what_crosses_is_refused_and_named() {
        let mut table = Table::default();
        table.add("subject", "orders.*", 0).unwrap();
        let error = table.add("subject", "*.created", 1).unwrap_err().to_string();
        assert!(error.contains("`orders.*` and `*.created` meet"), "{error}");
        let error = table.add("subject", "orders.*", 1).unwrap_err().to_string();
        assert!(error.contains("two routes"), "{error}");
        table.add("subject", "payments.*", 1).unwrap();
        assert_eq!(table.find("nothing"), None);
    }
}
