//! `terminal`: a closure, or a pattern with an optional condition.

use proc_macro2::{TokenStream, TokenTree};
use quote::ToTokens;
use syn::parse::{Parse, ParseStream};
use syn::visit_mut::{self, VisitMut};
use syn::{Block, Expr, ExprClosure, Ident, Pat, PatIdent, Result, Token};

use crate::errors::Errors;

/// Selection of permanent errors.
pub(super) enum Terminal {
    /// Errors for which the closure is true.
    Closure(ExprClosure),
    /// Errors that match.
    Pattern {
        /// The pattern.
        pattern: Pat,
        /// The condition behind `if`.
        condition: Option<Expr>,
    },
}

impl Parse for Terminal {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        // A pattern begins with neither `||` nor `move`, and one that begins with `|` is written without it just as
        // well.
        if input.peek(Token![|]) || input.peek(Token![||]) || input.peek(Token![move]) {
            let closure: ExprClosure = input.parse()?;
            if closure.inputs.len() != 1 {
                return Err(syn::Error::new_spanned(
                    &closure,
                    format!(
                        "a `terminal` closure takes the error alone; this one takes {} arguments",
                        closure.inputs.len()
                    ),
                ));
            }
            return Ok(Self::Closure(closure));
        }
        let pattern = input.call(Pat::parse_multi)?;
        let condition = match input.parse::<Option<Token![if]>>()? {
            Some(_) => Some(input.parse()?),
            None => None,
        };
        refuse_bindings(&pattern, condition.as_ref())?;
        Ok(Self::Pattern { pattern, condition })
    }
}

/// A name without a path is a binding. It matches whatever stands in its place, whatever its writer meant: a variant
/// that is misspelt or not imported makes every error of its place permanent. One that the condition uses is meant.
fn refuse_bindings(pattern: &Pat, condition: Option<&Expr>) -> Result<()> {
    let condition = condition.map(ToTokens::to_token_stream).unwrap_or_default();
    let mut bindings = Bindings { condition, is_whole: true, refused: Errors::default() };
    bindings.visit_pat_mut(&mut pattern.clone());
    bindings.refused.take().map_or(Ok(()), Err)
}

struct Bindings {
    condition: TokenStream,
    /// Nothing is around the pattern that is looked at, so that a binding matches every error.
    is_whole: bool,
    refused: Errors,
}

impl Bindings {
    fn refuse(&mut self, binding: &PatIdent) {
        let name = &binding.ident;
        // Bindings begin with a small letter: a capital is most likely a variant that was not imported.
        let is_like_a_variant = name.to_string().starts_with(char::is_uppercase);
        let matches = if self.is_whole { "every error" } else { "whatever stands there" };
        let instead = match (is_like_a_variant, self.is_whole) {
            (true, _) => format!("write the whole path of the variant, e.g. `Error::{name}`"),
            (false, true) => "use it in a condition, e.g. `error if error.is_bad()`".to_owned(),
            (false, false) => {
                format!("use it in a condition, e.g. `if {name} > 3`, or write `_`, or `..`")
            }
        };
        let alone = if self.is_whole { " alone" } else { "" };
        self.refused.at(
            binding,
            format!(
                "`{name}`{alone} is a binding, which matches {matches}; {instead}, or a closure, e.g. `|error| error.is_bad()`"
            ),
        );
    }
}

impl VisitMut for Bindings {
    fn visit_pat_mut(&mut self, pattern: &mut Pat) {
        match pattern {
            Pat::Ident(binding) => {
                let name = binding.ident.to_string();
                // Whoever writes `_name` knows that it is a binding.
                let is_meant = !name.starts_with(char::is_uppercase)
                    && (name.starts_with('_') || mentions(self.condition.clone(), &binding.ident));
                match &mut binding.subpat {
                    // `name @ pattern` matches no more than its pattern does.
                    Some((_, pattern)) => self.visit_pat_mut(pattern),
                    None if is_meant => {}
                    None => self.refuse(binding),
                }
            }
            // These put nothing around their parts, each of which may match every error.
            Pat::Or(_) | Pat::Paren(_) => visit_mut::visit_pat_mut(self, pattern),
            _ => {
                let around = std::mem::replace(&mut self.is_whole, false);
                visit_mut::visit_pat_mut(self, pattern);
                self.is_whole = around;
            }
        }
    }

    /// An expression inside a pattern has bindings of its own.
    fn visit_expr_mut(&mut self, _: &mut Expr) {}

    fn visit_block_mut(&mut self, _: &mut Block) {}
}

/// Returns true if the tokens name `binding`, be it in a text to be formatted.
fn mentions(tokens: TokenStream, binding: &Ident) -> bool {
    tokens.into_iter().any(|token| match token {
        TokenTree::Ident(ident) => ident == *binding,
        TokenTree::Group(group) => mentions(group.stream(), binding),
        TokenTree::Literal(literal) => {
            let (text, name) = (literal.to_string(), binding.to_string());
            text.contains(&format!("{{{name}}}")) || text.contains(&format!("{{{name}:"))
        }
        TokenTree::Punct(_) => false,
    })
}
