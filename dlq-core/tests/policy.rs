//! Retry policies: bounds, purity, text forms.

use std::time::Duration;

use dlq_core::policy::{
    Backoff, Jitter, Next, PanicPolicy, RetryPolicy, RetryPolicyOverrides, duration,
};
use proptest::prelude::*;

fn any_duration() -> impl Strategy<Value = Duration> {
    prop_oneof![
        (0_u64..10_000_000_000).prop_map(Duration::from_nanos),
        (0_u64..1_000_000).prop_map(Duration::from_secs),
        Just(Duration::ZERO),
        Just(Duration::MAX),
    ]
}

fn any_jitter() -> impl Strategy<Value = Jitter> {
    prop::sample::select(Jitter::ALL)
}

fn any_backoff() -> impl Strategy<Value = Backoff> {
    let factor =
        prop_oneof![1.0_f64..10.0, Just(f64::INFINITY), Just(f64::NAN), Just(-1.0), Just(1e300)];
    prop_oneof![
        (any_duration(), any_jitter()).prop_map(|(d, j)| Backoff::constant(d).with_jitter(j)),
        (any_duration(), any_duration(), any_duration(), any_jitter())
            .prop_map(|(i, s, m, j)| Backoff::linear(i, s).with_max(m).with_jitter(j)),
        (any_duration(), factor, any_duration(), any_jitter()).prop_map(|(i, f, m, j)| {
            Backoff::exponential(i).with_factor(f).with_max(m).with_jitter(j)
        }),
        (any_duration(), any_duration()).prop_map(|(i, m)| Backoff::decorrelated(i).with_max(m)),
        prop::collection::vec(any_duration(), 0..5).prop_map(Backoff::ladder),
    ]
}

fn valid_backoff() -> impl Strategy<Value = Backoff> {
    any_backoff().prop_filter("contradicts itself", |b| {
        RetryPolicy::new().with_backoff(b.clone()).with_max_attempts(9).check().is_ok()
    })
}

proptest! {
    #[test]
    fn a_delay_is_pure_and_within_its_bounds(backoff in any_backoff(), attempt in any::<u32>(), seed in any::<u64>()) {
        let delay = backoff.delay(attempt, seed);
        prop_assert_eq!(delay, backoff.delay(attempt, seed));
        if let (Some(delay), Some(longest)) = (delay, backoff.longest(attempt)) {
            prop_assert!(delay <= longest, "{:?} > {:?}", delay, longest);
            prop_assert!(delay >= backoff.shortest(attempt).unwrap());
        }
    }

    #[test]
    fn no_jitter_exceeds_the_cap(
        initial in any_duration(), max in any_duration(), jitter in any_jitter(), attempt in 1_u32..200, seed in any::<u64>(),
    ) {
        for backoff in [
            Backoff::exponential(initial).with_max(max).with_jitter(jitter),
            Backoff::linear(initial, initial).with_max(max).with_jitter(jitter),
            Backoff::decorrelated(initial).with_max(max),
        ] {
            prop_assert!(backoff.delay(attempt, seed).unwrap() <= max);
        }
    }

    #[test]
    fn equal_jitter_keeps_at_least_half(delay in any_duration(), seed in any::<u64>()) {
        let spread = Backoff::constant(delay).with_jitter(Jitter::Equal).delay(1, seed).unwrap();
        prop_assert!(spread >= delay.min(Duration::from_nanos(u64::MAX)) / 2);
    }

    #[test]
    fn without_jitter_delays_do_not_shrink(backoff in valid_backoff(), attempt in 1_u32..100) {
        prop_assert!(backoff.longest(attempt) <= backoff.longest(attempt + 1));
    }

    #[test]
    fn texts_round_trip(backoff in valid_backoff()) {
        let text = backoff.to_string();
        prop_assert_eq!(&text.parse::<Backoff>().unwrap(), &backoff, "{}", text);
        let json = serde_json::to_string(&backoff).unwrap();
        prop_assert_eq!(serde_json::from_str::<Backoff>(&json).unwrap(), backoff);
    }

    #[test]
    fn durations_round_trip(duration in any_duration()) {
        prop_assert_eq!(duration::parse(&duration::format(duration)).unwrap(), duration);
    }

    #[test]
    fn no_text_makes_the_readers_panic(text in "\\PC*") {
        let _ = duration::parse(&text);
        let _ = text.parse::<Backoff>();
    }
}

#[test]
fn what_contradicts_itself_is_refused_with_both_values() {
    let hour = Duration::from_secs(3600);
    let cases = [
        (RetryPolicy::new().with_max_attempts(0), "max_attempts = 0"),
        (
            RetryPolicy::new().with_backoff(Backoff::exponential(hour)),
            "`max = 30s` is below the first delay 1h",
        ),
        (
            RetryPolicy::new()
                .with_backoff(Backoff::exponential(hour).with_max(hour).with_factor(0.5)),
            "factor = 0.5",
        ),
        (RetryPolicy::new().with_backoff(Backoff::ladder([])), "at least one stage"),
        (
            RetryPolicy::new().with_backoff(Backoff::ladder([hour, hour / 2])),
            "goes down from 1h to 30m",
        ),
        (
            RetryPolicy::new().with_backoff(Backoff::ladder([hour, hour])).with_max_attempts(2),
            "never reaches stage 2",
        ),
    ];
    for (policy, expected) in cases {
        let error = policy.check().unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn a_ladder_sets_the_attempts_unless_told() {
    let ladder = Backoff::ladder([30, 300, 3600].map(Duration::from_secs));
    let policy = RetryPolicy::new().with_backoff(ladder);
    assert_eq!(policy.max_attempts(), 4);
    assert_eq!(policy.next(2, None, 0), Next::After(Duration::from_secs(300)));
    assert_eq!(policy.next(4, None, 0), Next::Exhausted);
    let shown = policy.with_max_attempts(6).schedule().to_string();
    assert!(shown.contains("after attempt 5: 1h, escalated"), "{shown}");
}

#[test]
fn retry_after_wins_over_the_backoff_but_not_over_the_attempts() {
    let policy = RetryPolicy::new();
    let hour = Duration::from_secs(3600);
    assert_eq!(policy.next(1, Some(hour), 0), Next::After(hour));
    assert_eq!(policy.next(3, Some(hour), 0), Next::Exhausted);
}

#[test]
fn the_environment_overrides_and_errors_name_the_variable() {
    let env = |pairs: &'static [(&'static str, &'static str)]| {
        move |name: &str| {
            pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        }
    };
    let read = RetryPolicyOverrides::from_env(
        "PAY_",
        env(&[
            ("PAY_MAX_RETRIES", "7"),
            ("PAY_BACKOFF", "constant(2s)"),
            ("PAY_PANIC", "retry"),
            ("PAY_HOLD_LIMIT", "1m"),
        ]),
    );
    let policy = read.unwrap().apply(&RetryPolicy::new()).unwrap();
    assert_eq!((policy.max_attempts(), policy.panic()), (7, PanicPolicy::Retry));
    assert_eq!(policy.hold_limit(), Duration::from_secs(60));

    for (pairs, expected) in [
        (&[("P_MAX_ATTEMPTS", "many")] as &'static [_], "P_MAX_ATTEMPTS: `many`"),
        (&[("P_MAX_ATTEMPTS", "3"), ("P_MAX_RETRIES", "4")], "mean the same and differ"),
        (&[("P_BACKOFF", "exponential(10)")], "`10` has no unit"),
        (&[("P_BACKOFF", "sometimes(1s)")], "`sometimes` is not a backoff"),
        (&[("P_BACKOFF", "constant(1s, max = 2s)")], "no setting `max`"),
    ] {
        let error = RetryPolicyOverrides::from_env("P_", env(pairs)).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    let zero = RetryPolicyOverrides::from_env("", env(&[("MAX_ATTEMPTS", "0")])).unwrap();
    assert!(zero.apply(&RetryPolicy::new()).is_err());
}

#[test]
fn policies_are_read_from_configuration() {
    let text = r#"{"max_attempts": 5, "backoff": "linear(1s, increment = 2s, max = 10s)", "hold_limit": "1m 30s"}"#;
    let policy: RetryPolicy = serde_json::from_str(text).unwrap();
    assert_eq!(policy.next(2, None, 0), Next::After(Duration::from_secs(3)));
    assert_eq!(
        serde_json::from_str::<RetryPolicy>(&serde_json::to_string(&policy).unwrap()).unwrap(),
        policy
    );
    assert!(serde_json::from_str::<RetryPolicy>(r#"{"max_atempts": 5}"#).is_err());
}
