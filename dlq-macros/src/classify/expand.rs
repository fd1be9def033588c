//! `impl Classify`: one arm per case.

use proc_macro2::TokenStream;
use quote::{ToTokens, format_ident, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::visit_mut::VisitMut;
use syn::{Fields, Generics, Index, Type, parse_quote};

use super::args::{Args, RetryAfter};
use super::model::{Case, Model};
use crate::paths::{Paths, Root};

pub(super) fn expand(model: &Model, root: Root) -> TokenStream {
    let krate = model.args.krate.as_ref().map(|(_, path)| path.clone());
    let paths = Paths::new(Some(&krate.unwrap_or_else(|| root.path())));
    let private = paths.private();
    let name = &model.name;
    let generics = bounded(model, &paths);
    let (parameters, arguments, bounds) = generics.split_for_impl();

    let classes = model.cases.iter().map(|case| {
        let (pattern, class) = (pattern(case), class(model, case, &paths));
        quote!(#pattern => #class,)
    });
    let says_group =
        |case: &Case| group_args(model, case).group.is_some() || transparent(model, case).is_some();
    // Where nothing says of a group, the default of the trait stands.
    let groups = model.cases.iter().any(says_group).then(|| {
        let groups = model.cases.iter().map(|case| {
            let (pattern, group) = (pattern(case), group(model, case, &paths));
            quote!(#pattern => #group,)
        });
        quote! {
            #[allow(unused_variables)]
            fn group(&self) -> ::core::option::Option<::std::string::String> {
                match self { #(#groups)* }
            }
        }
    });
    // A type without cases has no values, and a match on the reference to one would not know.
    let classes = match &model.cases[..] {
        [] => quote!(match *self {}),
        _ => quote!(match self { #(#classes)* }),
    };
    quote! {
        #[automatically_derived]
        impl #parameters #private::Classify for #name #arguments #bounds {
            #[allow(unused_variables)]
            fn classify(&self) -> #private::Classification {
                #classes
            }

            #groups
        }
    }
}

/// The case with its fields bound to their names, or `_0`, `_1` and so on.
fn pattern(case: &Case) -> TokenStream {
    let path = &case.path;
    match &case.fields {
        // Braces are allowed for every kind of variant.
        Fields::Unit => quote!(#path { .. }),
        Fields::Named(fields) => {
            let names = fields.named.iter().map(|field| &field.ident);
            quote!(#path { #(#names),* })
        }
        Fields::Unnamed(fields) => {
            let fields = (0..fields.unnamed.len()).map(|index| {
                // It is the name by which an expression in the attribute may use the field.
                let (member, name) = (Index::from(index), format_ident!("_{index}"));
                quote!(#member: #name)
            });
            quote!(#path { #(#fields),* })
        }
    }
}

/// The only field of a case that is as this field says: its name and type.
fn transparent<'a>(model: &'a Model, case: &'a Case) -> Option<(TokenStream, &'a Type)> {
    if !model.class_of(case).is("transparent") || (model.is_enum && !case.args.is("transparent")) {
        return None;
    }
    // Any other number of fields has been refused by `check`, and no second error is to follow from here.
    let field = case.fields.iter().next().filter(|_| case.fields.len() == 1)?;
    let name = field.ident.as_ref().map_or_else(|| quote!(_0), ToTokens::to_token_stream);
    Some((name, &field.ty))
}

fn class(model: &Model, case: &Case, paths: &Paths) -> TokenStream {
    let private = paths.private();
    if let Some((field, ty)) = transparent(model, case) {
        // At the field's type, so that one which is not classified is reported there.
        return quote_spanned!(ty.span()=> <#ty as #private::Classify>::classify(#field));
    }
    let args = model.class_of(case);
    if args.is("permanent") {
        return quote!(#private::Classification::permanent());
    }
    let after = match &args.retry_after {
        None => return quote!(#private::Classification::transient()),
        Some((_, RetryAfter::Fixed(duration))) => duration.expand(paths),
        Some((_, RetryAfter::Field { index, literal })) => {
            let name = format_ident!("_{index}", span = literal.span());
            quote!(#name)
        }
        Some((_, RetryAfter::Expression(expression))) => quote!(#expression),
    };
    quote_spanned!(after.span()=> #private::retry_after(&(#after)))
}

/// The words that say of the group of `case`.
fn group_args<'a>(model: &'a Model, case: &'a Case) -> &'a Args {
    if model.is_enum { &case.args } else { &model.args }
}

fn group(model: &Model, case: &Case, paths: &Paths) -> TokenStream {
    let private = paths.private();
    if let Some((_, group)) = &group_args(model, case).group {
        return quote_spanned! {group.span()=>
            ::core::option::Option::Some(::std::string::ToString::to_string(&(#group)))
        };
    }
    match transparent(model, case) {
        Some((field, ty)) => quote_spanned!(ty.span()=> <#ty as #private::Classify>::group(#field)),
        None => quote!(::core::option::Option::None),
    }
}

/// The generics, with a bound for each transparent field whose type depends on them.
fn bounded(model: &Model, paths: &Paths) -> Generics {
    let private = paths.private();
    let mut generics = model.generics.clone();
    let parameters: Vec<_> = model.generics.type_params().map(|p| p.ident.clone()).collect();
    for case in &model.cases {
        let Some((_, ty)) = transparent(model, case) else { continue };
        let mut mentions = Mentions { parameters: &parameters, found: false };
        mentions.visit_type_mut(&mut ty.clone());
        // For any other type the call in `class` is checked as it stands, and a mistake is reported at the field.
        if mentions.found {
            let clause = generics.make_where_clause();
            clause.predicates.push(parse_quote!(#ty: #private::Classify));
        }
    }
    generics
}

/// Looks for a type parameter.
struct Mentions<'a> {
    parameters: &'a [syn::Ident],
    found: bool,
}

impl VisitMut for Mentions<'_> {
    fn visit_ident_mut(&mut self, ident: &mut syn::Ident) {
        // A path may have the name of a parameter by chance. The bound that follows asks for no more than the call
        // does.
        self.found |= self.parameters.contains(ident);
    }
}
