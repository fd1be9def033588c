//! `#[derive(Classify)]`.

use std::time::Duration;

use dlq_tower::Classify;
use dlq_tower::core::{Classification, Classify as _};

const SHORT: Duration = Duration::from_secs(1);

#[derive(Classify)]
enum Failure {
    Unmarked,
    #[classify(transient)]
    Transient,
    #[classify(permanent, group = "bad")]
    Permanent(()),
    #[classify(retry_after = after)]
    Field {
        after: Duration,
        _other: u8,
    },
    #[classify(transient, retry_after = 1)]
    Number((), Option<Duration>),
    #[classify(retry_after = Duration::from_millis(*millis))]
    Expression {
        millis: u64,
    },
    #[classify(retry_after = _0.1)]
    Inside(((), Duration)),
    #[classify(retry_after = SHORT)]
    Constant,
    #[classify(retry_after = "1h 30m")]
    Text,
    #[classify(transparent)]
    Inner(Inner),
    #[classify(transparent)]
    Named {
        source: Inner,
    },
    #[classify(group = format!("status {status}"))]
    Grouped {
        status: u16,
    },
}

#[derive(Classify)]
#[classify(permanent, group = "inner")]
struct Inner;

#[derive(Classify)]
#[classify(permanent)]
enum Strict {
    Unmarked,
    #[classify(transient)]
    Transient,
    #[classify(group = "g")]
    OnlyGrouped,
}

#[derive(Classify)]
#[classify(transparent)]
struct Wrapper<E>(E);

#[derive(Classify)]
#[classify(retry_after = wait)]
struct Busy<'a, T: ?Sized> {
    wait: Option<Duration>,
    _what: &'a T,
}

#[derive(Classify)]
enum Generic<E, const N: usize>
where
    E: Clone,
{
    #[classify(transparent)]
    Inner(E),
    #[classify(permanent)]
    Array([u8; N]),
}

#[derive(Classify)]
enum Never {}

const fn after(duration: Duration) -> Classification {
    Classification::transient().after(duration)
}

#[test]
fn every_word_means_what_it_says() {
    use Failure as F;
    let second = Duration::from_secs(1);
    let (transient, permanent) = (Classification::transient(), Classification::permanent());
    let cases = [
        (F::Unmarked, transient),
        (F::Transient, transient),
        (F::Permanent(()), permanent),
        (F::Field { after: second, _other: 0 }, after(second)),
        (F::Number((), Some(second)), after(second)),
        (F::Number((), None), transient),
        (F::Expression { millis: 1000 }, after(second)),
        (F::Inside(((), second)), after(second)),
        (F::Constant, after(second)),
        (F::Text, after(Duration::from_secs(5400))),
        (F::Inner(Inner), permanent),
        (F::Named { source: Inner }, permanent),
        (F::Grouped { status: 1 }, transient),
    ];
    for (index, (error, expected)) in cases.into_iter().enumerate() {
        assert_eq!(error.classify(), expected, "case {index}");
    }
}

#[test]
fn groups_are_named_by_text_expression_or_the_field_inside() {
    let group = |error: Failure| error.group();
    assert_eq!(group(Failure::Permanent(())).as_deref(), Some("bad"));
    assert_eq!(group(Failure::Grouped { status: 404 }).as_deref(), Some("status 404"));
    assert_eq!(group(Failure::Inner(Inner)).as_deref(), Some("inner"));
    assert_eq!(group(Failure::Unmarked), None);
}

#[test]
fn what_stands_on_the_type_holds_for_variants_that_say_nothing() {
    assert_eq!(Strict::Unmarked.classify(), Classification::permanent());
    assert_eq!(Strict::Transient.classify(), Classification::transient());
    assert_eq!(Strict::OnlyGrouped.classify(), Classification::permanent());
    assert_eq!(Strict::OnlyGrouped.group().as_deref(), Some("g"));
}

#[test]
fn generic_types_are_classified_where_their_fields_are() {
    assert_eq!(Wrapper(Inner).classify(), Classification::permanent());
    assert_eq!(Wrapper(Inner).group().as_deref(), Some("inner"));
    let busy = Busy { wait: Some(SHORT), _what: "printer" };
    assert_eq!(busy.classify(), after(SHORT));

    #[derive(Clone, Classify)]
    struct Cloned;
    assert_eq!(Generic::<_, 1>::Inner(Cloned).classify(), Classification::transient());
    assert_eq!(Generic::<Cloned, 1>::Array([0]).classify(), Classification::permanent());
    let never: Option<Never> = None;
    assert!(never.map(|never| never.classify()).is_none());
}
