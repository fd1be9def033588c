use proc_macro2::TokenStream;
use quote::quote;
use syn::Path;

/// The paths that expansions use: all below the crate that re-exports the macros.
#[derive(Clone)]
pub(crate) struct Paths {
    krate: TokenStream,
}

impl Paths {
    /// Below `krate`, else below `::dlq_tower`.
    pub(crate) fn new(krate: Option<&Path>) -> Self {
        Self { krate: krate.map_or_else(|| quote!(::dlq_tower), |path| quote!(#path)) }
    }

    /// What only expansions use.
    pub(crate) fn private(&self) -> TokenStream {
        let krate = &self.krate;
        quote!(#krate::__private)
    }

    pub(crate) fn core(&self) -> TokenStream {
        let krate = &self.krate;
        quote!(#krate::core)
    }

    pub(crate) fn handler(&self) -> TokenStream {
        let krate = &self.krate;
        quote!(#krate::handler)
    }

    pub(crate) fn extract(&self) -> TokenStream {
        let krate = &self.krate;
        quote!(#krate::extract)
    }
}
