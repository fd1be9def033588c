//! `backoff`: a name, the first delay or the stages, and settings.

use proc_macro2::TokenStream;
use quote::{ToTokens, quote};
use syn::ext::IdentExt;
use syn::parse::{Parse, ParseStream};
use syn::{Ident, LitFloat, LitInt, LitStr, Result, Token, parenthesized};

use crate::duration::DurationText;
use crate::paths::Paths;
use crate::tokens::{fill, whole, words};

/// Kind of delays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Constant,
    Linear,
    Exponential,
    Decorrelated,
    Ladder,
}

impl Kind {
    const ALL: &[(&str, Self)] = &[
        ("constant", Self::Constant),
        ("linear", Self::Linear),
        ("exponential", Self::Exponential),
        ("decorrelated", Self::Decorrelated),
        ("ladder", Self::Ladder),
    ];

    fn read(name: &Ident) -> Result<Self> {
        let known = Self::ALL.iter().find(|(known, _)| name == known);
        known.map(|(_, kind)| *kind).ok_or_else(|| {
            let names: Vec<_> = Self::ALL.iter().map(|(name, _)| *name).collect();
            syn::Error::new(
                name.span(),
                format!("unknown backoff `{name}`, expected one of: {}", words(&names)),
            )
        })
    }

    fn settings(self) -> &'static [&'static str] {
        match self {
            Self::Constant => &["jitter"],
            Self::Linear => &["increment", "max", "jitter"],
            Self::Exponential => &["factor", "max", "jitter"],
            // Its delays are drawn at random already, so that no jitter is asked for.
            Self::Decorrelated => &["max"],
            Self::Ladder => &[],
        }
    }
}

/// A number of at least 1, as it was written.
#[derive(Clone)]
pub(super) struct Factor {
    pub(super) literal: TokenStream,
    pub(super) value: f64,
}

impl Parse for Factor {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        if input.peek(LitInt) {
            let literal: LitInt = input.parse()?;
            let value = literal.base10_parse()?;
            return Ok(Self { literal: literal.into_token_stream(), value });
        }
        if input.peek(LitFloat) {
            let literal: LitFloat = input.parse()?;
            let value = literal.base10_parse()?;
            return Ok(Self { literal: literal.into_token_stream(), value });
        }
        Err(input.error("expected a number, e.g. `factor = 2` or `factor = 1.5`"))
    }
}

/// Delays after each attempt.
pub(super) struct Backoff {
    pub(super) name: Ident,
    pub(super) kind: Kind,
    /// The first delay; of a ladder all stages.
    pub(super) delays: Vec<DurationText>,
    pub(super) increment: Option<DurationText>,
    pub(super) factor: Option<Factor>,
    pub(super) max: Option<DurationText>,
    pub(super) jitter: Option<Ident>,
}

impl Parse for Backoff {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        let name: Ident = input.parse()?;
        let kind = Kind::read(&name)?;
        let needs_delay = || {
            syn::Error::new(
                name.span(),
                format!("`{name}` needs a delay, e.g. `{name}(\"200ms\")`"),
            )
        };
        if !input.peek(syn::token::Paren) {
            return Err(needs_delay());
        }
        let content;
        parenthesized!(content in input);
        let mut backoff = Self {
            name: name.clone(),
            kind,
            delays: Vec::new(),
            increment: None,
            factor: None,
            max: None,
            jitter: None,
        };
        whole(&content, || {
            while !content.is_empty() {
                backoff.part(&content)?;
                if !content.is_empty() {
                    content.parse::<Token![,]>()?;
                }
            }
            Ok(())
        })?;
        if backoff.delays.is_empty() {
            return Err(needs_delay());
        }
        Ok(backoff)
    }
}

impl Backoff {
    fn part(&mut self, input: ParseStream<'_>) -> Result<()> {
        if input.peek(LitStr) {
            let delay: DurationText = input.parse()?;
            if self.kind != Kind::Ladder && !self.delays.is_empty() {
                return Err(syn::Error::new(
                    delay.text.span(),
                    format!("`{}` takes one delay; several are `ladder(…)`", self.name),
                ));
            }
            self.delays.push(delay);
            return Ok(());
        }
        if !input.peek(Ident) {
            return Err(input.error(
                "expected a delay in quotes, e.g. \"200ms\", or a setting, e.g. `max = \"30s\"`",
            ));
        }
        let key = input.call(Ident::parse_any)?;
        let settings = self.kind.settings();
        if !settings.contains(&key.to_string().as_str()) {
            let expected = match settings {
                [] => "it takes delays alone".to_owned(),
                settings => format!("expected one of: {}", words(settings)),
            };
            return Err(syn::Error::new(
                key.span(),
                format!("`{}` has no setting `{key}`, {expected}", self.name),
            ));
        }
        input.parse::<Token![=]>()?;
        match key.to_string().as_str() {
            "increment" => fill(&mut self.increment, &key, input.parse()?),
            "factor" => fill(&mut self.factor, &key, input.parse()?),
            "max" => fill(&mut self.max, &key, input.parse()?),
            _ => fill(&mut self.jitter, &key, jitter(input)?),
        }
    }

    pub(super) fn expand(&self, paths: &Paths) -> TokenStream {
        let private = paths.private();
        let delays: Vec<_> = self.delays.iter().map(|delay| delay.expand(paths)).collect();
        // There is one: a backoff without a delay was refused when it was read.
        let first = &delays[0];
        let mut backoff = match self.kind {
            Kind::Constant => quote!(#private::Backoff::constant(#first)),
            Kind::Linear => {
                let increment = self.increment.as_ref().unwrap_or(&self.delays[0]).expand(paths);
                quote!(#private::Backoff::linear(#first, #increment))
            }
            Kind::Exponential => quote!(#private::Backoff::exponential(#first)),
            Kind::Decorrelated => quote!(#private::Backoff::decorrelated(#first)),
            Kind::Ladder => quote!(#private::Backoff::ladder([#(#delays),*])),
        };
        if let Some(Factor { value, .. }) = self.factor {
            backoff.extend(quote!(.factor(#value)));
        }
        if let Some(max) = &self.max {
            let max = max.expand(paths);
            backoff.extend(quote!(.max(#max)));
        }
        if let Some(jitter) = &self.jitter {
            let variant = match jitter.to_string().as_str() {
                "none" => quote!(None),
                "full" => quote!(Full),
                _ => quote!(Equal),
            };
            backoff.extend(quote!(.jitter(#private::Jitter::#variant)));
        }
        backoff
    }
}

fn jitter(input: ParseStream<'_>) -> Result<Ident> {
    let word: Ident = input.parse()?;
    if ["none", "full", "equal"].iter().any(|known| word == known) {
        return Ok(word);
    }
    Err(syn::Error::new(
        word.span(),
        format!("unknown jitter `{word}`, expected one of: `none`, `full`, `equal`"),
    ))
}
