//! Rules as they are written.

use std::str::FromStr;

/// Rule by which part of a message is masked. See the [module's page](super) for how it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule(pub(super) Part);

/// Part of a message that a rule is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Payload(Path),
    Header(HeaderName),
    Key,
}

/// Steps from the whole payload to the values that are masked.
pub(super) type Path = Vec<Step>;

/// Step into a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Step {
    /// True for `..`: the step is made from each value within, too.
    pub(super) is_deep: bool,
    pub(super) to: To,
}

/// Children that a step leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum To {
    Field(String),
    Element(usize),
    Any,
}

/// Name of headers; `None` for all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HeaderName(Option<String>);

impl HeaderName {
    /// Returns true if a header of this name is meant.
    pub(super) fn is(&self, name: &[u8]) -> bool {
        // Clients of HTTP and NATS write the same header in several cases, and a mask must not depend on which.
        self.0.as_ref().is_none_or(|own| own.as_bytes().eq_ignore_ascii_case(name))
    }
}

/// Text that is no rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidRule {
    rule: String,
    why: &'static str,
}

impl std::fmt::Display for InvalidRule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { rule, why } = self;
        write!(
            f,
            "cannot mask `{rule}`: {why}; write $.NAME, $.NAME[0], $.NAME[*], $..NAME, headers.NAME or key"
        )
    }
}

impl std::error::Error for InvalidRule {}

impl FromStr for Rule {
    type Err = InvalidRule;

    fn from_str(text: &str) -> Result<Self, InvalidRule> {
        let refused = |why| InvalidRule { rule: text.to_owned(), why };
        if text == "key" {
            return Ok(Self(Part::Key));
        }
        // The name of a header may have dots, so all of the rest is the name.
        if let Some(name) = text.strip_prefix("headers.") {
            return match name {
                "" => Err(refused("it names no header")),
                "*" => Ok(Self(Part::Header(HeaderName(None)))),
                name => Ok(Self(Part::Header(HeaderName(Some(name.to_owned()))))),
            };
        }
        let Some(mut rest) = text.strip_prefix('$') else {
            return Err(refused("it begins with none of `$`, `headers.` and `key`"));
        };
        let mut path = Path::new();
        while !rest.is_empty() {
            let (step, behind) = step(rest).map_err(refused)?;
            path.push(step);
            rest = behind;
        }
        Ok(Self(Part::Payload(path)))
    }
}

/// Reads one step, and returns what is behind it.
fn step(text: &str) -> Result<(Step, &str), &'static str> {
    let (is_deep, rest) = match (text.strip_prefix(".."), text.strip_prefix('.')) {
        (Some(rest), _) => (true, rest),
        (None, Some(rest)) => (false, rest),
        (None, None) => (false, text),
    };
    let is_bracket = rest.starts_with('[');
    // By RFC 9535 a bracket follows `..` or nothing, and never a single dot.
    if is_bracket && (is_deep || rest.len() == text.len()) {
        let (to, behind) = bracket(&rest[1..])?;
        return Ok((Step { is_deep, to }, behind));
    }
    if is_bracket || rest.len() == text.len() {
        return Err("a step is none of `.NAME`, `..NAME` and `[…]`");
    }
    if let Some(behind) = rest.strip_prefix('*') {
        return Ok((Step { is_deep, to: To::Any }, behind));
    }
    // All that is not plain has to be in quotes: a rule that is cut short would mask another field than its author
    // thinks.
    let is_plain = |char: char| char.is_alphanumeric() || matches!(char, '_' | '-');
    let end = rest.find(|char| !is_plain(char)).unwrap_or(rest.len());
    let (name, behind) = rest.split_at(end);
    if name.is_empty() {
        return Err("a name is missing; one with other characters is written ['NAME']");
    }
    Ok((Step { is_deep, to: To::Field(name.to_owned()) }, behind))
}

/// Reads what stands in brackets, and returns what is behind them.
fn bracket(text: &str) -> Result<(To, &str), &'static str> {
    const OTHER: &str =
        "brackets hold a number, a name in quotes or `*`; slices and conditions are not known";
    if let Some(quote @ ('\'' | '"')) = text.chars().next() {
        let (name, behind) = text[1..].split_once(quote).ok_or("a quote is not closed")?;
        // An escape would be a second way to write a name, of which one would be forgotten.
        if name.contains('\\') {
            return Err(
                "a name in quotes has a `\\`, which is not known; use quotes of the other kind",
            );
        }
        let behind = behind.strip_prefix(']').ok_or(OTHER)?;
        return Ok((To::Field(name.to_owned()), behind));
    }
    let (inner, behind) = text.split_once(']').ok_or("a bracket is not closed")?;
    match inner {
        "*" => Ok((To::Any, behind)),
        number => Ok((To::Element(number.parse().map_err(|_| OTHER)?), behind)),
    }
}
