//! Durations as people write them. The same rules as `dlq_core::policy::duration`, which a test of `dlq-tower` compares.

use std::time::Duration;

use proc_macro2::TokenStream;
use quote::quote;
use syn::LitStr;
use syn::parse::{Parse, ParseStream};

use crate::paths::Paths;

const UNITS: &[(&str, u128)] = &[
    ("d", 86_400_000_000_000),
    ("h", 3_600_000_000_000),
    ("m", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("ns", 1),
];

/// A duration with the text it was written as.
#[derive(Clone)]
pub(crate) struct DurationText {
    pub(crate) text: LitStr,
    pub(crate) value: Duration,
}

impl DurationText {
    pub(crate) fn read(text: LitStr) -> syn::Result<Self> {
        match read(&text.value()) {
            Ok(value) => Ok(Self { text, value }),
            Err(why) => Err(syn::Error::new(
                text.span(),
                format!(
                    "`{}` is not a duration: {why}; write e.g. \"200ms\", \"10s\", \"5m\" or \"1h 30m\"",
                    text.value()
                ),
            )),
        }
    }

    pub(crate) fn expand(&self, paths: &Paths) -> TokenStream {
        let private = paths.private();
        let (seconds, nanos) = (self.value.as_secs(), self.value.subsec_nanos());
        // A duration has no literal, so that its two numbers are written.
        quote!(#private::duration(#seconds, #nanos))
    }
}

impl Parse for DurationText {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        if input.peek(LitStr) {
            return Self::read(input.parse()?);
        }
        Err(input.error("expected a duration in quotes, e.g. \"10s\""))
    }
}

fn read(text: &str) -> Result<Duration, String> {
    let too_long = || "it is too long".to_owned();
    let mut rest = text.trim();
    if rest.is_empty() {
        return Err("it is empty".to_owned());
    }
    let mut nanos = 0_u128;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let (number, after) = rest.split_at(end);
        let after = after.trim_start();
        let end = after.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(after.len());
        let (unit, after) = after.split_at(end);
        if number.is_empty() {
            return Err(format!("expected a number at `{rest}`"));
        }
        if unit.is_empty() {
            return Err(format!("`{number}` has no unit"));
        }
        let Some((_, length)) = UNITS.iter().find(|(name, _)| *name == unit) else {
            return Err(format!("`{unit}` is not a unit"));
        };
        let part = number.parse::<u128>().ok().and_then(|count| count.checked_mul(*length));
        nanos = part.and_then(|part| nanos.checked_add(part)).ok_or_else(too_long)?;
        rest = after.trim_start();
    }
    let seconds = u64::try_from(nanos / 1_000_000_000).map_err(|_| too_long())?;
    Ok(Duration::new(seconds, (nanos % 1_000_000_000) as u32))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_add_up() {
        assert_eq!(read("1h 30m"), Ok(Duration::from_secs(5400)));
        assert_eq!(read(" 200 ms "), Ok(Duration::from_millis(200)));
        assert_eq!(read("1d2ns"), Ok(Duration::new(86_400, 2)));
    }

    #[test]
    fn what_is_wrong_is_said() {
        assert_eq!(read("10").unwrap_err(), "`10` has no unit");
        assert_eq!(read("10 sec").unwrap_err(), "`sec` is not a unit");
        assert_eq!(read("s").unwrap_err(), "expected a number at `s`");
        assert_eq!(read("").unwrap_err(), "it is empty");
        assert_eq!(read("99999999999999999999999999d").unwrap_err(), "it is too long");
    }
}
