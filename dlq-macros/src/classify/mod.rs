//! `#[derive(Classify)]`.

mod args;
mod check;
mod expand;
mod model;
#[cfg(test)]
mod tests;

use proc_macro2::TokenStream;
use quote::quote;

use crate::errors::Errors;
use crate::paths::Root;

/// The derive: from the type's tokens to the expansion, whose paths are below `root` unless the type says otherwise.
pub(crate) fn derive(root: Root, input: TokenStream) -> TokenStream {
    let input = match syn::parse2::<syn::DeriveInput>(input) {
        Ok(input) => input,
        Err(error) => return error.into_compile_error(),
    };
    let mut errors = Errors::default();
    let model = model::Model::of(&input, &mut errors);
    // Also beside mistakes: whoever uses the type as classified shall not hear of it twice.
    let expansion = model.map(|model| {
        check::check(&model, &mut errors);
        expand::expand(&model, root)
    });
    let errors = errors.take().map(syn::Error::into_compile_error);
    quote!(#expansion #errors)
}
