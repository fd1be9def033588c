//! Output beside mistakes: the user's own code, so that no errors merely follow.

use proc_macro2::TokenStream;
use quote::quote;
use syn::ItemFn;

use super::args::Args;
use crate::errors::Errors;
use crate::paths::Paths;

fn reported(errors: &mut Errors) -> TokenStream {
    errors.take().map(syn::Error::into_compile_error).unwrap_or_default()
}

/// Something that is not a function, as it is.
pub(super) fn item(item: &TokenStream, errors: &mut Errors) -> TokenStream {
    let errors = reported(errors);
    quote!(#item #errors)
}

/// A function that cannot be a handler, as it is, and a handler of its name, for those who use it.
pub(super) fn function(function: &ItemFn, args: &Args, errors: &mut Errors) -> TokenStream {
    let paths = Paths::new(args.krate.as_ref());
    let (private, handler, core) = (paths.private(), paths.handler(), paths.core());
    let (visibility, name) = (&function.vis, &function.sig.ident);
    let conditions = function.attrs.iter().filter(|attribute| attribute.path().is_ident("cfg"));
    let conditions: Vec<_> = conditions.collect();
    let errors = reported(errors);
    // The bodies below never run, since the mistakes fail the build. They save whoever uses the name a second error.
    quote! {
        #function
        #errors

        #(#conditions)*
        #[allow(non_camel_case_types)]
        #[derive(::core::clone::Clone, ::core::marker::Copy, ::core::fmt::Debug)]
        #visibility struct #name {}

        #(#conditions)*
        const _: () = {
            impl #name {
                #visibility fn handler() -> #handler::HandlerBuilder<Self> {
                    ::core::panic!()
                }
            }

            impl<__DlqState: ::core::marker::Send + ::core::marker::Sync + 'static>
                #handler::HandlerFn<__DlqState, #private::Annotated> for #name
            {
                type Error = ::core::convert::Infallible;

                fn run(
                    &self,
                    _: #core::Delivery,
                    _: &__DlqState,
                ) -> impl ::core::future::Future<
                    Output = ::core::result::Result<(), #handler::Failed<Self::Error>>,
                > + ::core::marker::Send + 'static + use<__DlqState> {
                    ::core::future::pending()
                }
            }
        };
    }
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
