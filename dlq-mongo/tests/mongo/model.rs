//! Eight workers at once, each with letters of its own, against a model that is kept in a map: whatever the others do, each
//! worker's letters are as if it were alone.

use std::collections::BTreeMap;
use std::time::Duration;

use dlq_core::store::{Actor, Claim, ClaimRequest, Edit, Finish, Letters as _, Mark, Selection};
use dlq_core::{DeadLetter, Filter, Resolution, Status, Store, Timestamp};
use dlq_letters::memory::MemoryStore;
use dlq_testkit::fixtures::{died_again, escalation, letter};
use futures_util::future::join_all;

use crate::fixture::{Place, available};

const WORKERS: u64 = 8;
const LETTERS: u64 = 12;
const STEPS: u64 = 200;
const LEASE: Duration = Duration::from_secs(3_600);

/// A store, and what its worker has claimed there.
struct Hand<S> {
    store: S,
    claimed: BTreeMap<dlq_core::LetterId, Claim>,
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
        let n = mine[usize::try_from(which % LETTERS).unwrap()];
        let id = letter(n).id;
        let selected = || Selection::matching(Filter::new().with_id(id)).unwrap();
        match what % 12 {
            0..3 => format!("{:?}", store.put(vec![death(n, how % 3)]).await.unwrap()),
            3..6 => {
                let record = death(n, how % 2);
                let attempts = u32::try_from(how % 5).unwrap();
                let escalated = store.escalate(escalation(&record, attempts, Timestamp::EPOCH));
                format!("{:?}", escalated.await)
            }
            6 => {
                let mut request = ClaimRequest::due(Vec::<String>::new(), 100, LEASE);
                request.filter.ids = mine.iter().map(|n| letter(*n).id).collect();
                let claims = store.claim(request).await.unwrap();
                let claims = claims.into_iter().map(|claim| (claim.token.letter, claim));
                let claims: BTreeMap<_, _> = claims.collect();
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
                format!("{:?}", store.finish(vec![(claim.token, finish)]).await.unwrap())
            }
            9 => {
                let marks = [Mark::Pending, Mark::Resolved, Mark::Quarantined];
                let mark = marks[usize::try_from(how % 3).unwrap()];
                format!("{:?}", store.mark(selected(), mark, by).await.unwrap())
            }
            10 => format!("{:?}", store.delete(selected(), by).await.unwrap()),
            _ => {
                let edit = Edit::new().payload(format!("edited {}", how % 4)).allow_invalid();
                let edited = store.edit(id, edit, by).await;
                format!("{:?}", edited.map(|letter| shown(&letter)).map_err(|error| error.kind()))
            }
        }
    }

    /// The letters as they stand.
    async fn letters(&self, mine: &[u64]) -> Vec<Option<String>> {
        let letters = mine.iter().map(|n| self.store.get(letter(*n).id));
        let letters = join_all(letters).await.into_iter().map(Result::unwrap);
        letters.map(|letter| letter.map(|letter| shown(&letter))).collect()
    }
}

/// All of a letter that does not depend on the time.
fn shown(letter: &DeadLetter) -> String {
    let state = &letter.state;
    let (status, seen) = (state.status, state.seen);
    let counts = (letter.generation, letter.attempts, letter.crashes, letter.escalations);
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

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn eight_workers_agree_with_the_model() {
    if !available() {
        return;
    }
    let place = Place::fresh();
    place.store().await;
    let workers = (0..WORKERS).map(|worker| {
        let place = &place;
        async move {
            let store = place.builder().max_connections(2).open().await.unwrap();
            let (mut real, mut model) = (Hand::new(store), Hand::new(MemoryStore::new()));
            let mine: Vec<_> = (0..LETTERS).map(|n| worker * LETTERS + n).collect();
            let mut outcomes = BTreeMap::<String, u64>::new();
            for n in 0..STEPS {
                let step = [0, 1, 2].map(|part| random(worker, n * 3 + part));
                let found = real.step(&mine, step).await;
                assert_eq!(
                    found,
                    model.step(&mine, step).await,
                    "worker {worker}, step {n}: {step:?}"
                );
                *outcomes.entry(found).or_default() += 1;
            }
            assert_eq!(real.letters(&mine).await, model.letters(&mine).await, "worker {worker}");
            (outcomes.len(), model.store.stats(Filter::new()).await.unwrap())
        }
    });
    let ended = join_all(workers).await;
    let store = place.store().await;
    let stats = store.stats(Filter::new()).await.unwrap();
    for status in [
        Status::Pending,
        Status::Retrying,
        Status::Replaying,
        Status::Quarantined,
        Status::Resolved,
    ] {
        let expected: u64 = ended.iter().map(|(_, stats)| stats.with_status(status)).sum();
        assert_eq!(stats.with_status(status), expected, "{status}");
        assert!(expected > 0, "{status} is among what was tried");
    }
    assert!(ended.iter().all(|(kinds, _)| *kinds > 20), "{ended:?}");
}
