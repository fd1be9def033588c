//! Filters: listing, counting, statistics, groups, plans, marks and deletion mean the same letters, those that
//! [`Filter::matches`] says.

use std::collections::BTreeSet;

use dlq_core::store::{Mark, OperationSpec, Selection, Stats};
use dlq_core::{
    Cause, DeadLetter, ErrorClass, Filter, LetterId, Order, Reason, Status, SubjectPattern,
};

use super::check::by;
use super::check::powers::*;
use super::{Check, StoreFixture};
use crate::fixtures::{letter, varied};

const LETTERS: u64 = 40;

/// Letters of every kind and status.
async fn fill<F: StoreFixture>(check: &Check<F>) -> Vec<DeadLetter> {
    let mut ids = Vec::new();
    for n in 0..LETTERS {
        let letter = varied(n);
        check.put_one(&letter).await;
        ids.push(letter.id);
        // Some letters have the same time, of which the id decides the order.
        if n % 4 == 0 {
            check.tick().await;
        }
    }
    check.mark(ids[1], Mark::Resolved).await;
    check.mark(ids[2], Mark::Quarantined).await;
    let mut spec = OperationSpec::replay(Filter::new().with_consumer(varied(0).consumer));
    spec.limit = Some(6);
    check.start(spec).await;
    check.claim(4).await;
    let mut letters = Vec::new();
    for id in ids {
        letters.push(check.get(id).await);
    }
    letters.sort_by_key(|letter| (letter.state.created_at, letter.id));
    letters
}

async fn agree<F: StoreFixture>(check: &Check<F>, letters: &[DeadLetter], filter: &Filter) {
    let meant: Vec<_> = letters.iter().filter(|letter| filter.matches(letter)).collect();
    let mut ids: Vec<LetterId> = meant.iter().map(|letter| letter.id).collect();
    assert_eq!(check.ids(filter, Order::OldestFirst).await, ids, "list: {filter:?}");
    let paged = check.list(filter, Order::OldestFirst, 3).await;
    assert_eq!(paged.iter().map(|letter| letter.id).collect::<Vec<_>>(), ids, "pages: {filter:?}");
    ids.reverse();
    assert_eq!(check.ids(filter, Order::NewestFirst).await, ids, "newest: {filter:?}");
    assert_eq!(check.count(filter.clone()).await, ids.len() as u64, "count: {filter:?}");
    let mut stats = Stats::default();
    meant.iter().for_each(|letter| stats.add(&letter.summary()));
    let found = check.store.stats(filter.clone()).await.expect("stats answers");
    assert_eq!(found, stats, "stats: {filter:?}");
    let groups = check.store.groups(filter.clone(), u32::MAX).await.expect("groups answers");
    let grouped: u64 = groups.iter().map(|group| group.count).sum();
    assert_eq!(grouped, ids.len() as u64, "groups: {filter:?}");
    let keys: BTreeSet<_> = meant.iter().map(|l| (l.fingerprint, l.consumer.clone())).collect();
    assert_eq!(groups.len(), keys.len(), "groups: {filter:?}");
    let plan = check.store.plan(OperationSpec::replay(filter.clone())).await.expect("plan answers");
    let planned = plan.count + plan.ineligible.values().sum::<u64>();
    assert_eq!(planned, ids.len() as u64, "plan: {filter:?}");
}

/// Checks the filters, and that they neither mean everything nor nothing all the time.
async fn all_agree<F: StoreFixture>(check: Check<F>, filters: Vec<Filter>) {
    let letters = fill(&check).await;
    let mut sizes = BTreeSet::new();
    for filter in &filters {
        agree(&check, &letters, filter).await;
        sizes.insert(letters.iter().filter(|letter| filter.matches(letter)).count());
    }
    assert!(sizes.iter().any(|size| *size > 0 && *size < letters.len()), "the filters tell apart");
}

fn words<T: Copy>(all: &[T], with: impl Fn(Filter, T) -> Filter) -> Vec<Filter> {
    let single = all.iter().map(|word| with(Filter::new(), *word));
    let pairs = all.windows(2).map(|pair| with(with(Filter::new(), pair[0]), pair[1]));
    single.chain(pairs).collect()
}

/// No filter means every letter.
pub async fn no_filter_means_every_letter<F: StoreFixture>(check: Check<F>) {
    let letters = fill(&check).await;
    agree(&check, &letters, &Filter::new()).await;
    assert_eq!(check.count(Filter::new()).await, LETTERS);
}

/// Filters by letter id agree.
pub async fn by_id<F: StoreFixture>(check: Check<F>) {
    let with = |filter: Filter, n| filter.with_id(varied(n).id);
    let mut filters = words(&[0, 3, 3, 17], with);
    filters.push(Filter::new().with_id(letter(9_999).id));
    all_agree(check, filters).await;
}

/// Filters by the producer's id agree, byte for byte.
pub async fn by_message_id<F: StoreFixture>(check: Check<F>) {
    let ids = ["evt-1", "evt-5", "EVT-1", "evt-%", "", "evt-1 "];
    all_agree(check, words(&ids, |filter, id| filter.with_message_id(id.to_owned()))).await;
}

/// Filters by subject agree; wildcards stand for whole tokens and nothing else is special.
pub async fn by_subject<F: StoreFixture>(check: Check<F>) {
    let patterns = [
        "orders.created",
        "orders.*",
        "orders.>",
        "*",
        ">",
        "*.created",
        "orders.*.created",
        "Orders.created",
        "odd.100%_",
        "odd.100%",
        "odd.%",
        "odd.100__",
        "order*",
        "orders.eu.>",
    ];
    let pattern = |text: &str| text.parse::<SubjectPattern>().expect("it is a pattern");
    all_agree(check, words(&patterns, |filter, text| filter.with_subject(pattern(text)))).await;
}

/// Filters by event agree.
pub async fn by_event<F: StoreFixture>(check: Check<F>) {
    let with = |filter: Filter, event: &str| filter.with_event(event.to_owned());
    all_agree(check, words(&["order", "charge", "Order", "o%", "none", ""], with)).await;
}

/// Filters by consumer agree; upper and lower case differ.
pub async fn by_consumer<F: StoreFixture>(check: Check<F>) {
    let names = ["orders.handle", "Orders.handle", "payments.charge", "orders_handle", ""];
    all_agree(check, words(&names, |filter, name| filter.with_consumer(name.to_owned()))).await;
}

/// Filters by service agree; a letter without a service has none of them.
pub async fn by_service<F: StoreFixture>(check: Check<F>) {
    let with = |filter: Filter, name: &str| filter.with_service(name.to_owned());
    all_agree(check, words(&["shop", "till", "", "none"], with)).await;
}

/// Filters by status agree.
pub async fn by_status<F: StoreFixture>(check: Check<F>) {
    all_agree(check, words(Status::ALL, Filter::with_status)).await;
}

/// Filters by reason agree.
pub async fn by_reason<F: StoreFixture>(check: Check<F>) {
    all_agree(check, words(Reason::ALL, Filter::with_reason)).await;
}

/// Filters by cause agree; a letter without an attempt has none of them.
pub async fn by_cause<F: StoreFixture>(check: Check<F>) {
    all_agree(check, words(Cause::ALL, Filter::with_cause)).await;
}

/// Filters by class agree.
pub async fn by_class<F: StoreFixture>(check: Check<F>) {
    all_agree(check, words(ErrorClass::ALL, Filter::with_class)).await;
}

/// Filters by fingerprint agree.
pub async fn by_fingerprint<F: StoreFixture>(check: Check<F>) {
    let prints: Vec<_> = (0..8).map(|n| varied(n).fingerprint).collect();
    all_agree(check, words(&prints, Filter::with_fingerprint)).await;
}

/// Text is searched in the latest error with its sources, in either case, and every character is literal.
pub async fn by_error_text<F: StoreFixture>(check: Check<F>) {
    let texts = [
        "time out",
        "TIME",
        "100%",
        "1000",
        "0%",
        "l_d",
        "_",
        "%",
        "ÄRGER",
        "ärger",
        "$x.y",
        "(mit",
        "x.y",
        "xay",
        "\\",
        "\\ back",
        "'",
        "\"",
        "",
        "nowhere",
        "exhausted",
        "\0",
        "disk",
    ];
    let filters = texts.map(|text| Filter::new().error(text)).to_vec();
    all_agree(check, filters).await;
}

/// The lower bound is inclusive and the upper one exclusive, to the precision of the store's times.
pub async fn by_time<F: StoreFixture>(check: Check<F>) {
    let letters = fill(&check).await;
    let times: BTreeSet<_> = letters.iter().map(|letter| letter.state.created_at).collect();
    for at in &times {
        agree(&check, &letters, &Filter::new().since(*at)).await;
        agree(&check, &letters, &Filter::new().until(*at)).await;
        agree(&check, &letters, &Filter::new().since(*at).until(*at)).await;
    }
    let deaths: BTreeSet<_> = letters.iter().map(|letter| letter.died_at).collect();
    for at in &deaths {
        agree(&check, &letters, &Filter::new().died_since(*at)).await;
    }
    assert!(deaths.len() > 2, "the letters died at different times");
    let first = times.first().expect("there are letters");
    assert_eq!(check.count(Filter::new().since(*first)).await, LETTERS);
    assert_eq!(check.count(Filter::new().until(*first)).await, 0);
    assert!(times.len() > 2, "the letters were stored at different times");
}

/// Ranges of attempts and of replays include both ends.
pub async fn by_counts<F: StoreFixture>(check: Check<F>) {
    let mut filters = Vec::new();
    for count in [0, 1, 3, 4, u32::MAX] {
        let mut bounds =
            [Filter::new(), Filter::new(), Filter::new(), Filter::new(), Filter::new()];
        bounds[0].min_attempts = Some(count);
        bounds[1].max_attempts = Some(count);
        bounds[2].min_retries = Some(count);
        bounds[3].max_retries = Some(count);
        (bounds[4].min_attempts, bounds[4].max_attempts) = (Some(1), Some(count));
        filters.extend(bounds);
    }
    all_agree(check, filters).await;
}

/// Attributes match by name and value, all of them.
pub async fn by_attributes<F: StoreFixture>(check: Check<F>) {
    let tenant = |value: &str| Filter::new().attribute("tenant", value);
    let filters = vec![
        tenant("t0"),
        tenant("t2"),
        tenant("T0"),
        tenant(""),
        tenant("t%"),
        Filter::new().attribute("region \"x\"", ""),
        tenant("t0").attribute("region \"x\"", ""),
        Filter::new().attribute("", ""),
        Filter::new().attribute("$.tenant", "t0"),
    ];
    all_agree(check, filters).await;
}

/// The text of an attribute's name or value is never mistaken for the beginning or end of another: listing finds, and
/// deletion deletes, exactly the letters that have it.
pub async fn an_attribute_is_not_mistaken_for_another<F: StoreFixture>(check: Check<F>) {
    const TEXTS: [&str; 14] =
        [",", ":", "x,", "\"", ",\"", "\":\"", "\",\"", "{", "}", "\\", "\\s", "\0", "\\u0000", ""];
    let text = |n: usize| TEXTS[n % TEXTS.len()].to_owned();
    let mut letters = Vec::new();
    for n in 0..TEXTS.len() * TEXTS.len() {
        let mut letter = letter(n as u64);
        letter.attributes.insert(text(n), text(n / TEXTS.len()));
        letter.attributes.insert(text(3 * n + 1), text(n / 5));
        letters.push(letter);
    }
    check.put(letters.clone()).await;
    let mut found_any = false;
    for name in TEXTS {
        for value in TEXTS {
            let filter = Filter::new().attribute(name, value);
            let meant: BTreeSet<_> =
                letters.iter().filter(|one| filter.matches(one)).map(|one| one.id).collect();
            let found = check.ids(&filter, Order::OldestFirst).await;
            assert_eq!(found.len(), meant.len(), "{filter:?}");
            assert_eq!(found.into_iter().collect::<BTreeSet<_>>(), meant, "{filter:?}");
            found_any |= !meant.is_empty();
        }
    }
    assert!(found_any);
    let filter = Filter::new().attribute(",", ":");
    let selection = Selection::matching(filter.clone()).expect("it says something");
    let deleted = check.store.delete(selection, by()).await.expect("delete answers");
    let meant = letters.iter().filter(|one| filter.matches(one)).count();
    assert_eq!(deleted.changed, meant as u64);
}

/// Letters that an operation holds are found by it.
pub async fn by_operation<F: StoreFixture>(check: Check<F>) {
    let letters = fill(&check).await;
    let held: Vec<_> = letters.iter().filter_map(|letter| letter.state.operation).collect();
    let mut filter = Filter::new();
    filter.operation = held.first().copied();
    agree(&check, &letters, &filter).await;
    assert_eq!(check.count(filter).await, 6);
    let mut unknown = Filter::new();
    unknown.operation = Some(dlq_core::OperationId::from_bytes([7; 16]));
    agree(&check, &letters, &unknown).await;
}

/// Fields are joined by *and*.
pub async fn by_several_fields<F: StoreFixture>(check: Check<F>) {
    let subject = |text: &str| text.parse::<SubjectPattern>().expect("it is a pattern");
    let filters = vec![
        Filter::new().with_subject(subject("orders.>")).error("TIME").with_status(Status::Pending),
        Filter::new().with_consumer("orders.handle".to_owned()).attribute("tenant", "t0"),
        Filter::new().with_class(ErrorClass::Transient).with_reason(Reason::Permanent),
        Filter::new()
            .with_status(Status::Pending)
            .with_class(ErrorClass::Permanent)
            .with_event("order".to_owned())
            .with_event("charge".to_owned()),
    ];
    all_agree(check, filters).await;
}

fn some() -> Filter {
    Filter::new().error("TIME").with_class(ErrorClass::Transient)
}

/// A mark changes exactly the letters that the list shows.
pub async fn a_mark_means_what_the_list_shows<F: StoreFixture>(check: Check<F>) {
    check.put((0..LETTERS).map(varied).collect()).await;
    let meant: BTreeSet<_> = check.ids(&some(), Order::OldestFirst).await.into_iter().collect();
    let selection = Selection::matching(some()).expect("it says something");
    let marked = check.store.mark(selection, Mark::Quarantined, by()).await.expect("mark answers");
    assert_eq!((marked.changed, marked.skipped), (meant.len() as u64, 0));
    let filter = Filter::new().with_status(Status::Quarantined);
    let found: BTreeSet<_> = check.ids(&filter, Order::OldestFirst).await.into_iter().collect();
    assert_eq!(found, meant);
    assert!(!meant.is_empty());
}

/// A deletion removes exactly the letters that the list shows.
pub async fn a_deletion_means_what_the_list_shows<F: StoreFixture>(check: Check<F>) {
    check.put((0..LETTERS).map(varied).collect()).await;
    let meant = check.ids(&some(), Order::OldestFirst).await;
    let selection = Selection::matching(some()).expect("it says something");
    let deleted = check.store.delete(selection, by()).await.expect("delete answers");
    assert_eq!((deleted.changed, deleted.skipped), (meant.len() as u64, 0));
    assert_eq!(check.count(some()).await, 0);
    assert_eq!(check.count(Filter::new()).await, LETTERS - meant.len() as u64);
}

/// A replay freezes exactly the pending letters that the list shows.
pub async fn a_replay_means_what_the_list_shows<F: StoreFixture>(check: Check<F>) {
    check.put((0..LETTERS).map(varied).collect()).await;
    let meant = check.ids(&some(), Order::OldestFirst).await;
    let operation = check.start(OperationSpec::replay(some())).await;
    let frozen: Vec<_> = check.items(&operation).await.iter().map(|item| item.letter).collect();
    assert_eq!(frozen, meant);
}
