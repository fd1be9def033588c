//! Reading a backoff from configuration: its text form, or a table with a `kind`.

use std::fmt;
use std::time::Duration;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::{Backoff, Jitter};
use crate::policy::duration;

/// The table form. What is left out is as the constructors of [`Backoff`] have it.
#[derive(Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
enum Table {
    Constant {
        #[serde(with = "duration")]
        delay: Duration,
        jitter: Option<Jitter>,
    },
    Linear {
        #[serde(with = "duration")]
        initial: Duration,
        #[serde(default, with = "duration::option")]
        increment: Option<Duration>,
        #[serde(default, with = "duration::option")]
        max: Option<Duration>,
        jitter: Option<Jitter>,
    },
    Exponential {
        #[serde(with = "duration")]
        initial: Duration,
        factor: Option<f64>,
        #[serde(default, with = "duration::option")]
        max: Option<Duration>,
        jitter: Option<Jitter>,
    },
    Decorrelated {
        #[serde(with = "duration")]
        initial: Duration,
        #[serde(default, with = "duration::option")]
        max: Option<Duration>,
    },
    Ladder {
        stages: Vec<Stage>,
    },
}

#[derive(Deserialize)]
#[serde(transparent)]
struct Stage(#[serde(with = "duration")] Duration);

impl From<Table> for Backoff {
    fn from(table: Table) -> Self {
        let (mut backoff, cap, spread) = match table {
            Table::Constant { delay, jitter } => (Self::constant(delay), None, jitter),
            Table::Linear { initial, increment, max, jitter } => {
                (Self::linear(initial, increment.unwrap_or(initial)), max, jitter)
            }
            Table::Exponential { initial, factor, max, jitter } => {
                let backoff = Self::exponential(initial);
                let backoff = match factor {
                    Some(factor) => backoff.factor(factor),
                    None => backoff,
                };
                (backoff, max, jitter)
            }
            Table::Decorrelated { initial, max } => (Self::decorrelated(initial), max, None),
            Table::Ladder { stages } => {
                (Self::ladder(stages.into_iter().map(|Stage(delay)| delay)), None, None)
            }
        };
        if let Some(cap) = cap {
            backoff = backoff.max(cap);
        }
        if let Some(spread) = spread {
            backoff = backoff.jitter(spread);
        }
        backoff
    }
}

struct Either;

impl<'de> Visitor<'de> for Either {
    type Value = Backoff;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "a backoff such as `exponential(200ms, max = 30s, jitter = full)`, or a table with a `kind`",
        )
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Backoff, E> {
        text.parse().map_err(E::custom)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Backoff, A::Error> {
        let backoff = Backoff::from(Table::deserialize(MapAccessDeserializer::new(map))?);
        // The text form checks itself; a table has not been checked yet.
        backoff.check().map_err(A::Error::custom)?;
        Ok(backoff)
    }
}

impl<'de> Deserialize<'de> for Backoff {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Either)
    }
}
