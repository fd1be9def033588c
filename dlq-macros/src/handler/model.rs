//! The function that the attribute stands on.

use syn::{
    Attribute, FnArg, Ident, ItemFn, ReturnType, Safety, Signature, Type, Visibility, parse_quote,
};

use crate::errors::Errors;

/// How many extractors a handler takes at most.
const MAX_ARGUMENTS: usize = 12;

/// What the expansion needs to know of a function that can be a handler.
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
