//! `#[dlq_handler]`.

mod args;
mod associated;
mod backoff;
mod check;
mod expand;
mod fallback;
mod model;
mod terminal;
#[cfg(test)]
mod tests;

use proc_macro2::TokenStream;
use syn::parse::Parser;

use crate::errors::Errors;
use crate::paths::Root;

/// The attribute: from its tokens to the expansion, whose paths are below `root` unless the arguments say otherwise.
pub(crate) fn dlq_handler(root: Root, args: TokenStream, item: TokenStream) -> TokenStream {
    let mut errors = Errors::default();
    let function = match syn::parse2::<syn::ItemFn>(item.clone()) {
        Ok(function) => function,
        // The parser's own words would be about functions, and this may be anything.
        Err(_) => {
            errors.at(&item, "`#[dlq_handler]` goes on an async function with a body");
            return fallback::item(&item, &mut errors);
        }
    };
    let mut args = read_args(args, &mut errors);
    args.krate.get_or_insert_with(|| root.path());
    let has_self = function.sig.receiver().is_some();
    if !has_self && associated::is_associated(&function.sig.ident) {
        errors.at(
            &function.sig.ident,
            "a handler is a free function, and this one belongs to an `impl` or a `trait`; move it out, and call the \
             associated function from it",
        );
        return fallback::item(&item, &mut errors);
    }
    match model::Model::of(&function, &mut errors) {
        Some(model) => {
            check::check(&args, &mut errors);
            // Also beside mistakes: whoever uses the handler shall not hear of them twice.
            let expansion = expand::expand(&model, &args);
            fallback::with_errors(&function, expansion, &mut errors)
        }
        // A type cannot stand beside a method.
        None if has_self => fallback::item(&item, &mut errors),
        None => fallback::function(&function, &args, &mut errors),
    }
}

/// The arguments as far as they can be read.
fn read_args(tokens: TokenStream, errors: &mut Errors) -> args::Args {
    let mut args = args::Args::default();
    let read = |input: syn::parse::ParseStream<'_>| {
        args.read(input, errors);
        Ok(())
    };
    let outcome = read.parse2(tokens);
    errors.ok(outcome);
    args
}
