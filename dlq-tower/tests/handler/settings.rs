//! Settings from everywhere, and which of them wins.

use std::collections::HashMap;
use std::error::Error;
use std::time::Duration;

use dlq_tower::core::RetryPolicy;
use dlq_tower::core::idempotency::memory::MemoryIdempotency;
use dlq_tower::core::policy::{Backoff, PanicPolicy};
use dlq_tower::dlq_handler;
use dlq_tower::handler::{HandlerConfig, Handles, InvalidConfig, handler};
use dlq_tower::router::Router;

#[dlq_handler(name = "payments.charge", max_attempts = 4, max_crashes = 7, timeout = "1s")]
async fn charge() {}

fn config(json: &str) -> HandlerConfig {
    serde_json::from_str(json).unwrap()
}

fn variables(pairs: &[(&str, &str)]) -> impl Fn(&str) -> Option<String> + Send + Sync + 'static {
    let pairs: HashMap<_, _> =
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    move |name| pairs.get(name).cloned()
}

#[test]
fn who_is_closer_to_the_running_program_wins() {
    let attempts = |stack: Result<dlq_tower::handler::HandlerStack, InvalidConfig>| {
        stack.unwrap().policy().max_attempts()
    };
    let five = config(r#"{ "payments.charge": { "max_attempts": 5 } }"#);
    let six = variables(&[("DLQ_PAYMENTS_CHARGE_MAX_ATTEMPTS", "6")]);

    // Default, attribute, code, configuration, environment: each beats the one before, in any order of calls.
    assert_eq!(attempts(handler("payments.charge", charge).build()), 3);
    assert_eq!(attempts(charge::handler().build()), 4);
    let code = || charge::handler().policy(RetryPolicy::new().with_max_attempts(2));
    assert_eq!(attempts(code().build()), 2);
    assert_eq!(attempts(charge::handler().configure(&five).build()), 5);
    assert_eq!(attempts(code().configure(&five).build()), 5);
    let policy = RetryPolicy::new().with_max_attempts(2);
    assert_eq!(attempts(charge::handler().configure(&five).policy(policy).build()), 5);
    assert_eq!(attempts(code().env_from("DLQ", six).configure(&five).build()), 6);

    // What nobody overrides stays.
    let stack = charge::handler().configure(&five).build().unwrap();
    assert_eq!(stack.policy().max_crashes(), 7);
    assert_eq!(stack.timeout(), Some(Duration::from_secs(1)));
}

#[test]
fn every_setting_can_come_from_the_configuration() {
    let config = config(
        r#"{
            "*": { "max_attempts": 9, "max_crashes": 1, "concurrency": 3 },
            "payments.charge": {
                "max_retries": 3, "backoff": "ladder(30s, 5m)", "max_in_process_delay": "2s",
                "max_retry_after": "1h", "panic": "retry", "timeout": "10s"
            },
            "payments.chagre": { "max_attempts": 1 }
        }"#,
    );
    let stack = charge::handler().configure(&config).build().unwrap();
    let minutes = [30, 300].map(Duration::from_secs);
    let policy = RetryPolicy::new()
        .with_max_attempts(3)
        .with_max_crashes(1)
        .with_backoff(Backoff::ladder(minutes))
        .with_max_in_process_delay(Duration::from_secs(2))
        .with_max_retry_after(Duration::from_secs(3600))
        .with_panic(PanicPolicy::Retry);
    assert_eq!(stack.policy(), &policy);
    assert_eq!(stack.timeout(), Some(Duration::from_secs(10)));
    assert_eq!(stack.concurrency(), Some(3));
    assert_eq!(config.unknown(&stack.names()), ["payments.chagre"]);
    let error = config.check(&stack.names()).unwrap_err().to_string();
    assert!(error.contains("`payments.chagre`, which is no handler"), "{error}");
    assert!(error.contains("there are `payments.charge`"), "{error}");
    assert!(config.check(&["payments.charge", "payments.chagre"]).is_ok());
    let unknown = serde_json::from_str::<HandlerConfig>(r#"{ "a": { "attempts": 1 } }"#);
    let error = unknown.unwrap_err().to_string();
    assert!(error.contains("`attempts`") && error.contains("`max_attempts`"), "{error}");
}

#[test]
fn every_setting_can_come_from_the_environment() {
    let lookup = variables(&[
        ("DLQ_MAX_RETRIES", "9"),
        ("DLQ_MAX_CRASHES", "1"),
        ("DLQ_PAYMENTS_CHARGE_MAX_RETRIES", "3"),
        ("DLQ_PAYMENTS_CHARGE_BACKOFF", "constant(2s)"),
        ("DLQ_PAYMENTS_CHARGE_MAX_IN_PROCESS_DELAY", "2s"),
        ("DLQ_PAYMENTS_CHARGE_MAX_RETRY_AFTER", "1h"),
        ("DLQ_PAYMENTS_CHARGE_PANIC", "retry"),
        ("DLQ_PAYMENTS_CHARGE_TIMEOUT", "10s"),
        ("DLQ_PAYMENTS_CHARGE_CONCURRENCY", "3"),
    ]);
    let stack = charge::handler().env_from("DLQ_", lookup).build().unwrap();
    let policy = RetryPolicy::new()
        .with_max_attempts(3)
        .with_max_crashes(1)
        .with_backoff(Backoff::constant(Duration::from_secs(2)))
        .with_max_in_process_delay(Duration::from_secs(2))
        .with_max_retry_after(Duration::from_secs(3600))
        .with_panic(PanicPolicy::Retry);
    assert_eq!(stack.policy(), &policy);
    assert_eq!(stack.timeout(), Some(Duration::from_secs(10)));
    assert_eq!(stack.concurrency(), Some(3));
}

#[test]
fn what_cannot_be_read_or_contradicts_itself_is_refused_by_name() {
    fn report(error: &dyn Error) -> String {
        error.source().map_or_else(String::new, report_of).to_string() + &error.to_string()
    }
    fn report_of(error: &dyn Error) -> String {
        format!("{error} < ")
    }
    let refused = |builder: Result<dlq_tower::handler::HandlerStack, InvalidConfig>, part: &str| {
        let error = builder.unwrap_err();
        let text = report(&error);
        assert!(text.contains(part), "expected `{part}` in `{text}`");
    };
    let env = |name: &str, value: &str| {
        charge::handler().env_from("DLQ", variables(&[(name, value)])).build()
    };
    refused(env("DLQ_MAX_ATTEMPTS", "many"), "DLQ_MAX_ATTEMPTS");
    refused(env("DLQ_PAYMENTS_CHARGE_TIMEOUT", "10"), "DLQ_PAYMENTS_CHARGE_TIMEOUT");
    refused(env("DLQ_CONCURRENCY", "-1"), "DLQ_CONCURRENCY");
    refused(env("DLQ_CONCURRENCY", "0"), "concurrency = 0");
    refused(env("DLQ_MAX_ATTEMPTS", "0"), "max_attempts = 0");
    let two = config(r#"{ "*": { "backoff": "ladder(1s, 2s, 3s, 4s)" } }"#);
    refused(charge::handler().configure(&two).build(), "never reaches");
    refused(charge::handler().timeout(Duration::ZERO).build(), "timeout = 0s");
    refused(charge::handler().name("").build(), "is not a name");
    refused(charge::handler().alias("a b").build(), "`a b` is not a name");
    refused(charge::handler().idempotency_key(|_| "k").build(), "no store");
    let store = MemoryIdempotency::new();
    refused(charge::handler().idempotency(store).build(), "no `idempotency_key`");
}

/// A variable that is set for one would change the other.
#[test]
fn names_whose_variables_are_the_same_are_refused() {
    let built = |name: &str| handler(name, charge).env("DLQ_SETTINGS_TEST").build();
    let first = built("a.b").unwrap();
    assert!(built("a.b").is_ok(), "the same handler again");
    for other in ["a-b", "a_b", "A.B"] {
        let error = built(other).unwrap_err().to_string();
        assert!(error.contains("`a.b` reads the same variables"), "{error}");
        assert!(error.contains("`DLQ_SETTINGS_TEST_A_B_`"), "{error}");
    }
    assert!(handler("a-b", charge).env("DLQ_SETTINGS_TEST_2").build().is_ok());
    assert!(handler("a-b", charge).build().is_ok(), "it reads none");
    drop(first);
    assert!(built("a-b").is_ok());

    let given = |name: &str| handler(name, charge).env_from("DLQ", variables(&[]));
    assert!(given("a.b").build().and(given("a-b").build()).is_ok(), "of two lookups");
    let router = Router::new().route("x", given("a.b")).route("y", given("a-b"));
    let error = router.build().unwrap_err().to_string();
    assert!(error.contains("`a.b` reads the same variables"), "{error}");
}
