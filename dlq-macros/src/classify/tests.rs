use proc_macro2::TokenStream;
use quote::quote;

use super::derive;
use crate::paths::Root;

fn text(input: TokenStream) -> String {
    derive(Root::DlqTower, input).to_string()
}

/// The texts of all mistakes in an expansion.
fn mistakes(input: TokenStream) -> Vec<String> {
    let expansion: syn::File = syn::parse2(derive(Root::DlqTower, input)).unwrap();
    let macros = expansion.items.into_iter().filter_map(|item| match item {
        syn::Item::Macro(item) => syn::parse2::<syn::LitStr>(item.mac.tokens).ok(),
        _ => None,
    });
    macros.map(|message| message.value()).collect()
}

#[test]
fn each_word_has_its_arm() {
    let expansion = text(quote! {
        enum E {
            A,
            #[classify(permanent)] B(u8),
            #[classify(retry_after = wait)] C { wait: Duration },
            #[classify(retry_after = "1s")] D,
            #[classify(transparent)] F(Inner),
        }
    });
    for part in [
        "Self :: A { .. } => :: dlq_tower :: __private :: Classification :: transient ()",
        "Self :: B { 0 : _0 } => :: dlq_tower :: __private :: Classification :: permanent ()",
        "Self :: C { wait } => :: dlq_tower :: __private :: retry_after (& (wait))",
        "duration (1u64 , 0u32)",
        "< Inner as :: dlq_tower :: __private :: Classify > :: classify (_0)",
        "< Inner as :: dlq_tower :: __private :: Classify > :: group (_0)",
    ] {
        assert!(expansion.contains(part), "expected `{part}` in `{expansion}`");
    }
}

#[test]
fn types_that_say_nothing_of_groups_have_no_code_for_them() {
    assert!(
        !text(quote!(
            enum E {
                A,
            }
        ))
        .contains("fn group")
    );
    assert!(
        text(quote!(
            #[classify(group = "g")]
            struct E;
        ))
        .contains("fn group")
    );
}

#[test]
fn bounds_are_added_where_a_field_needs_them() {
    let expansion = text(quote!(
        #[classify(transparent)]
        struct E<T>(Box<T>);
    ));
    assert!(
        expansion.contains("where Box < T > : :: dlq_tower :: __private :: Classify"),
        "{expansion}"
    );
    let expansion = text(quote!(
        #[classify(permanent)]
        struct E<T>(T);
    ));
    assert!(!expansion.contains("where"), "{expansion}");
    let expansion = text(quote!(
        enum E<T> {
            #[classify(transparent)]
            A(Inner),
            B(T),
        }
    ));
    assert!(!expansion.contains("where"), "{expansion}");
}

#[test]
fn mistakes_are_named_and_reported_together() {
    let found = mistakes(quote! {
        #[classify(transparent)]
        enum E {
            #[classify(temporary)] A,
            #[classify(permanent, retry_after = "1s")] B,
            #[classify(transient, permanent)] C,
            #[classify(transparent)] D(u8, u8),
            #[classify(retry_after = 2)] F(u8),
            #[classify(retry_after = "soon")] G,
            #[classify()] H,
            I(#[classify(permanent)] u8),
        }
    });
    let expected = [
        "unknown word `temporary`",
        "`permanent` contradicts `transient`",
        "`soon` is not a duration",
        "expected one of: `transient`",
        "not on a field",
        "`transparent` goes on a variant",
        "`retry_after` contradicts `permanent`",
        "exactly one field",
        "`F` has no field 2",
    ];
    assert_eq!(found.len(), expected.len(), "{found:#?}");
    for (found, expected) in found.iter().zip(expected) {
        assert!(found.contains(expected), "expected `{expected}` in `{found}`");
    }
}

#[test]
fn words_stand_in_brackets() {
    let found = mistakes(quote! {
        enum E {
            #[classify = "permanent"] A,
            #[classify = "certain"] B,
            #[classify] C,
            #[classify(permanent)] D,
        }
    });
    let expected = [
        "`#[classify(permanent)]`",
        "`#[classify(permanent)]`",
        "`#[classify(permanent)]`; expected",
    ];
    assert_eq!(found.len(), expected.len(), "{found:#?}");
    for (found, expected) in found.iter().zip(expected) {
        assert!(found.contains(expected), "expected `{expected}` in `{found}`");
    }
}
