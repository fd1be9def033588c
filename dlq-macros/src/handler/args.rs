//! The attribute's options, each in a slot that keeps its tokens.

use quote::ToTokens;
use syn::parse::{Parse, ParseStream};
use syn::punctuated::Punctuated;
use syn::{Expr, ExprClosure, Ident, LitInt, LitStr, Pat, Path, Result, Token, Type, bracketed};

use super::backoff::Backoff;
use super::terminal::Terminal;
use crate::duration::DurationText;
use crate::errors::Errors;
use crate::tokens::{fill, list, ungrouped, ungrouped_type, whole, words};

const OPTIONS: &[&str] = &[
    "name",
    "aliases",
    "max_attempts",
    "max_crashes",
    "backoff",
    "max_in_process_delay",
    "timeout",
    "concurrency",
    "panic",
    "terminal",
    "classify",
    "idempotency_key",
    "order_by",
    "state",
    "crate",
];

/// A whole number with its literal.
#[derive(Clone)]
pub(super) struct Number<T> {
    pub(super) literal: LitInt,
    pub(super) value: T,
}

impl<T: std::str::FromStr<Err: std::fmt::Display>> Parse for Number<T> {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        if !input.peek(LitInt) {
            return Err(input.error("expected a whole number; values that are not known here are set in code, on `handler()`"));
        }
        let literal: LitInt = input.parse()?;
        let value = literal.base10_parse()?;
        Ok(Self { literal, value })
    }
}

/// Meaning of a panic.
#[derive(Clone)]
pub(super) struct Panic {
    pub(super) word: Ident,
    pub(super) retry: bool,
}

impl Parse for Panic {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        let word: Ident = input.parse()?;
        match word.to_string().as_str() {
            "permanent" => Ok(Self { word, retry: false }),
            "retry" => Ok(Self { word, retry: true }),
            _ => Err(syn::Error::new(
                word.span(),
                format!("`panic = {word}` has no meaning, expected one of: `permanent`, `retry`"),
            )),
        }
    }
}

/// A closure of one argument.
pub(super) struct KeyClosure(pub(super) ExprClosure);

impl Parse for KeyClosure {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        // `||` is a token of its own. It is let through, so that its missing argument is named below.
        if !(input.peek(Token![|]) || input.peek(Token![||]) || input.peek(Token![move])) {
            return Err(
                input.error("expected a closure of the payload, e.g. `|order: &Order| order.id`")
            );
        }
        let closure: ExprClosure = input.parse()?;
        if closure.inputs.len() != 1 {
            return Err(syn::Error::new_spanned(
                &closure,
                format!(
                    "a key closure takes the payload alone; this one takes {} arguments",
                    closure.inputs.len()
                ),
            ));
        }
        if let Some(Pat::Type(argument)) = closure.inputs.first()
            && let ty @ (Type::Path(_) | Type::Tuple(_)) = ungrouped_type(&argument.ty)
        {
            let ty = ty.to_token_stream();
            return Err(syn::Error::new_spanned(
                &argument.ty,
                format!("a key closure is given a reference to the payload; write `&{ty}`"),
            ));
        }
        if let Some(token) = closure.asyncness {
            return Err(syn::Error::new(
                token.span,
                "a key closure is not async: keys are read from what is there",
            ));
        }
        Ok(Self(closure))
    }
}

/// Classifier of errors.
pub(super) struct Judge(pub(super) Expr);

impl Parse for Judge {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        let expression = ungrouped(input.parse()?);
        match expression {
            Expr::Closure(_) | Expr::Path(_) => Ok(Self(expression)),
            other => Err(syn::Error::new_spanned(
                other,
                "expected a closure of the error, e.g. `|error: &Error| ErrorClass::Permanent`, or the path of such a function",
            )),
        }
    }
}

/// Every option that was given and could be read.
#[derive(Default)]
pub(super) struct Args {
    pub(super) name: Option<LitStr>,
    pub(super) aliases: Option<Vec<LitStr>>,
    pub(super) max_attempts: Option<Number<u32>>,
    pub(super) max_crashes: Option<Number<u32>>,
    pub(super) backoff: Option<Backoff>,
    pub(super) max_in_process_delay: Option<DurationText>,
    pub(super) timeout: Option<DurationText>,
    pub(super) concurrency: Option<Number<usize>>,
    pub(super) panic: Option<Panic>,
    pub(super) terminal: Option<Terminal>,
    pub(super) classify: Option<Judge>,
    pub(super) idempotency_key: Option<KeyClosure>,
    pub(super) order_by: Option<KeyClosure>,
    pub(super) state: Option<Type>,
    pub(super) krate: Option<Path>,
}

impl Args {
    /// Reads all options; mistakes go into `errors`.
    pub(super) fn read(&mut self, input: ParseStream<'_>, errors: &mut Errors) {
        list(input, errors, |key, input| self.option(key, input));
    }

    fn option(&mut self, key: &Ident, input: ParseStream<'_>) -> Result<()> {
        let name = key.to_string();
        if !OPTIONS.contains(&name.as_str()) {
            return Err(syn::Error::new(
                key.span(),
                format!("unknown option `{name}`, expected one of: {}", words(OPTIONS)),
            ));
        }
        if !input.peek(Token![=]) {
            return Err(syn::Error::new(
                key.span(),
                format!("`{name}` needs a value: `{name} = …`"),
            ));
        }
        input.parse::<Token![=]>()?;
        match name.as_str() {
            "name" => fill(&mut self.name, key, text(input)?),
            "aliases" => fill(&mut self.aliases, key, texts(input)?),
            "max_attempts" => fill(&mut self.max_attempts, key, input.parse()?),
            "max_crashes" => fill(&mut self.max_crashes, key, input.parse()?),
            "backoff" => fill(&mut self.backoff, key, input.parse()?),
            "max_in_process_delay" => fill(&mut self.max_in_process_delay, key, input.parse()?),
            "timeout" => fill(&mut self.timeout, key, input.parse()?),
            "concurrency" => fill(&mut self.concurrency, key, input.parse()?),
            "panic" => fill(&mut self.panic, key, input.parse()?),
            "terminal" => fill(&mut self.terminal, key, input.parse()?),
            "classify" => fill(&mut self.classify, key, input.parse()?),
            "idempotency_key" => fill(&mut self.idempotency_key, key, input.parse()?),
            "order_by" => fill(&mut self.order_by, key, input.parse()?),
            "state" => fill(&mut self.state, key, input.parse()?),
            // `OPTIONS` was asked above, so that only `crate` is left.
            _ => fill(&mut self.krate, key, input.call(Path::parse_mod_style)?),
        }
    }
}

fn text(input: ParseStream<'_>) -> Result<LitStr> {
    if input.peek(LitStr) { input.parse() } else { Err(input.error("expected a text in quotes")) }
}

fn texts(input: ParseStream<'_>) -> Result<Vec<LitStr>> {
    if !input.peek(syn::token::Bracket) {
        return Err(input.error("expected names in brackets, e.g. `[\"payments.old\"]`"));
    }
    let content;
    bracketed!(content in input);
    let texts =
        whole(&content, || Punctuated::<LitStr, Token![,]>::parse_terminated_with(&content, text))?;
    Ok(texts.into_iter().collect())
}
