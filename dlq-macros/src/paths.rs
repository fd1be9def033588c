use proc_macro2::TokenStream;
use quote::quote;
use syn::{Path, parse_quote};

/// The crate that a macro was re-exported by.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Root {
    DlqTower,
    TowerDlq,
}

impl Root {
    pub(crate) fn path(self) -> Path {
        match self {
            Self::DlqTower => parse_quote!(::dlq_tower),
            Self::TowerDlq => parse_quote!(::tower_dlq),
        }
    }
}

/// The paths that expansions use: all below the crate that re-exports the macros.
#[derive(Clone)]
pub(crate) struct Paths {
    krate: TokenStream,
}

impl Paths {
    /// Below `krate`, else below `::dlq_tower`.
    pub(crate) fn new(krate: Option<&Path>) -> Self {
        let krate = krate.cloned().unwrap_or_else(|| Root::DlqTower.path());
        Self { krate: quote!(#krate) }
    }

    /// Returns the path of items that only expansions use.
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
