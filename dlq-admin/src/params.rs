//! Parameters of a request: those of its query and those of its body, a form or a JSON object.

use std::fmt::Display;
use std::str::FromStr;

use serde_json::Value;

use crate::refusal::Refusal;

/// Parameter that a route takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parameter {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    /// True if it may be given several times.
    pub(crate) is_many: bool,
    pub(crate) is_required: bool,
}

impl Parameter {
    pub(crate) const fn one(name: &'static str, about: &'static str) -> Self {
        Self { name, about, is_many: false, is_required: false }
    }

    pub(crate) const fn many(name: &'static str, about: &'static str) -> Self {
        Self { name, about, is_many: true, is_required: false }
    }

    pub(crate) const fn required(name: &'static str, about: &'static str) -> Self {
        Self { name, about, is_many: false, is_required: true }
    }
}

/// Parameters in the order in which they were given.
#[derive(Clone, Debug, Default)]
pub(crate) struct Params(Vec<(String, String)>);

impl Params {
    pub(crate) fn new(pairs: Vec<(String, String)>) -> Self {
        Self(pairs)
    }

    /// Reads a query or a form.
    pub(crate) fn of_form(text: &[u8]) -> Self {
        Self(form_urlencoded::parse(text).into_owned().collect())
    }

    /// Reads a JSON object of texts, numbers, truth values and lists of them.
    pub(crate) fn of_json(text: &[u8]) -> Result<Self, Refusal> {
        let object: serde_json::Map<String, Value> = serde_json::from_slice(text)
            .map_err(|error| Refusal::invalid(format!("the body is not a JSON object: {error}")))?;
        let mut params = Vec::new();
        for (name, value) in object {
            let values = match value {
                Value::Array(values) => values,
                value => vec![value],
            };
            for value in values {
                let text = match value {
                    // Programs write `null` for what they leave out, and an absent parameter is just that.
                    Value::Null => continue,
                    Value::String(text) => text,
                    Value::Bool(truth) => truth.to_string(),
                    Value::Number(number) => number.to_string(),
                    _ => {
                        return Err(Refusal::invalid(format!(
                            "`{name}` is not a text, a number, a truth value or a list of them"
                        )));
                    }
                };
                params.push((name.clone(), text));
            }
        }
        Ok(Self(params))
    }

    /// Adds the parameters of the body to those of the query.
    pub(crate) fn join(mut self, other: Self) -> Self {
        // Both are kept, so that a parameter which stands in the query and in the body is refused as given twice.
        self.0.extend(other.0);
        self
    }

    /// Drops what was left empty in a form that asks for something.
    pub(crate) fn without_empty(mut self) -> Self {
        self.0.retain(|(_, value)| !value.is_empty());
        self
    }

    /// Leaves out fields of a form that nobody has filled in, of those that may be left out.
    pub(crate) fn without_empty_of(mut self, names: &[&str]) -> Self {
        self.0.retain(|(name, value)| !value.is_empty() || !names.contains(&name.as_str()));
        self
    }

    /// Refuses parameters that a route does not take, as a mistyped filter would mean more letters than were thought of, and
    /// those that are given too often or lacking.
    pub(crate) fn check<'t>(
        &self,
        takes: impl Iterator<Item = &'t Parameter> + Clone,
    ) -> Result<(), Refusal> {
        for (index, (name, _)) in self.0.iter().enumerate() {
            let Some(taken) = takes.clone().find(|one| one.name == name) else {
                let known: Vec<_> = takes.map(|one| one.name).collect();
                // The name is whatever a client sent, and the refusal is shown to people.
                let name: String = name.chars().take(80).collect();
                return Err(Refusal::invalid(format!(
                    "there is no parameter `{name}` here; there are: {}",
                    known.join(", ")
                )));
            };
            if !taken.is_many && self.0[..index].iter().any(|(other, _)| other == name) {
                return Err(Refusal::invalid(format!("`{name}` is given more than once")));
            }
        }
        for one in takes.filter(|one| one.is_required) {
            // A blank reason would satisfy a check for presence and tell nobody anything.
            if self.text(one.name).is_none_or(|text| text.trim().is_empty()) {
                return Err(Refusal::invalid(format!("`{}` is lacking: {}", one.name, one.about)));
            }
        }
        Ok(())
    }

    /// The first value of this name.
    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(one, _)| one == name).map(|(_, value)| value.as_str())
    }

    /// Every value of this name.
    pub(crate) fn all<'s>(&'s self, name: &'s str) -> impl Iterator<Item = &'s str> + 's {
        self.0.iter().filter(move |(one, _)| one == name).map(|(_, value)| value.as_str())
    }

    /// The first value of this name, read.
    pub(crate) fn get<T: FromStr<Err: Display>>(&self, name: &str) -> Result<Option<T>, Refusal> {
        self.text(name).map(|text| read(name, text)).transpose()
    }

    /// Every value of this name, read.
    pub(crate) fn get_all<T: FromStr<Err: Display>>(&self, name: &str) -> Result<Vec<T>, Refusal> {
        self.all(name).map(|text| read(name, text)).collect()
    }

    /// Returns true if it was said; `false`, `0` and `no` say the contrary.
    pub(crate) fn is(&self, name: &str) -> bool {
        // A ticked box of a form may send any value, so all that is not a no is a yes.
        self.text(name).is_some_and(|text| !matches!(text, "false" | "0" | "no"))
    }

    /// Returns the parameters without these, for a link to the same page.
    pub(crate) fn without(&self, names: &[&str]) -> Vec<(&str, &str)> {
        let kept = self.0.iter().filter(|(name, _)| !names.contains(&name.as_str()));
        kept.map(|(name, value)| (name.as_str(), value.as_str())).collect()
    }

    /// Returns a hash of everything that was said, whatever the order of the names.
    pub(crate) fn hash(&self) -> blake3::Hash {
        // The token changes with the session, and the same request after a new login is still the same.
        let mut sorted: Vec<_> = self.0.iter().filter(|(name, _)| name != "csrf").collect();
        // The sort is stable: the order of values of one name is kept, as it may mean something.
        sorted.sort_by(|one, other| one.0.cmp(&other.0));
        let mut hasher = blake3::Hasher::new();
        for text in sorted.into_iter().flat_map(|(name, value)| [name, value]) {
            // The lengths keep texts apart, or `a=bc` and `ab=c` would be the same request.
            hasher.update(&(text.len() as u64).to_le_bytes());
            hasher.update(text.as_bytes());
        }
        hasher.finalize()
    }
}

fn read<T: FromStr<Err: Display>>(name: &str, text: &str) -> Result<T, Refusal> {
    text.trim().parse().map_err(|error| Refusal::invalid(format!("`{name}`: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TAKES: &[Parameter] = &[
        Parameter::many("status", "the status"),
        Parameter::one("limit", "how many"),
        Parameter::required("note", "why"),
    ];

    #[test]
    fn what_is_not_known_is_refused() {
        let check = |query: &str| Params::of_form(query.as_bytes()).check(TAKES.iter());
        assert!(check("status=a&status=b&limit=1&note=x").is_ok());
        for wrong in ["note=x&stat=a", "note=x&limit=1&limit=2", "status=a", "note=+"] {
            assert!(check(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_form_and_an_object_say_the_same() {
        let form = Params::of_form(b"status=a&status=b&limit=7&all=true");
        let json = Params::of_json(br#"{"limit":7,"status":["a","b"],"all":true,"x":null}"#);
        let json = json.unwrap();
        assert_eq!(form.hash(), json.hash());
        assert_eq!(json.get::<u32>("limit").unwrap(), Some(7));
        assert_eq!(json.all("status").collect::<Vec<_>>(), ["a", "b"]);
        assert!(json.is("all") && !json.is("none"));
        for wrong in ["[]", "{\"a\":{}}", "{", "{\"a\":[[1]]}"] {
            assert!(Params::of_json(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }
}
