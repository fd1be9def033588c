//! The text form of a backoff: a name, the first delay, and named settings.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use super::{Backoff, Jitter};
use crate::policy::InvalidPolicy;
use crate::policy::duration::{format, parse};

impl fmt::Display for Backoff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let spread = |jitter: &Jitter| match jitter {
            Jitter::None => String::new(),
            jitter => format!(", jitter = {jitter}"),
        };
        match self {
            Self::Constant { delay, jitter } => {
                write!(f, "constant({}{})", format(*delay), spread(jitter))
            }
            Self::Linear { initial, increment, max, jitter } => write!(
                f,
                "linear({}, increment = {}, max = {}{})",
                format(*initial),
                format(*increment),
                format(*max),
                spread(jitter)
            ),
            Self::Exponential { initial, factor, max, jitter } => write!(
                f,
                "exponential({}, factor = {factor}, max = {}, jitter = {jitter})",
                format(*initial),
                format(*max)
            ),
            Self::Decorrelated { initial, max } => {
                write!(f, "decorrelated({}, max = {})", format(*initial), format(*max))
            }
            Self::Ladder { stages } => {
                let stages: Vec<_> = stages.iter().map(|stage| format(*stage)).collect();
                write!(f, "ladder({})", stages.join(", "))
            }
            Self::Custom(delays) => write!(f, "custom({delays:?})"),
        }
    }
}

/// The arguments between the parentheses.
struct Arguments<'a> {
    name: &'a str,
    delays: Vec<Duration>,
    named: Vec<(&'a str, &'a str)>,
}

impl<'a> Arguments<'a> {
    fn read(text: &'a str) -> Result<Self, InvalidPolicy> {
        let shape = || {
            InvalidPolicy::new(format!(
                "`{}` is not a backoff; write e.g. `exponential(200ms, max = 30s, jitter = full)` or `ladder(30s, 5m)`",
                text.chars().take(80).collect::<String>()
            ))
        };
        let (name, rest) = text.trim().split_once('(').ok_or_else(shape)?;
        let inside = rest.trim_end().strip_suffix(')').ok_or_else(shape)?;
        let mut arguments = Self { name: name.trim(), delays: Vec::new(), named: Vec::new() };
        for part in inside.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            match part.split_once('=') {
                Some((key, value)) => {
                    let key = key.trim();
                    if arguments.named.iter().any(|(name, _)| *name == key) {
                        return Err(InvalidPolicy::new(format!("`{key}` is set twice")));
                    }
                    arguments.named.push((key, value.trim().trim_matches('"')));
                }
                None => arguments.delays.push(read_duration(part)?),
            }
        }
        Ok(arguments)
    }

    /// Takes a named setting.
    fn take<T>(
        &mut self,
        key: &str,
        read: impl FnOnce(&str) -> Result<T, InvalidPolicy>,
    ) -> Result<Option<T>, InvalidPolicy> {
        let found = self.named.iter().position(|(name, _)| *name == key);
        found.map(|index| read(self.named.remove(index).1)).transpose()
    }

    /// The one delay in front, and nothing else left over.
    fn finish(self, backoff: Backoff) -> Result<Backoff, InvalidPolicy> {
        if let Some((key, _)) = self.named.first() {
            return Err(InvalidPolicy::new(format!("`{}` has no setting `{key}`", self.name)));
        }
        if self.delays.len() > 1 && !matches!(backoff, Backoff::Ladder { .. }) {
            return Err(InvalidPolicy::new(format!(
                "`{}` takes one delay; found {}",
                self.name,
                self.delays.len()
            )));
        }
        Ok(backoff)
    }

    fn initial(&self) -> Result<Duration, InvalidPolicy> {
        self.delays.first().copied().ok_or_else(|| {
            InvalidPolicy::new(format!("`{0}` needs a delay, e.g. `{0}(200ms)`", self.name))
        })
    }
}

fn read_duration(text: &str) -> Result<Duration, InvalidPolicy> {
    parse(text.trim_matches('"')).map_err(|error| InvalidPolicy::new(error.to_string()))
}

fn read_jitter(text: &str) -> Result<Jitter, InvalidPolicy> {
    text.parse().map_err(|error: crate::UnknownWord| InvalidPolicy::new(error.to_string()))
}

fn read_factor(text: &str) -> Result<f64, InvalidPolicy> {
    text.parse().map_err(|_| InvalidPolicy::new(format!("`factor = {text}` is not a number")))
}

impl FromStr for Backoff {
    type Err = InvalidPolicy;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut arguments = Arguments::read(text)?;
        let backoff = match arguments.name {
            "constant" => Self::constant(arguments.initial()?),
            "linear" => {
                let initial = arguments.initial()?;
                Self::linear(
                    initial,
                    arguments.take("increment", read_duration)?.unwrap_or(initial),
                )
            }
            "exponential" => Self::exponential(arguments.initial()?),
            "decorrelated" => Self::decorrelated(arguments.initial()?),
            "ladder" => Self::ladder(std::mem::take(&mut arguments.delays)),
            other => {
                return Err(InvalidPolicy::new(format!(
                    "`{other}` is not a backoff; expected one of: constant, linear, exponential, decorrelated, ladder"
                )));
            }
        };
        let capped = matches!(
            backoff,
            Self::Linear { .. } | Self::Exponential { .. } | Self::Decorrelated { .. }
        );
        let spread = matches!(
            backoff,
            Self::Constant { .. } | Self::Linear { .. } | Self::Exponential { .. }
        );
        let mut result = backoff;
        if capped && let Some(max) = arguments.take("max", read_duration)? {
            result = result.max(max);
        }
        if spread && let Some(jitter) = arguments.take("jitter", read_jitter)? {
            result = result.jitter(jitter);
        }
        if matches!(result, Self::Exponential { .. })
            && let Some(factor) = arguments.take("factor", read_factor)?
        {
            result = result.factor(factor);
        }
        // `finish` comes after all settings were taken: what is left is a setting that this kind does not have.
        let result = arguments.finish(result)?;
        // A text from configuration is refused when it is read, not when the first message fails.
        result.check()?;
        Ok(result)
    }
}
