use std::fmt::Display;

use quote::ToTokens;

/// Mistakes, collected so that they are reported together.
#[derive(Debug, Default)]
pub(crate) struct Errors {
    all: Option<syn::Error>,
}

impl Errors {
    /// Adds a mistake.
    pub(crate) fn push(&mut self, error: syn::Error) {
        match &mut self.all {
            Some(all) => all.combine(error),
            None => self.all = Some(error),
        }
    }

    /// Adds a mistake at these tokens.
    pub(crate) fn at(&mut self, tokens: impl ToTokens, message: impl Display) {
        self.push(syn::Error::new_spanned(tokens, message));
    }

    /// Adds the mistake, if it is one.
    pub(crate) fn ok<T>(&mut self, result: syn::Result<T>) -> Option<T> {
        result.map_err(|error| self.push(error)).ok()
    }

    /// All mistakes, as one error.
    pub(crate) fn take(&mut self) -> Option<syn::Error> {
        self.all.take()
    }
}

impl Drop for Errors {
    fn drop(&mut self) {
        // A second panic while one unwinds would abort the compiler.
        assert!(
            self.all.is_none() || std::thread::panicking(),
            "mistakes were found and not reported: {:?}",
            self.all
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_are_reported_together() {
        let mut errors = Errors::default();
        errors.at(quote::quote!(a), "first");
        errors.at(quote::quote!(b), "second");
        let all: Vec<_> = errors.take().unwrap().into_iter().map(|e| e.to_string()).collect();
        assert_eq!(all, ["first", "second"]);
    }

    #[test]
    #[should_panic(expected = "not reported")]
    fn one_that_is_forgotten_is_noticed() {
        Errors::default().at(quote::quote!(a), "forgotten");
    }
}
