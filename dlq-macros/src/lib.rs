//! Placeholder.

/// Placeholder.
#[proc_macro_derive(Classify, attributes(classify))]
pub fn classify(input: proc_macro::TokenStream) -> proc_macro::TokenStream { let _ = input; proc_macro::TokenStream::new() }

/// Placeholder.
#[proc_macro_attribute]
pub fn dlq_handler(args: proc_macro::TokenStream, input: proc_macro::TokenStream) -> proc_macro::TokenStream { let _ = args; input }
