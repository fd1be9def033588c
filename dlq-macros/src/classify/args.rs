//! The words of `#[classify(..)]`, each in a slot that keeps its tokens.

use quote::ToTokens;
use syn::parse::{ParseStream, Parser};
use syn::{Attribute, Expr, ExprLit, Ident, Lit, LitStr, Meta, Path, Result, Token};

use crate::duration::DurationText;
use crate::errors::Errors;
use crate::tokens::{fill, list, ungrouped, words};

const WORDS: &[&str] = &["transient", "permanent", "transparent", "retry_after", "group", "crate"];

/// Time to wait.
pub(super) enum RetryAfter {
    /// This long.
    Fixed(DurationText),
    /// As the field of this number says.
    Field { index: usize, literal: syn::LitInt },
    /// As the expression says, in which fields have their names.
    Expression(Expr),
}

/// Every word that was given and could be read.
#[derive(Default)]
pub(super) struct Args {
    /// `transient`, `permanent` or `transparent`.
    pub(super) class: Option<Ident>,
    pub(super) retry_after: Option<(Ident, RetryAfter)>,
    pub(super) group: Option<(Ident, Expr)>,
    pub(super) krate: Option<(Ident, Path)>,
}

impl Args {
    /// Reads all `#[classify(..)]` among `attributes`; mistakes go into `errors`.
    pub(super) fn read(attributes: &[Attribute], errors: &mut Errors) -> Self {
        let mut args = Self::default();
        for attribute in attributes.iter().filter(|a| a.path().is_ident("classify")) {
            let content = match &attribute.meta {
                Meta::List(content) => content,
                Meta::NameValue(pair) => {
                    let word = match ungrouped(pair.value.clone()) {
                        Expr::Lit(ExprLit { lit: Lit::Str(word), .. }) => word.value(),
                        other => other.to_token_stream().to_string(),
                    };
                    // The first three are the classes. For anything else the hint shows the form with the second,
                    // `permanent`.
                    let known = WORDS[..3].iter().find(|known| **known == word);
                    let word = known.unwrap_or(&WORDS[1]);
                    errors.at(
                        attribute,
                        format!("write the word in brackets: `#[classify({word})]`"),
                    );
                    continue;
                }
                Meta::Path(_) => {
                    errors.at(
                        attribute,
                        format!("write in brackets what it is, e.g. `#[classify(permanent)]`; expected one of: {}", words(WORDS)),
                    );
                    continue;
                }
            };
            if content.tokens.is_empty() {
                errors.at(attribute, format!("expected one of: {}", words(WORDS)));
            }
            let read = |input: ParseStream<'_>| {
                list(input, errors, |key, input| args.word(key, input));
                Ok(())
            };
            let outcome = read.parse2(content.tokens.clone());
            errors.ok(outcome);
        }
        args
    }

    pub(super) fn is(&self, class: &str) -> bool {
        self.class.as_ref().is_some_and(|word| word == class)
    }

    fn word(&mut self, key: &Ident, input: ParseStream<'_>) -> Result<()> {
        match key.to_string().as_str() {
            "transient" | "permanent" | "transparent" => match &self.class {
                Some(known) => Err(syn::Error::new(
                    key.span(),
                    format!("`{key}` contradicts `{known}`; one word says what an error is"),
                )),
                None => fill(&mut self.class, key, key.clone()),
            },
            "retry_after" => {
                input.parse::<Token![=]>()?;
                fill(&mut self.retry_after, key, (key.clone(), retry_after(input)?))
            }
            "group" => {
                input.parse::<Token![=]>()?;
                fill(&mut self.group, key, (key.clone(), input.parse()?))
            }
            "crate" => {
                input.parse::<Token![=]>()?;
                fill(&mut self.krate, key, (key.clone(), input.call(Path::parse_mod_style)?))
            }
            _ => Err(syn::Error::new(
                key.span(),
                format!("unknown word `{key}`, expected one of: {}", words(WORDS)),
            )),
        }
    }
}

fn retry_after(input: ParseStream<'_>) -> Result<RetryAfter> {
    if input.peek(LitStr) {
        return input.parse().map(RetryAfter::Fixed);
    }
    let expression = ungrouped(input.parse()?);
    if let Expr::Lit(literal) = &expression
        && let Lit::Int(literal) = &literal.lit
    {
        return Ok(RetryAfter::Field { index: literal.base10_parse()?, literal: literal.clone() });
    }
    Ok(RetryAfter::Expression(expression))
}
