//! Workers at once, each with letters of its own, against a model of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use dlq_core::store::{Actor, Claim, ClaimRequest, Edit, Finish, Letters as _, Mark, Selection};
use dlq_core::{DeadLetter, Filter, LetterId, Resolution, Status, Store, Timestamp};
use dlq_letters::memory::MemoryStore;
use tokio::task::JoinSet;

use crate::fixtures::{delayed_retry, died_again, letter};

const WORKERS: u64 = 8;
const LETTERS: u64 = 12;
// No lease may end by itself, since the store and the model tell the time by different clocks.
const LEASE: Duration = Duration::from_secs(3_600);

/// A store, and what its worker has claimed there.
struct Hand<S> {
    store: S,
    claimed: BTreeMap<LetterId, Claim>,
}

/// The `generation`-th death of a letter.
fn death(n: u64, generation: u64) -> DeadLetter {
    (0..generation).fold(letter(n), |letter, _| died_again(&letter))
}

impl<S: Store> Hand<S> {
    fn new(store: S) -> Self {
        Self { store, claimed: BTreeMap::new() }
    }

    /// Takes a step that is chosen by numbers, and says what came of it, times and tokens apart.
    async fn step(&mut self, mine: &[u64], [what, which, how]: [u64; 3]) -> String {
        let (store, by) = (&self.store, Actor::new("ana"));
        let n = mine[(which % LETTERS) as usize];
        let id = letter(n).id;
        let selected = || Selection::matching(Filter::new().with_id(id)).expect("it names one");
        match what % 12 {
            0..3 => format!("{:?}", store.put(vec![death(n, how % 3)]).await),
            3..6 => {
                let attempts = 1 + (how % 5) as u32;
                let record = death(n, how % 2);
                let enqueued = store.enqueue(delayed_retry(&record, attempts, Timestamp::EPOCH));
                format!("{:?}", enqueued.await)
            }
            6 => {
                let mut request = ClaimRequest::due(Vec::<String>::new(), 100, LEASE);
                request.filter.ids = mine.iter().map(|n| letter(*n).id).collect();
                let claims = store.claim(request).await.expect("the store answers");
                let claims: BTreeMap<_, _> =
                    claims.into_iter().map(|claim| (claim.token.letter, claim)).collect();
                let shown: Vec<_> = claims
                    .values()
                    .map(|claim| {
                        let token = claim.token;
                        (token.letter, token.generation, claim.letter.crashes, claim.continues)
                    })
                    .collect();
                self.claimed.extend(claims);
                format!("{shown:?}")
            }
            7..9 => {
                let Some(claim) = self.claimed.remove(&id) else { return "none".to_owned() };
                let finish = match how % 3 {
                    0 => Finish::Resolved(Resolution::Succeeded),
                    1 => Finish::Released { after: Duration::ZERO },
                    _ => Finish::Dead(Box::new(died_again(&claim.letter))),
                };
                format!("{:?}", store.finish(vec![(claim.token, finish)]).await)
            }
            9 => {
                let marks = [Mark::Pending, Mark::Resolved, Mark::Quarantined];
                format!("{:?}", store.mark(selected(), marks[(how % 3) as usize], by).await)
            }
            10 => format!("{:?}", store.delete(selected(), by).await),
            _ => {
                let edit = Edit::new().payload(format!("edited {}", how % 4)).allow_invalid();
                let edited = store.edit(id, edit, by).await;
                format!("{:?}", edited.map(|letter| shown(&letter)).map_err(|error| error.kind()))
            }
        }
    }

    /// The letters as they stand.
    async fn letters(&self, mine: &[u64]) -> Vec<Option<String>> {
        let mut letters = Vec::new();
        for n in mine {
            let found = self.store.get(letter(*n).id).await.expect("the store answers");
            letters.push(found.map(|letter| shown(&letter)));
        }
        letters
    }
}

/// All of a letter that does not depend on the time.
fn shown(letter: &DeadLetter) -> String {
    let state = &letter.state;
    let (status, seen) = (state.status, state.seen);
    let counts = (letter.generation, letter.attempts, letter.crashes, letter.delayed_retries);
    format!("{:?} {status} {seen} {counts:?} {:?}", letter.id, letter.message.payload())
}

/// The `n`-th of a row of numbers that look random.
fn random(worker: u64, n: u64) -> u64 {
    let mut x = (worker + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
        ^ (n + 1).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    for shift in [30, 27, 31] {
        x = (x ^ (x >> shift)).wrapping_mul(0x94d0_49bb_1331_11eb);
    }
    x >> 16
}

/// Lets eight workers take `steps` steps each, every one by a store of its own at one place. Whatever the others do, the letters
/// of each are as if it were alone. `open` opens a store at that place, which is empty.
///
/// # Panics
///
/// When they are not; and when too few steps were taken to say anything.
pub async fn agree_with_their_models<S: Store>(open: impl AsyncFn() -> S, steps: u64) {
    let store = open().await;
    let mut workers = JoinSet::new();
    for worker in 0..WORKERS {
        let (mut real, mut model) = (Hand::new(open().await), Hand::new(MemoryStore::new()));
        workers.spawn(async move {
            let mine: Vec<_> = (0..LETTERS).map(|n| worker * LETTERS + n).collect();
            let mut outcomes = BTreeSet::new();
            for n in 0..steps {
                let step = [0, 1, 2].map(|part| random(worker, n * 3 + part));
                let found = real.step(&mine, step).await;
                let expected = model.step(&mine, step).await;
                assert_eq!(found, expected, "worker {worker}, step {n}: {step:?}");
                outcomes.insert(found);
            }
            assert_eq!(real.letters(&mine).await, model.letters(&mine).await, "worker {worker}");
            assert!(outcomes.len() > 20, "worker {worker} has seen little: {outcomes:?}");
            model.store.stats(Filter::new()).await.expect("the store answers")
        });
    }
    let ended = workers.join_all().await;
    let stats = store.stats(Filter::new()).await.expect("the store answers");
    for status in [
        Status::Pending,
        Status::Retrying,
        Status::Replaying,
        Status::Quarantined,
        Status::Resolved,
    ] {
        let expected: u64 = ended.iter().map(|stats| stats.with_status(status)).sum();
        assert_eq!(stats.with_status(status), expected, "{status}");
        assert!(expected > 0, "{status} is among what was tried");
    }
}
