//! JSON with some values replaced, token by token: every other one stays as it is.
//!
//! A document of `serde_json`, on which libraries for JSONPath work, would round numbers, and keep only the last of several
//! fields of one name: a rule would then miss the others.

use serde::de::IgnoredAny;

use super::MASK;
use super::rule::{Path, Step, To};

/// Depth of values that are looked into; what is deeper is not read as JSON.
// The scan recurses, and a payload of brackets alone must not end the process by its depth.
const DEEPEST: usize = 256;

/// A payload with values replaced.
#[derive(Debug)]
pub(super) struct Masked {
    pub(super) text: String,
    /// Number of values that held the mask already.
    pub(super) idle: usize,
}

/// Replaces the values that paths lead to; `None` for what is not JSON, or too deep.
pub(super) fn masked(payload: &[u8], paths: &[Path]) -> Option<Masked> {
    let json = std::str::from_utf8(payload).ok()?;
    // It is checked as a whole first, so that the scan below never meets text of which it could take a part for
    // something else.
    serde_json::from_str::<IgnoredAny>(json).ok()?;
    let mut scan = Scan { json, at: 0, copied: 0, out: String::new(), idle: 0 };
    let steps: Vec<_> = paths.iter().map(Vec::as_slice).collect();
    scan.value(&steps, 0)?;
    scan.out.push_str(&json[scan.copied..]);
    Some(Masked { text: scan.out, idle: scan.idle })
}

/// Scan of a text that is valid JSON, so that single bytes tell what is what.
struct Scan<'a> {
    json: &'a str,
    at: usize,
    /// End of the text that is in `out`, as it is or masked.
    copied: usize,
    out: String,
    idle: usize,
}

/// Child of a value.
enum Child<'a> {
    /// A field; `None` for a name that is no text, such as half of a surrogate pair.
    Field(Option<&'a str>),
    Element(usize),
}

impl Scan<'_> {
    /// Passes a value, to which these steps are left from here. `None` where it is too deep.
    fn value(&mut self, steps: &[&[Step]], depth: usize) -> Option<()> {
        if depth > DEEPEST {
            return None;
        }
        self.blanks();
        // One rule that ends here is enough: what others would mask within goes with the whole value.
        if steps.iter().any(|left| left.is_empty()) {
            return self.replace(depth);
        }
        match self.byte() {
            Some(b'{') => self.fields(steps, depth),
            Some(b'[') => self.elements(steps, depth),
            Some(b'"') => {
                self.string();
                Some(())
            }
            _ => {
                let is_end =
                    |byte: &u8| matches!(byte, b',' | b']' | b'}') || byte.is_ascii_whitespace();
                let rest = &self.json.as_bytes()[self.at..];
                self.at += rest.iter().position(is_end).unwrap_or(rest.len());
                Some(())
            }
        }
    }

    /// Passes a value, and writes the mask in its place.
    fn replace(&mut self, depth: usize) -> Option<()> {
        let start = self.at;
        // The value is passed by the same code without any steps, since only that knows where it ends.
        self.value(&[], depth)?;
        self.out.push_str(&self.json[self.copied..start]);
        self.out.push_str(&format!("\"{MASK}\""));
        self.idle += usize::from(self.json[start..self.at].trim_matches('"') == MASK);
        self.copied = self.at;
        Some(())
    }

    fn fields(&mut self, steps: &[&[Step]], depth: usize) -> Option<()> {
        self.at += 1;
        loop {
            self.blanks();
            match self.byte()? {
                b'}' => break,
                b',' => self.at += 1,
                _ => {
                    // The name may be written with escapes.
                    // Read as it was written, `c\u0061rd` would slip through a rule for `card`.
                    let name = serde_json::from_str::<String>(self.string()).ok();
                    self.blanks();
                    // The colon.
                    self.at += 1;
                    self.value(&next(steps, &Child::Field(name.as_deref())), depth + 1)?;
                }
            }
        }
        self.at += 1;
        Some(())
    }

    fn elements(&mut self, steps: &[&[Step]], depth: usize) -> Option<()> {
        self.at += 1;
        let mut index = 0;
        loop {
            self.blanks();
            match self.byte()? {
                b']' => break,
                b',' => self.at += 1,
                _ => {
                    self.value(&next(steps, &Child::Element(index)), depth + 1)?;
                    index += 1;
                }
            }
        }
        self.at += 1;
        Some(())
    }

    fn byte(&self) -> Option<u8> {
        self.json.as_bytes().get(self.at).copied()
    }

    fn blanks(&mut self) {
        while self.byte().is_some_and(|byte| byte.is_ascii_whitespace()) {
            self.at += 1;
        }
    }

    /// Passes a string, and returns it with its quotes.
    fn string(&mut self) -> &str {
        let start = self.at;
        self.at += 1;
        while let Some(byte) = self.byte() {
            match byte {
                b'"' => {
                    self.at += 1;
                    break;
                }
                // The escaped byte is skipped with its backslash. A `\u` leaves four digits, which are plain bytes.
                b'\\' => self.at += 2,
                _ => self.at += 1,
            }
        }
        &self.json[start..self.at]
    }
}

/// Returns the steps that are left from a child.
fn next<'s>(steps: &[&'s [Step]], child: &Child<'_>) -> Vec<&'s [Step]> {
    let mut left: Vec<&[Step]> = Vec::new();
    for steps in steps {
        let Some((step, rest)) = steps.split_first() else { continue };
        let leads = match (&step.to, child) {
            (To::Any, _) => true,
            (To::Field(one), Child::Field(other)) => Some(one.as_str()) == *other,
            (To::Element(one), Child::Element(other)) => one == other,
            _ => false,
        };
        // A deep step is kept for the children also where it has led: a field of the name may lie within one of the same
        // name.
        let onward = [leads.then_some(rest), step.is_deep.then_some(*steps)];
        for steps in onward.into_iter().flatten() {
            // Several ways to the same steps would multiply with the depth.
            if !left.contains(&steps) {
                left.push(steps);
            }
        }
    }
    left
}
