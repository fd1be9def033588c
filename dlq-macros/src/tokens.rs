//! Reading lists of options so that one mistake does not hide the next.

use proc_macro2::{Span, TokenTree};
use syn::ext::IdentExt;
use syn::parse::{ParseStream, Result};
use syn::{Expr, Ident, Token, Type};

use crate::errors::Errors;

/// Reads `key …, key …`: `read` gets each key and reads what follows it. A mistake is kept, and reading goes on behind
/// the next comma.
pub(crate) fn list(
    input: ParseStream<'_>,
    errors: &mut Errors,
    mut read: impl FnMut(&Ident, ParseStream<'_>) -> Result<()>,
) {
    while !input.is_empty() {
        // Keywords are keys as well: `crate` is one.
        let entry = input.call(Ident::parse_any).and_then(|key| {
            read(&key, input)?;
            if input.is_empty() || input.peek(Token![,]) {
                return Ok(());
            }
            Err(input.error(format!("expected `,` after `{key}`")))
        });
        errors.ok(entry);
        skip(input);
    }
}

/// Skips to behind the next comma.
fn skip(input: ParseStream<'_>) {
    while !input.is_empty() {
        if input.parse::<Option<Token![,]>>().is_ok_and(|comma| comma.is_some()) {
            return;
        }
        if input.parse::<TokenTree>().is_err() {
            return;
        }
    }
}

/// Reads what is between brackets. What a mistake leaves unread is skipped, since it would be reported as a second one.
pub(crate) fn whole<T>(content: ParseStream<'_>, read: impl FnOnce() -> Result<T>) -> Result<T> {
    read().inspect_err(|_| while content.parse::<TokenTree>().is_ok() {})
}

/// Puts `value` into `slot`, or says that it was there before.
pub(crate) fn fill<T>(slot: &mut Option<T>, key: &Ident, value: T) -> Result<()> {
    if slot.is_some() {
        return Err(syn::Error::new(key.span(), format!("`{key}` is set twice; drop one")));
    }
    *slot = Some(value);
    Ok(())
}

/// The expression itself: one that came through a `macro_rules!` is in a group without brackets.
pub(crate) fn ungrouped(mut expression: Expr) -> Expr {
    while let Expr::Group(group) = expression {
        expression = *group.expr;
    }
    expression
}

/// The type itself, likewise.
pub(crate) fn ungrouped_type(mut ty: &Type) -> &Type {
    while let Type::Group(group) = ty {
        ty = &group.elem;
    }
    ty
}

/// A name for a local variable of an expansion. Its hygiene is the macro's own, so that it is the same variable wherever
/// the tokens around it come from.
pub(crate) fn local(name: &str) -> Ident {
    Ident::new(name, Span::mixed_site())
}

/// `a`, `b`, `c`, for messages.
pub(crate) fn words(words: &[&str]) -> String {
    words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ")
}
