use proc_macro2::TokenStream;
use quote::quote;
use syn::parse_quote;

use super::args::Args;
use super::backoff::Kind;
use super::model::Model;
use super::terminal::Terminal;
use super::{check, dlq_handler, read_args};
use crate::errors::Errors;
use crate::paths::Root;

fn mistakes(mut errors: Errors) -> Vec<String> {
    errors.take().into_iter().flatten().map(|error| error.to_string()).collect()
}

/// The options that could be read, and every mistake.
fn read(tokens: TokenStream) -> (Args, Vec<String>) {
    let mut errors = Errors::default();
    let args = read_args(tokens, &mut errors);
    check::check(&args, &mut errors);
    (args, mistakes(errors))
}

fn mistake(tokens: TokenStream) -> String {
    let (_, mistakes) = read(tokens);
    assert_eq!(mistakes.len(), 1, "{mistakes:?}");
    mistakes.into_iter().next().unwrap_or_default()
}

fn refusals(function: &syn::ItemFn) -> Vec<String> {
    let mut errors = Errors::default();
    let model = Model::of(function, &mut errors);
    let mistakes = mistakes(errors);
    assert_eq!(model.is_none(), !mistakes.is_empty());
    mistakes
}

mod args {
    use super::*;

    #[test]
    fn every_option_is_read() {
        let (args, mistakes) = read(quote! {
            name = "payments.charge",
            aliases = ["a", "b"],
            max_attempts = 4,
            max_crashes = 0,
            backoff = ladder("30s", "5m"),
            max_in_process_delay = "1m",
            timeout = "10s",
            concurrency = 2,
            panic = retry,
            terminal = E::Bad | E::Worse { .. } if worse,
            classify = judge,
            idempotency_key = |p: &Payment| p.id,
            order_by = move |p| { p.customer },
            state = App<u8, u16>,
            crate = my::dlq,
        });
        assert!(mistakes.is_empty(), "{mistakes:?}");
        assert_eq!(args.name.unwrap().value(), "payments.charge");
        assert_eq!(args.aliases.unwrap().len(), 2);
        assert_eq!(args.max_attempts.unwrap().value, 4);
        assert_eq!(args.max_crashes.unwrap().value, 0);
        let backoff = args.backoff.unwrap();
        assert_eq!((backoff.kind, backoff.delays.len()), (Kind::Ladder, 2));
        assert_eq!(args.max_in_process_delay.unwrap().value.as_secs(), 60);
        assert_eq!(args.timeout.unwrap().value.as_secs(), 10);
        assert_eq!(args.concurrency.unwrap().value, 2);
        assert!(args.panic.unwrap().retry);
        assert!(matches!(args.terminal, Some(Terminal::Pattern { condition: Some(_), .. })));
        assert!(args.classify.is_some() && args.idempotency_key.is_some());
        assert!(args.order_by.is_some() && args.state.is_some() && args.krate.is_some());
    }

    #[test]
    fn one_mistake_does_not_hide_the_next() {
        let (args, mistakes) = read(quote! {
            timeout = 5, backof = exponential("1s", max = "2s"), max_attempts, panic = maybe,
            concurrency = 2, aliases = ["a" "b"], order_by = key, max_in_process_delay = "1 week"
        });
        let expected = [
            "expected a duration in quotes",
            "unknown option `backof`, expected one of: `name`",
            "`max_attempts` needs a value",
            "`panic = maybe` has no meaning",
            "expected `,`",
            "expected a closure of the payload",
            "`1 week` is not a duration: `week` is not a unit",
        ];
        assert_eq!(mistakes.len(), expected.len(), "{mistakes:?}");
        for (mistake, expected) in mistakes.iter().zip(expected) {
            assert!(mistake.contains(expected), "expected `{expected}` in `{mistake}`");
        }
        assert_eq!(args.concurrency.unwrap().value, 2, "what is right is read nevertheless");
    }

    #[test]
    fn options_do_not_run_into_each_other() {
        let (args, mistakes) = read(quote! {
            terminal = |e| e.a() || e.b(), idempotency_key = |p: &P| (p.a, p.b), timeout = "1s"
        });
        assert!(mistakes.is_empty(), "{mistakes:?}");
        assert!(matches!(args.terminal, Some(Terminal::Closure(_))));
        assert!(args.idempotency_key.is_some() && args.timeout.is_some());
        assert!(
            mistake(quote!(timeout = "1s" max_attempts = 3))
                .contains("expected `,` after `timeout`")
        );
        assert!(mistake(quote!(timeout = "1s", timeout = "2s")).contains("set twice"));
    }

    #[test]
    fn a_key_closure_takes_one_argument_and_does_not_wait() {
        assert!(mistake(quote!(order_by = |a, b| a)).contains("takes 2 arguments"));
        assert!(mistake(quote!(order_by = || 7)).contains("takes 0 arguments"));
        assert!(mistake(quote!(order_by = |p: Payment| p.id)).contains("write `&Payment`"));
        for fine in [quote!(|p: &Payment| p.id), quote!(|p: _| 7), quote!(|Payment { id, .. }| id)]
        {
            assert!(read(quote!(order_by = #fine)).1.is_empty(), "{fine}");
        }
    }
}

mod terminal {
    use super::*;

    #[test]
    fn a_closure_begins_with_a_bar_or_move() {
        let closure = |tokens| matches!(syn::parse2(tokens), Ok(Terminal::Closure(_)));
        assert!(closure(quote!(|e| e.is_bad())));
        assert!(closure(quote!(move |e: &E| e.is_bad())));
        assert!(!closure(quote!(E::Bad)));
        assert!(!closure(quote!(E::Bad | E::Worse)));
    }

    #[test]
    fn bindings_that_match_everything_are_refused() {
        let refused = |tokens: TokenStream| {
            syn::parse2::<Terminal>(tokens).err().is_some_and(|e| e.to_string().contains("binding"))
        };
        assert!(refused(quote!(BadAmount)));
        assert!(refused(quote!(bad_amount)));
        assert!(refused(quote!(E::Bad | Worse)));
        assert!(refused(quote!((Worse))));
        assert!(refused(quote!(Bad if true)));
        assert!(refused(quote!(e @ Bad)));
        assert!(refused(quote!(e if true)), "the condition is of something else");
        for fine in
            [quote!(E::Bad), quote!(Bad(_)), quote!(Bad { .. }), quote!(e if e.is_bad()), quote!(_)]
        {
            assert!(!refused(fine.clone()), "{fine}");
            assert!(syn::parse2::<Terminal>(fine.clone()).is_ok(), "{fine}");
        }
    }

    #[test]
    fn bindings_are_refused_at_any_depth_unless_the_condition_uses_them() {
        let refused = |tokens: TokenStream| {
            let errors = syn::parse2::<Terminal>(tokens).err().into_iter().flatten();
            errors.map(|error| error.to_string()).collect::<Vec<_>>()
        };
        for (wrong, name) in [
            (quote!(Out::Store(Misspelt)), "`Misspelt` is a binding"),
            (quote!(Out::Store(Misspelt) if true), "`Misspelt` is a binding"),
            (quote!(Out::Store(Misspelt) if Misspelt.is_bad()), "`Misspelt` is a binding"),
            (quote!(Out::Store(Inner { kind: Kind::Deep(&Gone), .. })), "`Gone` is a binding"),
            (quote!(Out::Http { status, .. }), "`status` is a binding"),
            (quote!(Out::Http { status, .. } if other > 3), "`status` is a binding"),
            (quote!(Out::Many([first, ..])), "`first` is a binding"),
            (quote!(Out::A(_) | (Out::B(Gone))), "`Gone` is a binding"),
            (quote!(all @ Out::Store(Gone) if all.is_bad()), "`Gone` is a binding"),
        ] {
            let found = refused(wrong.clone());
            assert!(found.len() == 1 && found[0].contains(name), "{wrong}: {found:?}");
        }
        assert_eq!(refused(quote!(Out::Pair(One, Two))).len(), 2, "all are named at once");
        for fine in [
            quote!(Out::Store(Store::Gone)),
            quote!(Out::Store(_)),
            quote!(Out::Store(_inner)),
            quote!(Out::Http { status, .. } if *status < 500),
            quote!(Out::Http { status: 400..=499 }),
            quote!(Out::Text(text) if is_bad(&format!("{text:?}"))),
            quote!(all @ Out::Store(_)),
            quote!(Out::Sized(
                const {
                    let size = 3;
                    size
                }
            )),
            quote!(Some(Out::Store(Store::Gone))),
        ] {
            assert_eq!(refused(fine.clone()), Vec::<String>::new(), "{fine}");
        }
    }
}

mod rules {
    use super::*;

    #[test]
    fn contradictions_are_named() {
        let cases = [
            (quote!(max_attempts = 0), "never run the handler"),
            (quote!(concurrency = 0), "never run the handler"),
            (quote!(timeout = "0s"), "no attempt can succeed"),
            (quote!(max_attempts = 1, panic = retry), "contradicts `max_attempts = 1`"),
            (quote!(backoff = exponential("1m", max = "30s")), "below the first delay"),
            (quote!(backoff = decorrelated("1m")), "above the default cap of 30 s"),
            (quote!(backoff = linear("2h")), "above the default cap of 3600 s"),
            (quote!(backoff = exponential("1s", factor = 0)), "write at least 1"),
            (quote!(backoff = ladder("5m", "30s")), "goes down"),
            (
                quote!(max_attempts = 2, backoff = ladder("1s", "2s")),
                "the stage \"2s\" is never reached; allow 3 attempts",
            ),
            (quote!(name = ""), "not a name"),
            (quote!(name = "a.*"), "not a name"),
            (quote!(name = "a", aliases = ["a"]), "given twice"),
        ];
        for (tokens, expected) in cases {
            let found = mistake(tokens);
            assert!(found.contains(expected), "expected `{expected}` in `{found}`");
        }
    }

    #[test]
    fn what_fits_passes() {
        let cases = [
            quote!(max_attempts = 3, backoff = ladder("1s", "2s")),
            quote!(max_attempts = 9, backoff = ladder("1s", "1s")),
            quote!(backoff = exponential("30s", factor = 1.0)),
            quote!(backoff = constant("2h")),
            quote!(max_attempts = 1, panic = permanent),
        ];
        for tokens in cases {
            let (_, mistakes) = read(tokens.clone());
            assert!(mistakes.is_empty(), "{tokens}: {mistakes:?}");
        }
    }

    #[test]
    fn settings_belong_to_their_backoff() {
        let cases = [
            (
                quote!(backoff = constant("1s", max = "2s")),
                "no setting `max`, expected one of: `jitter`",
            ),
            (quote!(backoff = ladder("1s", jitter = full)), "it takes delays alone"),
            (quote!(backoff = decorrelated("1s", jitter = full)), "expected one of: `max`"),
            (quote!(backoff = exponential("1s", "2s")), "takes one delay"),
            (quote!(backoff = exponential), "needs a delay"),
            (quote!(backoff = exponential(max = "2s")), "needs a delay"),
            (quote!(backoff = fibonacci("1s")), "unknown backoff `fibonacci`"),
            (quote!(backoff = constant("1s", jitter = some)), "unknown jitter `some`"),
        ];
        for (tokens, expected) in cases {
            let found = mistake(tokens);
            assert!(found.contains(expected), "expected `{expected}` in `{found}`");
        }
    }
}

mod model {
    use super::*;

    #[test]
    fn a_free_async_function_is_a_handler() {
        let function = parse_quote! {
            #[cfg(feature = "x")]
            pub(crate) async fn charge(Json(p): Json<Payment>, _: Attempt) -> Result<(), E> { Ok(()) }
        };
        let mut errors = Errors::default();
        let model = Model::of(&function, &mut errors).unwrap();
        assert!(errors.take().is_none());
        assert_eq!((model.arguments.len(), model.conditions.len()), (2, 1));
        assert_eq!(model.name, "charge");
        assert_eq!(model.output, parse_quote!(Result<(), E>));
        let nothing = Model::of(
            &parse_quote!(
                async fn f() {}
            ),
            &mut errors,
        )
        .unwrap();
        assert_eq!(nothing.output, parse_quote!(()));
    }

    #[test]
    fn every_reason_against_is_given() {
        let cases: [(syn::ItemFn, &[&str]); 9] = [
            (
                parse_quote!(
                    fn f() {}
                ),
                &["write `async fn`"],
            ),
            (
                parse_quote!(
                    async fn f<T>(t: T) {}
                ),
                &["cannot be generic"],
            ),
            (
                parse_quote!(
                    async fn f<'a>(t: &'a str)
                    where
                        'a: 'a,
                    {
                    }
                ),
                &["cannot be generic", "no bounds"],
            ),
            (
                parse_quote!(
                    async fn f(a: &Message, b: Option<&'_ str>, c: Json<Cow<'_, str>>) {}
                ),
                &["write `Message`", "write `Bytes`", "without a lifetime"],
            ),
            (
                parse_quote!(
                    async fn f(a: &u8, b: impl Sized) {}
                ),
                &["is owned", "one type"],
            ),
            (
                parse_quote!(
                    async unsafe fn f() {}
                ),
                &["cannot be `unsafe`"],
            ),
            (
                parse_quote!(
                    extern "C" fn f() {}
                ),
                &["async fn", "no ABI"],
            ),
            (
                parse_quote!(
                    async fn f(a: impl Send) -> impl Send {}
                ),
                &["one type", "names what it returns"],
            ),
            (
                parse_quote!(
                    async fn f(
                        a: A,
                        b: A,
                        c: A,
                        d: A,
                        e: A,
                        f: A,
                        g: A,
                        h: A,
                        i: A,
                        j: A,
                        k: A,
                        l: A,
                        m: A,
                    ) {
                    }
                ),
                &["at most 12 arguments, found 13"],
            ),
        ];
        for (function, expected) in cases {
            let found = refusals(&function);
            assert_eq!(found.len(), expected.len(), "{found:?}");
            for (found, expected) in found.iter().zip(expected) {
                assert!(found.contains(expected), "expected `{expected}` in `{found}`");
            }
        }
    }
}

mod expansion {
    use super::*;

    fn text(args: TokenStream, item: TokenStream) -> String {
        dlq_handler(Root::DlqTower, args, item).to_string()
    }

    #[test]
    fn the_function_is_emitted_as_it_was_written_whatever_happens() {
        let function = quote! {
            #[allow(unused)]
            pub async fn charge(Json(payment): Json<Payment>) -> Result<(), E> { Ok(()) }
        };
        let written = function.to_string();
        for args in [quote!(), quote!(max_attempts = 0), quote!(nonsense), quote!(= = "x")] {
            let expansion = text(args, function.clone());
            assert!(expansion.contains(&written), "{expansion}");
            assert!(expansion.contains("struct charge { }"), "{expansion}");
        }
        let generic = quote!(
            async fn charge<T>(t: T) {}
        );
        assert!(text(quote!(), generic.clone()).contains(&generic.to_string()));
        let item = quote!(
            struct Charge;
        );
        let expansion = text(quote!(), item.clone());
        assert!(expansion.contains(&item.to_string()) && expansion.contains("compile_error"));
    }

    #[test]
    fn it_is_valid_and_has_no_mistakes_where_there_are_none() {
        let args = quote! {
            max_attempts = 5, terminal = E::Bad, order_by = |p: &Payment| p.customer, timeout = "1s"
        };
        let function = quote!(
            async fn charge(p: Json<Payment>, _: Attempt) -> Result<(), E> {
                Ok(())
            }
        );
        let expansion = dlq_handler(Root::DlqTower, args, function);
        let file: syn::File = syn::parse2(expansion.clone()).unwrap();
        assert_eq!(file.items.len(), 3, "the function, its type, and one block");
        let expansion = expansion.to_string();
        assert!(!expansion.contains("compile_error"));
        assert!(expansion.contains("matches ! (__dlq_error , E :: Bad)"), "{expansion}");
        assert!(expansion.contains("to_key (& (p . customer))"), "{expansion}");
    }

    #[test]
    fn all_paths_lead_through_the_crate_that_is_named() {
        let function = quote!(
            async fn charge(p: Json<Payment>) {}
        );
        let expansion = text(quote!(crate = my::own, order_by = |p| p.id), function);
        assert!(expansion.contains("my :: own :: __private"));
        assert!(!expansion.contains("dlq_tower"), "{expansion}");
    }

    #[test]
    fn conditions_hold_for_what_is_generated() {
        let expansion = text(
            quote!(),
            quote!(
                #[cfg(unix)]
                async fn charge() {}
            ),
        );
        assert_eq!(expansion.matches("cfg (unix)").count(), 3, "{expansion}");
    }
}

#[test]
fn owned_arguments_are_taken() {
    for function in [
        parse_quote!(
            async fn f(a: State<&'static str>, b: State<fn(&str) -> &u8>) {}
        ),
        parse_quote!(
            async fn f(a: State<Arc<dyn Fn(&str) + Send + Sync>>, b: Json<Vec<u8>>) {}
        ),
    ] {
        assert!(refusals(&function).is_empty(), "{function:?}");
    }
}
