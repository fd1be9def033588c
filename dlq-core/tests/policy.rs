//! Retry policies: bounds, purity, text forms.

use std::time::Duration;

use dlq_core::policy::{
    Backoff, Delays, Jitter, Next, PanicPolicy, RetryPolicy, RetryPolicyOverrides, WaitsIn,
    duration,
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
        (any_duration(), any_jitter()).prop_map(|(d, j)| Backoff::constant(d).jitter(j)),
        (any_duration(), any_duration(), any_duration(), any_jitter())
            .prop_map(|(i, s, m, j)| Backoff::linear(i, s).max(m).jitter(j)),
        (any_duration(), factor, any_duration(), any_jitter())
            .prop_map(|(i, f, m, j)| { Backoff::exponential(i).factor(f).max(m).jitter(j) }),
        (any_duration(), any_duration()).prop_map(|(i, m)| Backoff::decorrelated(i).max(m)),
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
            Backoff::exponential(initial).max(max).jitter(jitter),
            Backoff::linear(initial, initial).max(max).jitter(jitter),
            Backoff::decorrelated(initial).max(max),
        ] {
            prop_assert!(backoff.delay(attempt, seed).unwrap() <= max);
        }
    }

    #[test]
    fn equal_jitter_keeps_at_least_half(delay in any_duration(), seed in any::<u64>()) {
        let spread = Backoff::constant(delay).jitter(Jitter::Equal).delay(1, seed).unwrap();
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
            "`max = 30s` is below the first delay `initial = 1h`",
        ),
        (
            RetryPolicy::new().with_backoff(Backoff::exponential(hour).max(hour).factor(0.5)),
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
    assert!(shown.contains("after attempt 5: 1h, in the retry queue"), "{shown}");
}

/// Taken from an answer, it may be wrong by years.
#[test]
fn g4_what_an_error_asks_for_is_bounded() {
    let day = Duration::from_secs(24 * 3600);
    let policy = RetryPolicy::new();
    for asked in [day, 2 * day, Duration::MAX] {
        assert_eq!(policy.next(1, Some(asked), 0), Next::After(day), "{asked:?}");
    }
    let policy = policy.with_max_retry_after(Duration::from_secs(60));
    assert_eq!(policy.next(1, Some(day), 0), Next::After(Duration::from_secs(60)));
    // The backoff has a cap of its own.
    let slow = policy.with_backoff(Backoff::constant(3 * day));
    assert_eq!(slow.next(1, None, 0), Next::After(3 * day));
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
            ("PAY_MAX_IN_PROCESS_DELAY", "1m"),
            ("PAY_MAX_RETRY_AFTER", "2h"),
        ]),
    );
    let policy = read.unwrap().apply(&RetryPolicy::new()).unwrap();
    assert_eq!((policy.max_attempts(), policy.panic()), (7, PanicPolicy::Retry));
    assert_eq!(policy.max_in_process_delay(), Duration::from_secs(60));
    assert_eq!(policy.max_retry_after(), Duration::from_secs(7200));

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
    let text = r#"{"max_attempts": 5, "backoff": "linear(1s, increment = 2s, max = 10s)", "max_in_process_delay": "1m 30s"}"#;
    let policy: RetryPolicy = serde_json::from_str(text).unwrap();
    assert_eq!(policy.next(2, None, 0), Next::After(Duration::from_secs(3)));
    assert_eq!(
        serde_json::from_str::<RetryPolicy>(&serde_json::to_string(&policy).unwrap()).unwrap(),
        policy
    );
    assert!(serde_json::from_str::<RetryPolicy>(r#"{"max_atempts": 5}"#).is_err());
}

#[test]
fn a_policy_that_contradicts_itself_is_not_read() {
    for (text, expected) in [
        (r#"{"max_attempts": 0}"#, "`max_attempts = 0`"),
        (r#"{"max_attempts": 2, "backoff": "ladder(30s, 5m)"}"#, "never reaches stage 2"),
        (r#"{"backoff": "exponential(0s)"}"#, "would stay at 0s"),
        (r#"{"max_in_process_delay": 5}"#, "invalid type: integer `5`, expected a string"),
    ] {
        let error = serde_json::from_str::<RetryPolicy>(text).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn a_backoff_is_read_from_a_table_too() {
    let second = Duration::from_secs(1);
    let cases = [
        (
            r#"{"kind": "constant", "delay": "1s", "jitter": "equal"}"#,
            Backoff::constant(second).jitter(Jitter::Equal),
        ),
        (r#"{"kind": "linear", "initial": "1s"}"#, Backoff::linear(second, second)),
        (
            r#"{"kind": "linear", "initial": "1s", "increment": "0s", "max": "1m", "jitter": "full"}"#,
            Backoff::linear(second, Duration::ZERO).max(second * 60).jitter(Jitter::Full),
        ),
        (r#"{"kind": "exponential", "initial": "1s"}"#, Backoff::exponential(second)),
        (
            r#"{"initial": "1s", "factor": 3, "max": "2s", "jitter": "none", "kind": "exponential"}"#,
            Backoff::exponential(second).factor(3.0).max(second * 2).jitter(Jitter::None),
        ),
        (
            r#"{"kind": "decorrelated", "initial": "1s", "max": "9s"}"#,
            Backoff::decorrelated(second).max(second * 9),
        ),
        (r#"{"kind": "ladder", "stages": ["1s", "1m"]}"#, Backoff::ladder([second, second * 60])),
    ];
    for (text, expected) in cases {
        assert_eq!(serde_json::from_str::<Backoff>(text).unwrap(), expected, "{text}");
    }
    for (text, expected) in [
        (r#"{"kind": "fibonacci", "initial": "1s"}"#, "unknown variant `fibonacci`"),
        (r#"{"kind": "constant", "delay": "1s", "max": "2s"}"#, "unknown field `max`"),
        (r#"{"kind": "constant", "delay": "10"}"#, "`10` has no unit"),
        (r#"{"kind": "ladder", "stages": ["2s", "1s"]}"#, "goes down from 2s to 1s"),
        (r#"{"initial": "1s"}"#, "missing field `kind`"),
        ("7", "expected a backoff such as"),
    ] {
        let error = serde_json::from_str::<Backoff>(text).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

/// Gives up after the second attempt.
#[derive(Debug)]
struct Twice;

impl Delays for Twice {
    fn delay(&self, attempt: u32, seed: u64) -> Option<Duration> {
        (attempt < 3).then(|| Duration::from_secs(seed))
    }
}

#[test]
fn a_custom_backoff_may_give_up_and_has_no_text() {
    let policy = RetryPolicy::new().with_max_attempts(9).with_backoff(Backoff::custom(Twice));
    let hour = Duration::from_secs(3600);
    assert_eq!(policy.next(2, None, 7), Next::After(Duration::from_secs(7)));
    assert_eq!(policy.next(2, Some(hour), 7), Next::After(hour));
    assert_eq!(policy.next(3, Some(hour), 7), Next::Exhausted);
    assert_eq!(policy.schedule().total(), None);
    assert_eq!(policy, policy.clone());
    let error = serde_json::to_string(&policy).unwrap_err().to_string();
    assert!(error.contains("a custom backoff has no text form"), "{error}");
}

#[test]
fn the_schedule_tells_where_each_delay_is_spent() {
    let backoff = Backoff::exponential(Duration::from_secs(4)).jitter(Jitter::Equal);
    let policy = RetryPolicy::new().with_backoff(backoff).with_max_attempts(5);
    let schedule = policy.schedule();
    let places: Vec<_> = schedule.steps.iter().map(|step| step.place).collect();
    assert_eq!(
        places,
        [WaitsIn::Process, WaitsIn::ByLength, WaitsIn::RetryQueue, WaitsIn::RetryQueue]
    );
    assert_eq!(schedule.total(), Some((Duration::from_secs(29), Duration::from_secs(58))));
    assert_eq!(
        schedule.to_string(),
        "5 attempts\n  \
           after attempt 1: 2s to 4s, in the process\n  \
           after attempt 2: 4s to 8s, in the process up to 5s, else in the retry queue\n  \
           after attempt 3: 8s to 16s, in the retry queue\n  \
           after attempt 4: 15s to 30s, in the retry queue\n  \
           waits 29s to 58s in all"
    );
    assert_eq!(RetryPolicy::never().schedule().to_string(), "1 attempt");
    let endless = RetryPolicy::new().with_max_attempts(u32::MAX).schedule();
    assert_eq!(endless.steps.len(), 50);
    assert!(endless.to_string().ends_with("and 4294967244 more"), "{endless}");
}

#[test]
fn known_walks_of_each_kind() {
    let second = Duration::from_secs(1);
    let walk = |backoff: &Backoff| -> Vec<u64> {
        (1..=6).map(|attempt| backoff.delay(attempt, 1).unwrap().as_secs()).collect()
    };
    let plain = Backoff::exponential(second).jitter(Jitter::None);
    assert_eq!(walk(&plain), [1, 2, 4, 8, 16, 30]);
    assert_eq!(walk(&Backoff::linear(second, second * 2).max(second * 6)), [1, 3, 5, 6, 6, 6]);
    assert_eq!(walk(&Backoff::ladder([second, second * 60])), [1, 60, 60, 60, 60, 60]);
    assert_eq!(plain.delay(u32::MAX, 0), Some(second * 30));
    assert_eq!(plain.factor(1.0).delay(u32::MAX, 0), Some(second));
}

#[test]
fn a_decorrelated_delay_is_at_most_three_times_the_one_before() {
    let initial = Duration::from_millis(100);
    let backoff = Backoff::decorrelated(initial).max(Duration::from_secs(3600));
    for seed in 0..50 {
        let mut before = initial;
        for attempt in 1..=60 {
            let delay = backoff.delay(attempt, seed).unwrap();
            assert!(delay >= initial && delay <= before * 3, "{before:?}, then {delay:?}");
            before = delay;
        }
    }
}

#[test]
fn full_jitter_uses_the_whole_range() {
    let backoff = Backoff::constant(Duration::from_secs(8)).jitter(Jitter::Full);
    let mut eighths = [0; 9];
    for seed in 0..800 {
        eighths[backoff.delay(1, seed).unwrap().as_secs() as usize] += 1;
    }
    assert!(eighths[..8].iter().all(|count| (50..150).contains(count)), "{eighths:?}");
}

#[test]
fn durations_that_cannot_be_read_say_why() {
    for (text, expected) in [
        ("", "it is empty"),
        ("10", "`10` has no unit"),
        ("1.5s", "fractions are not read"),
        ("10µs", "`µs` is not a unit"),
        ("5 minutes", "`minutes` is not a unit"),
        ("-5s", "expected a whole number at `-5s`"),
        ("99999999999999999999999999999999999999999s", "too long"),
        ("999999999999999999999d", "too long"),
    ] {
        let error = duration::parse(text).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    assert_eq!(duration::parse(" 1h30m ").unwrap(), Duration::from_secs(5400));
}

#[cfg(feature = "backoff")]
#[test]
fn a_policy_of_the_backoff_crate_is_replayed_from_its_start() {
    use backoff::ExponentialBackoffBuilder;
    use dlq_core::policy::adaptor::adapt;

    let adapted = adapt(|| {
        ExponentialBackoffBuilder::new()
            .with_initial_interval(Duration::from_millis(100))
            .with_multiplier(2.0)
            .with_randomization_factor(0.0)
            .with_max_interval(Duration::from_secs(1))
            .build()
    });
    // Asked in any order, as often as one likes.
    for (attempt, millis) in [(3, 400), (1, 100), (3, 400), (9, 1000), (u32::MAX, 1000)] {
        assert_eq!(adapted.delay(attempt, 0), Some(Duration::from_millis(millis)), "{attempt}");
    }
    assert_eq!(adapt(|| backoff::backoff::Stop {}).delay(1, 0), None);
}
