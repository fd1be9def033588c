//! The type that the derive stands on, as a list of cases.

use proc_macro2::TokenStream;
use quote::quote;
use syn::{Attribute, Data, DeriveInput, Fields, Generics, Ident};

use super::args::Args;
use crate::errors::Errors;

/// An error type.
pub(super) struct Model {
    pub(super) name: Ident,
    pub(super) generics: Generics,
    /// Arguments of cases without their own.
    pub(super) args: Args,
    pub(super) is_enum: bool,
    pub(super) cases: Vec<Case>,
}

/// A variant, or the whole struct.
pub(super) struct Case {
    pub(super) name: Ident,
    /// Path as a pattern writes it.
    pub(super) path: TokenStream,
    pub(super) fields: Fields,
    pub(super) args: Args,
}

impl Model {
    pub(super) fn of(input: &DeriveInput, errors: &mut Errors) -> Option<Self> {
        let args = Args::read(&input.attrs, errors);
        let mut cases = Vec::new();
        let is_enum = matches!(input.data, Data::Enum(_));
        match &input.data {
            Data::Enum(data) => {
                for variant in &data.variants {
                    let name = variant.ident.clone();
                    let path = quote!(Self::#name);
                    let args = Args::read(&variant.attrs, errors);
                    refuse_on_fields(&variant.fields, errors);
                    cases.push(Case { name, path, fields: variant.fields.clone(), args });
                }
            }
            Data::Struct(data) => {
                refuse_on_fields(&data.fields, errors);
                let (name, fields) = (input.ident.clone(), data.fields.clone());
                cases.push(Case { name, path: quote!(Self), fields, args: Args::default() });
            }
            Data::Union(data) => {
                errors.at(data.union_token, "a union is not an error that could be classified");
                return None;
            }
        }
        let (name, generics) = (input.ident.clone(), input.generics.clone());
        Some(Self { name, generics, args, is_enum, cases })
    }

    /// Returns the arguments of `case`: its own, else those of the type.
    pub(super) fn class_of<'a>(&'a self, case: &'a Case) -> &'a Args {
        // A variant that says only when to retry is transient, whatever its type says.
        if case.args.class.is_none() && case.args.retry_after.is_none() {
            &self.args
        } else {
            &case.args
        }
    }
}

fn refuse_on_fields(fields: &Fields, errors: &mut Errors) {
    let is_ours = |attribute: &&Attribute| attribute.path().is_ident("classify");
    for attribute in fields.iter().flat_map(|field| &field.attrs).filter(is_ours) {
        errors.at(
            attribute,
            "`#[classify]` goes on the variant or type, not on a field; name the field there, e.g. `retry_after = after`",
        );
    }
}
