//! What is emitted beside mistakes: the user's own code, so that no errors merely follow.

use proc_macro2::TokenStream;
use quote::quote;
use syn::ItemFn;

use crate::errors::Errors;

fn reported(errors: &mut Errors) -> TokenStream {
    errors.take().map(syn::Error::into_compile_error).unwrap_or_default()
}

/// Something that is not a function, as it is.
pub(super) fn item(item: &TokenStream, errors: &mut Errors) -> TokenStream {
    let errors = reported(errors);
    quote!(#item #errors)
}

/// A function that cannot be a handler, as it is, and the name by which it would be used.
pub(super) fn function(function: &ItemFn, errors: &mut Errors) -> TokenStream {
    let errors = reported(errors);
    quote!(#function #errors)
}

/// A handler whose mistaken options were left out.
pub(super) fn with_errors(
    function: &ItemFn,
    expansion: TokenStream,
    errors: &mut Errors,
) -> TokenStream {
    let errors = reported(errors);
    quote!(#function #expansion #errors)
}
