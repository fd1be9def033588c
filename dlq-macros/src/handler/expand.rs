//! The code beside the function: a thin call into the library, where the logic is.

use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, quote, quote_spanned};
use syn::ext::IdentExt;
use syn::spanned::Spanned;
use syn::visit_mut::VisitMut;
use syn::{
    Expr, ExprAsync, ExprClosure, ExprReturn, Ident, Item, Pat, ReturnType, Type,
    parse_quote_spanned,
};

use super::args::{Args, KeyClosure};
use super::model::Model;
use super::terminal::Terminal;
use crate::paths::Paths;
use crate::tokens::{local, ungrouped_type};

/// The variable that the builder is in while its settings are made.
const BUILDER: &str = "__dlq_builder";

pub(super) fn expand(model: &Model, args: &Args) -> TokenStream {
    let paths = Paths::new(args.krate.as_ref());
    let (private, handler) = (paths.private(), paths.handler());
    let Model { visibility, name, conditions, output, .. } = model;
    let stable = stable_name(model, args, &paths);
    let aliases = args.aliases.iter().flatten();
    let classifier = classifier(model, args, &paths);
    let settings = settings(args, &paths);
    let keys = keys(model, args, &paths);
    let implementation = implementation(model, args, &paths);
    let checks = checks(model, args, &paths);
    // At the name, since the line of a handler is that of its function and not of the attribute above.
    let location = quote_spanned!(name.span()=>
        ::core::concat!(::core::file!(), ":", ::core::line!(), ":", ::core::column!())
    );
    // Named at the user's own return type, so that one that does not fit is reported there.
    let error = error(model);
    let returns = returns(model, &paths);
    let (builder, judge) = (local(BUILDER), local("__dlq_classifier"));
    let summary = format!("The handler of [`{}`](fn@{name}).", name.unraw());

    quote! {
        #(#conditions)*
        #[doc = #summary]
        #[allow(non_camel_case_types)]
        #[derive(::core::clone::Clone, ::core::marker::Copy, ::core::fmt::Debug)]
        // With braces this is the name of a type alone, beside which the function keeps its own.
        #visibility struct #name {}

        #(#conditions)*
        const _: () = {
            #[allow(unused_imports)]
            use #private::{
                ViaClassify as _, ViaHandlerError as _, ViaNothing as _, ViaOther as _, ViaPayload as _,
            };

            type #error = <#output as #handler::HandlerOutput>::Error;

            #[automatically_derived]
            #[allow(trivial_bounds)]
            impl #name where #returns {
                /// The handler with the policy that its attribute sets, to be given its state and to be built.
                #[allow(clippy::redundant_closure_call)]
                #visibility fn handler() -> #handler::HandlerBuilder<
                    Self,
                    (),
                    #private::BoxClassifier<#error>,
                > {
                    let #judge = #classifier;
                    let #builder = #private::annotated(
                        #stable,
                        &[#(#aliases),*],
                        #location,
                        Self {},
                        #judge,
                    );
                    #settings
                    #keys
                    #builder
                }
            }

            #implementation
            #checks
        };
    }
}

fn stable_name(model: &Model, args: &Args, paths: &Paths) -> TokenStream {
    match &args.name {
        Some(name) => quote!(#name),
        None => {
            let private = paths.private();
            let function = model.name.unraw().to_string();
            // Only where the function stands is it known in which module that is.
            quote!(&*#private::default_name(::core::module_path!(), #function))
        }
    }
}

/// The alias of the error's type.
fn error(model: &Model) -> Ident {
    Ident::new("__DlqError", model.output.span())
}

/// Asked for by every item that depends on it: one that does not hold is reported once, and no errors follow.
fn returns(model: &Model, paths: &Paths) -> TokenStream {
    let output = &model.output;
    let handler = respanned(paths.handler(), output.span());
    quote_spanned!(output.span()=> #output: #handler::HandlerOutput)
}

/// The same tokens, all at one place: what spans several is reported at the attribute.
fn respanned(tokens: TokenStream, span: Span) -> TokenStream {
    let at_span = tokens.into_iter().map(|mut token| {
        token.set_span(span);
        token
    });
    at_span.collect()
}

fn classifier(model: &Model, args: &Args, paths: &Paths) -> TokenStream {
    let (private, error_type) = (paths.private(), error(model));
    let judge = match &args.classify {
        Some(judge) => {
            let judge = &judge.0;
            quote_spanned!(judge.span()=> #private::closure::<#error_type, _, _>(#judge))
        }
        // The two references decide in which order method look-up asks the traits that are imported above.
        None => quote!((&&#private::ClassProbe::<#error_type>::NEW).judge()),
    };
    let terminal = match &args.terminal {
        None => return judge,
        Some(Terminal::Closure(closure)) => quote!(#closure),
        Some(Terminal::Pattern { pattern, condition }) => {
            let condition = condition.as_ref().map(|condition| quote!(if #condition));
            let error = local("__dlq_error");
            quote_spanned!(pattern.span()=>
                |#error: &#error_type| ::core::matches!(#error, #pattern #condition)
            )
        }
    };
    quote! {
        #private::classifier(#private::pattern::<#error_type, _>(#terminal), #judge)
    }
}

fn settings(args: &Args, paths: &Paths) -> TokenStream {
    let private = paths.private();
    let mut policy = TokenStream::new();
    // Only options that were given are set, so that defaults are written once, in the library.
    if let Some(backoff) = &args.backoff {
        let backoff = backoff.expand(paths);
        policy.extend(quote!(.with_backoff(#backoff)));
    }
    if let Some(attempts) = &args.max_attempts {
        let attempts = attempts.value;
        policy.extend(quote!(.with_max_attempts(#attempts)));
    }
    if let Some(crashes) = &args.max_crashes {
        let crashes = crashes.value;
        policy.extend(quote!(.with_max_crashes(#crashes)));
    }
    if let Some(limit) = &args.max_in_process_delay {
        let limit = limit.expand(paths);
        policy.extend(quote!(.with_max_in_process_delay(#limit)));
    }
    if args.panic.as_ref().is_some_and(|panic| panic.retry) {
        policy.extend(quote!(.with_panic(#private::PanicPolicy::Retry)));
    }
    let timeout = args.timeout.as_ref().map(|timeout| {
        let timeout = timeout.expand(paths);
        quote!(.timeout(#timeout))
    });
    let concurrency = args.concurrency.as_ref().map(|limit| {
        let limit = limit.value;
        quote!(.concurrency(#limit))
    });
    let builder = local(BUILDER);
    quote! {
        let #builder = #builder
            .policy(#private::RetryPolicy::new() #policy)
            #timeout
            #concurrency;
    }
}

fn keys(model: &Model, args: &Args, paths: &Paths) -> TokenStream {
    let (private, builder) = (paths.private(), local(BUILDER));
    let key = |closure: &Option<KeyClosure>, set: TokenStream| {
        closure.as_ref().map(|closure| {
            let span = closure.0.body.span();
            let found = found(model, paths, span);
            let value = value_type(closure);
            let closure = key_closure(closure, paths);
            quote_spanned!(span=>
                let #builder = #private::#set::<_, _, _, _, #value, _>(#builder, #found, #closure);
            )
        })
    };
    let once = key(&args.idempotency_key, quote!(idempotency_key));
    let order = key(&args.order_by, quote!(order_by));
    quote!(#once #order)
}

/// The first argument that is a payload, found by method look-up.
fn found(model: &Model, paths: &Paths, span: Span) -> TokenStream {
    let private = paths.private();
    // The fold begins with the last argument, so that the first one stands outermost and is asked first.
    model.arguments.iter().rev().fold(quote_spanned!(span=> ()), |rest, argument| {
        quote_spanned!(span=> (&#private::PayloadProbe::<#argument>::NEW).first(#rest))
    })
}

/// The type that the closure says its value has. Where it is not that of the payload, it is found before the closure is
/// looked at, and is reported where it is written.
fn value_type(closure: &KeyClosure) -> TokenStream {
    if let Some(Pat::Type(argument)) = closure.0.inputs.first()
        && let Type::Reference(reference) = ungrouped_type(&argument.ty)
    {
        return reference.elem.to_token_stream();
    }
    quote!(_)
}

/// The closure, which returns a key whatever it returned before. The body is not moved: it may name a field. One that
/// returns early is a closure of its own, whose value is the key either way.
fn key_closure(closure: &KeyClosure, paths: &Paths) -> TokenStream {
    let handler = paths.handler();
    let mut closure = closure.0.clone();
    let (body, output) = (&closure.body, &closure.output);
    let span = body.span();
    let key = local("__dlq_key");
    let body = match &closure.output {
        _ if returns_early(body) => parse_quote_spanned!(span=> {
            let #key = (|| #output { #body })();
            #handler::ToKey::to_key(&#key)
        }),
        ReturnType::Default => {
            parse_quote_spanned!(span=> #handler::ToKey::to_key(&(#body)))
        }
        ReturnType::Type(_, output) => parse_quote_spanned!(span=> {
            let #key: #output = #body;
            #handler::ToKey::to_key(&#key)
        }),
    };
    *closure.body = body;
    closure.output = ReturnType::Default;
    quote!(#closure)
}

/// Returns true if a `return` in it is its own, not that of a function or closure inside.
fn returns_early(body: &Expr) -> bool {
    struct Returns(bool);

    impl VisitMut for Returns {
        fn visit_expr_return_mut(&mut self, _: &mut ExprReturn) {
            self.0 = true;
        }

        fn visit_expr_closure_mut(&mut self, _: &mut ExprClosure) {}

        fn visit_expr_async_mut(&mut self, _: &mut ExprAsync) {}

        fn visit_item_mut(&mut self, _: &mut Item) {}
    }

    let mut returns = Returns(false);
    returns.visit_expr_mut(&mut body.clone());
    returns.0
}

fn implementation(model: &Model, args: &Args, paths: &Paths) -> TokenStream {
    let (private, handler, extract, core) =
        (paths.private(), paths.handler(), paths.extract(), paths.core());
    let Model { name, arguments, .. } = model;
    let error = error(model);
    // A handler for any state has a parameter for it, and asks of it what its arguments need.
    let (parameter, state, bounds) = match &args.state {
        Some(state) => (None, quote!(#state), None),
        None => {
            let bounds = arguments.iter().map(
                |argument| quote_spanned!(argument.span()=> #argument: #extract::FromDelivery<__DlqState>),
            );
            let bounds = quote! {
                __DlqState: ::core::marker::Send + ::core::marker::Sync + 'static,
                #(#bounds,)*
            };
            (Some(quote!(__DlqState)), quote!(__DlqState), Some(bounds))
        }
    };
    let returns = returns(model, paths);
    let (delivery, given) = (local("__dlq_delivery"), local("__dlq_state"));
    let run = quote_spanned!(name.span()=>
        #handler::HandlerFn::<#state, (#(#arguments,)*)>::run(&#name, #delivery, #given)
    );
    quote! {
        #[automatically_derived]
        #[allow(trivial_bounds)]
        impl<#parameter> #handler::HandlerFn<#state, #private::Annotated> for #name
        where
            #returns,
            #bounds
        {
            type Error = #error;

            fn run(
                &self,
                #delivery: #core::Delivery,
                #given: &#state,
            ) -> impl ::core::future::Future<
                Output = ::core::result::Result<(), #handler::Failed<#error>>,
            // It captures neither `self` nor the state, and may outlive both.
            > + ::core::marker::Send + 'static + use<#parameter> {
                #run
            }
        }
    }
}

/// Calls that do not compile where a type is not what it has to be; the message stands under the user's own type.
fn checks(model: &Model, args: &Args, paths: &Paths) -> TokenStream {
    let private = paths.private();
    let state =
        args.state.as_ref().map_or_else(|| quote!(#private::AnyState), |state| quote!(#state));
    let arguments = model.arguments.iter().map(|argument| {
        quote_spanned!(argument.span()=> const _: () = #private::is_extractor::<#argument, #state>();)
    });
    quote!(#(#arguments)*)
}
