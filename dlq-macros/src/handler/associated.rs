//! Functions of an `impl` or a `trait`, which cannot be told from free ones by their own tokens.

use proc_macro2::Span;
use syn::visit_mut::{self, VisitMut};
use syn::{Attribute, Ident, ImplItemFn, ItemFn, TraitItemFn};

/// Returns true if the attribute stands on an associated function called `name`, as far as the source can be read.
///
/// An attribute is given its own item and not what is around it. A type beside an associated function is an error of the
/// parser's, which does not say what to write; so the file is looked at, where the attribute is indented.
pub(super) fn is_associated(name: &Ident) -> bool {
    // Tests of the macros run without the compiler, which alone knows of places.
    if !proc_macro::is_available() {
        return false;
    }
    let here = Span::call_site().unwrap();
    // A free function at the left margin is the usual case, and needs no look at the file.
    if here.start().column() <= 1 {
        return false;
    }
    let source = here.local_file().and_then(|path| std::fs::read_to_string(path).ok());
    source.is_some_and(|source| has_associated(&source, name))
}

/// Returns true if the handlers called `name` in this file are all associated functions, and there is one.
fn has_associated(source: &str, name: &Ident) -> bool {
    let Ok(mut file) = syn::parse_file(source) else { return false };
    let mut handlers = Handlers { name, free: 0, associated: 0 };
    handlers.visit_file_mut(&mut file);
    handlers.associated > 0 && handlers.free == 0
}

struct Handlers<'a> {
    name: &'a Ident,
    free: usize,
    associated: usize,
}

impl Handlers<'_> {
    fn is(&self, name: &Ident, attributes: &[Attribute]) -> bool {
        // It may be written with any path. Under another name it is not found, and the parser's error has to do.
        let last = |attribute: &Attribute| {
            attribute.path().segments.last().is_some_and(|last| last.ident == "dlq_handler")
        };
        *name == *self.name.to_string() && attributes.iter().any(last)
    }
}

impl VisitMut for Handlers<'_> {
    fn visit_item_fn_mut(&mut self, function: &mut ItemFn) {
        self.free += usize::from(self.is(&function.sig.ident, &function.attrs));
        visit_mut::visit_item_fn_mut(self, function);
    }

    fn visit_impl_item_fn_mut(&mut self, function: &mut ImplItemFn) {
        self.associated += usize::from(self.is(&function.sig.ident, &function.attrs));
        visit_mut::visit_impl_item_fn_mut(self, function);
    }

    fn visit_trait_item_fn_mut(&mut self, function: &mut TraitItemFn) {
        self.associated += usize::from(self.is(&function.sig.ident, &function.attrs));
        visit_mut::visit_trait_item_fn_mut(self, function);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn associated_functions_are_told_from_free_ones() {
        let charge: Ident = syn::parse_quote!(charge);
        let has = |source: &str| has_associated(source, &charge);
        assert!(has("impl A { #[dlq_handler] async fn charge() {} }"));
        assert!(has(
            "mod a { trait A { #[dlq_tower::dlq_handler(timeout = \"1s\")] async fn charge() {} } }"
        ));
        assert!(has("fn main() { impl A { #[dlq_handler] async fn charge() {} } }"));
        for free in [
            "mod a { #[dlq_handler] async fn charge() {} }",
            "fn main() { #[dlq_handler] async fn charge() {} }",
            "impl A { fn charge() { #[dlq_handler] async fn charge() {} } }",
            "impl A { async fn charge() {} } mod a { #[dlq_handler] async fn charge() {} }",
            "impl A { #[dlq_handler] async fn charge() {} } mod a { #[dlq_handler] async fn charge() {} }",
            "impl A { #[dlq_handler] async fn other() {} }",
            "not Rust",
        ] {
            assert!(!has(free), "{free}");
        }
    }
}
