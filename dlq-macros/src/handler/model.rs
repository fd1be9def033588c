//! The function that the attribute stands on.

use std::fmt::Display;

use quote::ToTokens;
use syn::visit_mut::{self, VisitMut};
use syn::{
    Attribute, FnArg, Ident, ItemFn, Lifetime, ParenthesizedGenericArguments, ReturnType, Safety,
    Signature, Type, TypeFnPtr, TypeReference, Visibility, parse_quote,
};

use crate::errors::Errors;
use crate::tokens::ungrouped_type;

/// Maximum number of extractors of a handler.
// The library implements handlers for functions of up to so many.
const MAX_ARGUMENTS: usize = 12;

/// Facts that the expansion needs about a function that can be a handler.
pub(super) struct Model {
    pub(super) visibility: Visibility,
    pub(super) name: Ident,
    /// `#[cfg(..)]`, which generated items need as well.
    pub(super) conditions: Vec<Attribute>,
    pub(super) arguments: Vec<Type>,
    pub(super) output: Type,
}

impl Model {
    /// The model of `function`, or every reason why it cannot be a handler.
    pub(super) fn of(function: &ItemFn, errors: &mut Errors) -> Option<Self> {
        let mut fits = true;
        let mut refuse = |error: syn::Error| {
            errors.push(error);
            fits = false;
        };
        let sig = &function.sig;
        qualifiers(sig, &mut refuse);
        let mut arguments = Vec::new();
        for input in &sig.inputs {
            match input {
                FnArg::Receiver(receiver) => refuse(syn::Error::new_spanned(
                    receiver,
                    "a handler is a free function; take what it needs of `self` as `State<T>`",
                )),
                FnArg::Typed(argument) => {
                    if let Type::ImplTrait(found) = &*argument.ty {
                        refuse(syn::Error::new_spanned(
                            found,
                            "an argument of a handler has one type, which says what is taken from the delivery",
                        ));
                    }
                    borrowed(&argument.ty, &mut refuse);
                    arguments.push((*argument.ty).clone());
                }
            }
        }
        if let Some(extra) = sig.inputs.iter().nth(MAX_ARGUMENTS) {
            refuse(syn::Error::new_spanned(
                extra,
                format!(
                    "a handler takes at most {MAX_ARGUMENTS} arguments, found {}; join some in an extractor of your own",
                    sig.inputs.len()
                ),
            ));
        }
        let output = match &sig.output {
            ReturnType::Default => parse_quote!(()),
            ReturnType::Type(_, output) => {
                if let Type::ImplTrait(found) = &**output {
                    refuse(syn::Error::new_spanned(
                        found,
                        "a handler names what it returns: `Result<(), E>`, or nothing",
                    ));
                }
                (**output).clone()
            }
        };
        let is_condition = |attribute: &&Attribute| attribute.path().is_ident("cfg");
        fits.then(|| Self {
            visibility: function.vis.clone(),
            name: sig.ident.clone(),
            conditions: function.attrs.iter().filter(is_condition).cloned().collect(),
            arguments,
            output,
        })
    }
}

/// Refuses what an argument borrows: it would have to outlive the delivery that it is taken from.
fn borrowed(ty: &Type, refuse: &mut impl FnMut(syn::Error)) {
    struct Borrows(Option<syn::Error>);

    impl Borrows {
        fn found(&mut self, what: impl ToTokens, instead: impl Display) {
            let error = || {
                syn::Error::new_spanned(
                    what,
                    format!(
                        "an argument of a handler is owned, since it is taken from the delivery; {instead}"
                    ),
                )
            };
            self.0.get_or_insert_with(error);
        }
    }

    impl VisitMut for Borrows {
        fn visit_type_reference_mut(&mut self, reference: &mut TypeReference) {
            // A lifetime with a name is `'static`, or one that the compiler does not find: a handler has no generics.
            if reference.lifetime.as_ref().is_none_or(|lifetime| lifetime.ident == "_") {
                let owned = ungrouped_type(&reference.elem).to_token_stream().to_string();
                let owned = match &*owned {
                    // The compiler and the parser's own printing put spaces differently.
                    "str" | "[u8]" | "[u8 ]" | "[ u8 ]" => "Bytes",
                    owned => owned,
                };
                self.found(&*reference, format_args!("write `{owned}`"));
                return;
            }
            visit_mut::visit_type_reference_mut(self, reference);
        }

        fn visit_lifetime_mut(&mut self, lifetime: &mut Lifetime) {
            if lifetime.ident == "_" {
                self.found(lifetime, "write a type without a lifetime, or `'static`");
            }
        }

        // The arguments of functions may be borrowed.
        fn visit_type_fn_ptr_mut(&mut self, _: &mut TypeFnPtr) {}

        fn visit_parenthesized_generic_arguments_mut(
            &mut self,
            _: &mut ParenthesizedGenericArguments,
        ) {
        }
    }

    let mut borrows = Borrows(None);
    // A copy is walked: of the parser's visitors only the one that changes what it visits is compiled.
    borrows.visit_type_mut(&mut ty.clone());
    if let Some(error) = borrows.0 {
        refuse(error);
    }
}

fn qualifiers(sig: &Signature, refuse: &mut impl FnMut(syn::Error)) {
    if sig.asyncness.is_none() {
        refuse(syn::Error::new(sig.fn_token.span, "a handler is async; write `async fn`"));
    }
    if let Some(token) = &sig.constness {
        refuse(syn::Error::new(token.span, "a handler cannot be `const`"));
    }
    if let Safety::Unsafe(token) = &sig.safety {
        refuse(syn::Error::new(token.span, "a handler cannot be `unsafe`: the consumer calls it"));
    }
    if let Some(abi) = &sig.abi {
        refuse(syn::Error::new_spanned(abi, "a handler has no ABI of its own"));
    }
    let generics = &sig.generics;
    if !generics.params.is_empty() {
        refuse(syn::Error::new_spanned(
            &generics.params,
            "a handler cannot be generic: its name stands for one function; write a generic function \
             and call it from a handler for each type",
        ));
    }
    if let Some(clause) = &generics.where_clause {
        refuse(syn::Error::new_spanned(clause, "a handler has no bounds, since it is not generic"));
    }
}
