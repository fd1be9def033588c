//! `terminal`: a closure, or a pattern with an optional condition.

use syn::parse::{Parse, ParseStream};
use syn::{Expr, ExprClosure, Pat, Result, Token};

/// Which errors are permanent.
pub(super) enum Terminal {
    /// Those for which it is true.
    Closure(ExprClosure),
    /// Those that fit.
    Pattern {
        /// The pattern.
        pattern: Pat,
        /// The condition behind `if`.
        condition: Option<Expr>,
    },
}

impl Parse for Terminal {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
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
        refuse_bindings(&pattern, condition.is_some())?;
        Ok(Self::Pattern { pattern, condition })
    }
}

/// A name alone is a binding: it would match every error, whatever its writer meant.
fn refuse_bindings(pattern: &Pat, conditional: bool) -> Result<()> {
    match pattern {
        Pat::Ident(binding) if binding.subpat.is_none() => {
            let name = binding.ident.to_string();
            let meant_as_variant = name.starts_with(char::is_uppercase);
            if conditional && !meant_as_variant {
                return Ok(());
            }
            Err(syn::Error::new_spanned(
                pattern,
                format!(
                    "`{name}` alone is a binding, which matches every error; write the whole path of the variant, \
                     e.g. `Error::{name}`, or a closure, e.g. `|error| error.is_bad()`"
                ),
            ))
        }
        Pat::Ident(binding) => match &binding.subpat {
            Some((_, pattern)) => refuse_bindings(pattern, conditional),
            None => Ok(()),
        },
        Pat::Or(cases) => {
            cases.cases.iter().try_for_each(|case| refuse_bindings(case, conditional))
        }
        Pat::Paren(pattern) => refuse_bindings(&pattern.pat, conditional),
        _ => Ok(()),
    }
}
