use super::Dialect;

/// A key by which a library is known, and the parts of its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Chasquimq {
        queue: String,
    },
    /// `base` begins the names of jobs: `PREFIX:QUEUE`.
    Bullmq {
        base: String,
        queue: String,
    },
    Rq {
        queue: String,
    },
    /// `base` is `NAMESPACE:QUEUE`.
    Dramatiq {
        base: String,
        queue: String,
    },
}

impl Kind {
    /// Tells the library by the name of its key, and returns the key itself.
    pub(super) fn of(key: &str) -> Option<(String, Self)> {
        let queue_of = |base: &str| {
            let (_, queue) = base.rsplit_once(':')?;
            (!queue.is_empty()).then(|| queue.to_owned())
        };
        let chasquimq = |queue: &str| {
            let kind = Self::Chasquimq { queue: queue.to_owned() };
            (!queue.is_empty() && !queue.contains(['{', '}']))
                .then(|| (format!("{{chasqui:{queue}}}:dlq"), kind))
        };
        if let Some(queue) =
            key.strip_prefix("{chasqui:").and_then(|rest| rest.strip_suffix("}:dlq"))
        {
            return chasquimq(queue);
        }
        if let Some(queue) = key.strip_prefix("chasqui:") {
            return chasquimq(queue);
        }
        // Before BullMQ, whose suffix a queue of RQ may end with.
        let kind = if let Some(queue) = key.strip_prefix("rq:failed:") {
            let queue = (!queue.is_empty()).then(|| queue.to_owned())?;
            Self::Rq { queue }
        } else if let Some(base) = key.strip_suffix(".XQ") {
            Self::Dramatiq { base: base.to_owned(), queue: queue_of(base)? }
        } else {
            let base = key.strip_suffix(":failed")?;
            Self::Bullmq { base: base.to_owned(), queue: queue_of(base)? }
        };
        Some((key.to_owned(), kind))
    }

    pub(super) const fn dialect(&self) -> Dialect {
        match self {
            Self::Chasquimq { .. } => Dialect::Chasquimq,
            Self::Bullmq { .. } => Dialect::Bullmq,
            Self::Rq { .. } => Dialect::Rq,
            Self::Dramatiq { .. } => Dialect::Dramatiq,
        }
    }

    /// Returns true if letters are entries of a stream; otherwise they are members of a sorted set.
    pub(super) const fn is_stream(&self) -> bool {
        matches!(self, Self::Chasquimq { .. })
    }

    /// Returns true if letters can be sent back as the library itself does it.
    pub(super) const fn can_replay(&self) -> bool {
        !matches!(self, Self::Rq { .. })
    }

    /// Returns true if the score of a member is the time in milliseconds at which it died.
    pub(super) const fn is_by_time(&self) -> bool {
        matches!(self, Self::Bullmq { .. } | Self::Dramatiq { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_told_by_their_keys() {
        let of = |key: &str| Kind::of(key).map(|(key, kind)| (key, kind.dialect()));
        let known = [
            ("{chasqui:emails}:dlq", "{chasqui:emails}:dlq", Dialect::Chasquimq),
            ("chasqui:emails", "{chasqui:emails}:dlq", Dialect::Chasquimq),
            ("bull:emails:failed", "bull:emails:failed", Dialect::Bullmq),
            ("{shop}:emails:failed", "{shop}:emails:failed", Dialect::Bullmq),
            ("rq:failed:emails", "rq:failed:emails", Dialect::Rq),
            ("rq:failed:a:failed", "rq:failed:a:failed", Dialect::Rq),
            ("dramatiq:emails.XQ", "dramatiq:emails.XQ", Dialect::Dramatiq),
        ];
        for (asked, key, dialect) in known {
            assert_eq!(of(asked), Some((key.to_owned(), dialect)), "{asked}");
        }
        for other in [
            "orders",
            "{orders}:dlq",
            "chasqui:",
            "{chasqui:}:dlq",
            "failed",
            ":failed",
            "rq:failed:",
            "a.XQ",
            "chasqui:{a}",
        ] {
            assert_eq!(of(other), None, "{other}");
        }
        let kind = Kind::of("{shop}:emails:failed").unwrap().1;
        assert_eq!(kind, Kind::Bullmq { base: "{shop}:emails".into(), queue: "emails".into() });
    }
}
