//! `#[dlq_handler]` and `#[derive(Classify)]`, for `dlq-tower`, which re-exports both.
//!
//! Each macro is a folder of stages: `args` (syntax to typed slots that keep their tokens), `model` (what the macro was
//! put on), `check` (rules between parts), `expand`. Mistakes are collected and reported together, each at its token.

mod classify;
mod duration;
mod errors;
mod handler;
mod paths;
mod tokens;

use paths::Root;
use proc_macro::TokenStream;

/// Makes an async function a handler: retried with backoff, classified, idempotent, dead-lettered.
///
/// The function stays as it is written and can be called. Beside it stands a type of the same name with one function,
/// `handler()`, which gives the handler with its policy as a `HandlerBuilder`.
///
/// ```text
/// #[dlq_handler(
///     name = "payments.charge",
///     max_attempts = 5,
///     backoff = exponential("200ms", max = "30s", jitter = full),
///     timeout = "10s",
///     terminal = ChargeError::BadAmount,
///     idempotency_key = |p: &Payment| p.id,
///     order_by = |p: &Payment| p.customer,
/// )]
/// async fn charge(Json(payment): Json<Payment>, attempt: Attempt, State(gateway): State<Gateway>) -> Result<(), ChargeError> {
///     gateway.charge(&payment).await
/// }
/// ```
///
/// # Options
///
/// | option | meaning | default |
/// |---|---|---|
/// | `name = "…"` | stable name, under which letters and claims are kept | module path and function, joined by dots: `shop.payments.charge` |
/// | `aliases = ["…", …]` | names it had before, and whose letters and handled keys it takes over | none |
/// | `max_attempts = N` | how often it runs at most | 3; on a ladder one more than it has stages |
/// | `max_crashes = N` | how many runs may end with the process; 0 for any number | 5 |
/// | `backoff = …` | how long to wait after each attempt, see below | `exponential("200ms")` |
/// | `max_in_process_delay = "…"` | up to which delay a message waits in the process | `"5s"` |
/// | `timeout = "…"` | how long an attempt may take | none |
/// | `concurrency = N` | how many attempts run at once | as many as are in flight |
/// | `panic = permanent` or `retry` | what a panic means | `permanent` |
/// | `terminal = …` | which errors are permanent: a pattern, with `if` and a condition where needed, or a closure | none |
/// | `classify = …` | how errors are judged: a closure or function of the error | its own `Classify`, else transient |
/// | `idempotency_key = \|p\| …` | by which key a message is handled once | none |
/// | `order_by = \|p\| …` | by which key messages keep their order | none |
/// | `state = Type` | the only state it can be built with; for extractors written for one state | any |
/// | `crate = path` | where `dlq_tower` is, for those who re-export it | `::dlq_tower` |
///
/// Durations are texts: `"200ms"`, `"10s"`, `"1h 30m"`.
///
/// Backoffs: `constant("1s")`, `linear("1s", increment = "1s", max = "10s")`,
/// `exponential("200ms", factor = 2, max = "30s")`, `decorrelated("100ms", max = "10s")`, `ladder("30s", "5m", "1h")`. The first three take
/// `jitter = none`, `full` or `equal`.
///
/// `terminal` comes before `classify`. It is a closure exactly when it begins with `|` or `move`; a function is written
/// `|error| error.is_bad()`. A name without a path is a binding, which matches whatever stands in its place; it is refused
/// at any depth, unless the condition uses it or it begins with `_`. Write the whole path of a variant or constant.
///
/// Key closures are given the value of the payload extractor (the `Payment` of `Json<Payment>`); the first of several.
/// They may return text, integers, bytes, and options and tuples of those.
///
/// Set `DLQ_MACROS_DEBUG=1` to have the expansion printed.
#[proc_macro_attribute]
pub fn dlq_handler(args: TokenStream, item: TokenStream) -> TokenStream {
    debugged("dlq_handler", handler::dlq_handler(Root::DlqTower, args.into(), item.into()))
}

// A macro is not told by which crate it was re-exported, so that each of the two has one of its own.
/// [`macro@dlq_handler`] as `tower-dlq` re-exports it.
#[doc(hidden)]
#[proc_macro_attribute]
pub fn dlq_handler_of_tower_dlq(args: TokenStream, item: TokenStream) -> TokenStream {
    debugged("dlq_handler", handler::dlq_handler(Root::TowerDlq, args.into(), item.into()))
}

/// Says of an error whether another attempt could succeed.
///
/// ```text
/// #[derive(Debug, thiserror::Error, Classify)]
/// enum ChargeError {
///     #[error("provider timed out")]
///     Timeout,
///     #[error("rate limited for {after:?}")]
///     #[classify(transient, retry_after = after)]
///     RateLimited { after: Duration },
///     #[error("amount must be positive")]
///     #[classify(permanent, group = "bad amount")]
///     BadAmount,
///     #[error(transparent)]
///     #[classify(transparent)]
///     Store(#[from] StoreError),
/// }
/// ```
///
/// On variants, structs, and enums (for variants that say nothing):
///
/// | word | meaning |
/// |---|---|
/// | `transient` | another attempt may succeed. **The default** |
/// | `permanent` | no attempt will succeed |
/// | `transparent` | as the only field says, which must be classified itself |
/// | `retry_after = …` | how long to wait instead of the policy's delay: a field, the number of one, an expression of fields (`_0`, `_1` for those without a name), or a text such as `"10s"`; of type `Duration` or `Option<Duration>` |
/// | `group = …` | an identity for grouping: a text, or an expression of fields |
/// | `crate = path` | on the type: where `dlq_tower` is |
#[proc_macro_derive(Classify, attributes(classify))]
pub fn classify(input: TokenStream) -> TokenStream {
    debugged("Classify", classify::derive(Root::DlqTower, input.into()))
}

/// [`derive@Classify`] as `tower-dlq` re-exports it.
#[doc(hidden)]
#[proc_macro_derive(ClassifyOfTowerDlq, attributes(classify))]
pub fn classify_of_tower_dlq(input: TokenStream) -> TokenStream {
    debugged("Classify", classify::derive(Root::TowerDlq, input.into()))
}

fn debugged(what: &str, expansion: proc_macro2::TokenStream) -> TokenStream {
    if std::env::var_os("DLQ_MACROS_DEBUG").is_some_and(|value| value == "1") {
        // Standard output is the compiler's, and tools may read it.
        eprintln!("{what} expands to:\n{expansion}\n");
    }
    expansion.into()
}
