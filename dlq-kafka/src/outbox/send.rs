use std::collections::{BTreeMap, HashMap, VecDeque};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use dlq_core::outbox::{Address, Once, Outgoing, Sent};
use dlq_core::{StoreError, StoreErrorKind};
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use super::{Held, KafkaOutbox, ledger};
use crate::client::aside::aside;
use crate::client::error::SetupError;
use crate::client::ladder::{Ladder, is_topic};
use crate::dead::PATIENCE;
use crate::dead::dispatch::{
    OutgoingRecord, REPLAYING, Recipient, born_in, closed, group_of, not_taken, pack_letter,
    refused,
};
use crate::dead::session::{Broken, Session, Written};
use crate::dead::stop::{Stop, StopOnDrop};

/// Letters in a transaction, at most.
const LETTERS: usize = 500;
/// Bytes of payload in a transaction, unless one letter has more.
const BYTES: usize = 8 * 1024 * 1024;
/// Time that the cluster has to end a transaction when the time for sending is over.
const GRACE: Duration = Duration::from_secs(10);
/// Time for which the number of partitions of a topic is known.
const FRESH: Duration = Duration::from_secs(60);

/// A letter that is ready to be sent, its place in the batch, and its record in the ledger.
struct Parcel {
    number: usize,
    once: Once,
    letter: OutgoingRecord,
    entry: OutgoingRecord,
}

/// Reason why a transaction was not written.
pub(super) enum Failed {
    /// Nothing of it is there.
    Broken(Broken),
    /// It may be there.
    Unknown(String),
}

impl KafkaOutbox {
    pub(super) async fn send_all(&self, batch: &[Outgoing], until: Instant) -> Vec<Sent> {
        let mut sent: Vec<Option<Sent>> = batch.iter().map(|_| None).collect();
        // The second of two with one identity has the result of the first.
        let (mut firsts, mut copies) = (HashMap::new(), Vec::new());
        let mut parts: VecDeque<Vec<Parcel>> = VecDeque::new();
        let mut bytes = 0;
        let mut topics = HashMap::new();
        for (number, one) in batch.iter().enumerate() {
            // A caller that lost the answer to an earlier call asks again. What has arrived is confirmed without a second
            // record (G6).
            if self.known().has_arrived(&one.once) {
                sent[number] = Some(Sent::Confirmed);
                continue;
            }
            if let Some(first) = firsts.get(&one.once) {
                copies.push((number, *first));
                continue;
            }
            firsts.insert(one.once, number);
            if !topics.contains_key(&one.to.subject) {
                let asked = timeout_at(until, self.partitions(&one.to)).await;
                let asked = asked.unwrap_or_else(|_| Err(later(OVER)));
                topics.insert(Arc::clone(&one.to.subject), asked);
            }
            let partitions = match &topics[&one.to.subject] {
                Ok(partitions) => *partitions,
                Err(why) => {
                    sent[number] = Some(copy_of(why));
                    continue;
                }
            };
            let parcel = match self.parcel(number, one, partitions) {
                Ok(parcel) => parcel,
                Err(error) => {
                    sent[number] = Some(Sent::Refused(error));
                    continue;
                }
            };
            let size = one.letter.message.payload().map_or(0, |payload| payload.len());
            bytes += size;
            match parts.back_mut().filter(|last| last.len() < LETTERS && bytes <= BYTES) {
                Some(last) => last.push(parcel),
                None => {
                    parts.push_back(vec![parcel]);
                    bytes = size;
                }
            }
        }
        let mut answers = Vec::new();
        if !parts.is_empty() {
            self.send_parts(parts, until, &mut answers).await;
        }
        for (number, answer) in answers {
            sent[number] = Some(answer);
        }
        for (number, first) in copies {
            sent[number] = sent[first].as_ref().map(copy_of);
        }
        let missing = || unknown("the letter was passed over");
        sent.into_iter().map(|sent| sent.unwrap_or_else(missing)).collect()
    }

    /// Sends these letters, and adds the result of each to `answers`.
    async fn send_parts(
        &self,
        mut parts: VecDeque<Vec<Parcel>>,
        until: Instant,
        answers: &mut Vec<(usize, Sent)>,
    ) {
        let Ok(mut turn) = timeout_at(until, self.session.lock()).await else {
            return all(answers, parts.into_iter().flatten(), || later(OVER));
        };
        while let Some(part) = parts.pop_front() {
            let mut rest = |part: Vec<Parcel>, why: &str| {
                all(answers, part.into_iter().chain(parts.drain(..).flatten()), || later(why));
            };
            let held = match turn.take() {
                Some(held) => held,
                None => match timeout_at(until, self.open_session(&self.sender)).await {
                    Ok(Ok(held)) => held,
                    Ok(Err(broken)) => return rest(part, &broken.to_string()),
                    Err(_) => return rest(part, OVER),
                },
            };
            // After the session is there: whoever has settled what this sender had claimed did so when `until` was over,
            // and a session that is older than that is fenced off.
            if Instant::now() >= until {
                *turn = Some(held);
                return rest(part, OVER);
            }
            // A letter stands before its entry, so that even numbers are letters and odd ones records of the ledger.
            let records = part.iter().flat_map(|one| [one.letter.clone(), one.entry.clone()]);
            let done = self.transact(&held, records.collect(), until).await;
            match done {
                Ok(_) => {
                    // Only a session whose transaction was committed is used again.
                    *turn = Some(held);
                    for one in &part {
                        self.known().arrived(one.once);
                    }
                    all(answers, part.into_iter(), || Sent::Confirmed);
                }
                // From here on the session is at its end.
                Err(Failed::Unknown(why)) => {
                    // Nothing more is sent. The lease of these letters ends, and settle finds out what arrived (G6).
                    all(answers, part.into_iter(), || unknown(&why));
                    return all(answers, parts.into_iter().flatten(), || later(&why));
                }
                Err(Failed::Broken(Broken::Records(blamed, code)))
                    if blamed.iter().all(|number| number % 2 == 0) =>
                {
                    let mut part = part;
                    let number = match blamed[..] {
                        [number] => number / 2,
                        _ if part.len() == 1 => 0,
                        // What is written at once fails at once: halves are tried until it is known which is to blame.
                        _ => {
                            let half = part.split_off(part.len() / 2);
                            parts.push_front(half);
                            parts.push_front(part);
                            continue;
                        }
                    };
                    let refused = part.remove(number);
                    let error = not_taken(&refused.letter.topic, code);
                    answers.push((refused.number, Sent::Refused(error)));
                    if !part.is_empty() {
                        parts.push_front(part);
                    }
                }
                Err(Failed::Broken(Broken::Topic(code))) => {
                    let mut topics: BTreeMap<Arc<str>, Vec<Parcel>> = BTreeMap::new();
                    for one in part {
                        topics.entry(Arc::clone(&one.letter.topic)).or_default().push(one);
                    }
                    // Which topic it was is not said, so that each is tried by itself.
                    if topics.len() > 1 {
                        topics.into_values().for_each(|part| parts.push_front(part));
                        continue;
                    }
                    for (topic, part) in topics {
                        // It may be made anew with another number of partitions.
                        self.known().topics.remove(&topic);
                        all(answers, part.into_iter(), || Sent::Refused(closed(&topic, code)));
                    }
                }
                Err(Failed::Broken(broken)) => return rest(part, &why(&broken, &self.ledger)),
            }
        }
    }

    /// Takes the right to send as this sender from whoever has it.
    pub(super) async fn open_session(&self, sender: &str) -> Result<Held, SetupError> {
        let (brokers, id) = (self.brokers.clone(), sender.to_owned());
        let opened = aside(PATIENCE * 3, move || {
            Session::open(&brokers, &id).map(|session| Held(Some(Arc::new(session))))
        });
        match opened.await {
            Some(Ok(held)) => Ok(held),
            Some(Err(Broken::Server(error) | Broken::Refused(error))) => Err(error),
            Some(Err(broken)) => Err(SetupError::Unavailable(why(&broken, &self.ledger), None)),
            None => Err(SetupError::Unavailable(format!("{REPLAYING}: no answer"), None)),
        }
    }

    /// Writes these records, all or none of them. Aborts the transaction if its commit has not begun by `until`.
    pub(super) async fn transact(
        &self,
        held: &Held,
        records: Vec<OutgoingRecord>,
        until: Instant,
    ) -> Result<Vec<Written>, Failed> {
        let Some(session) = held.0.clone() else { return Err(Failed::Broken(Broken::Fenced)) };
        let stop = Arc::new(Stop::default());
        // A future that is dropped here stops the thread that has the transaction, which would commit otherwise.
        let _stop = StopOnDrop(Arc::clone(&stop));
        let stopped = Arc::clone(&stop);
        let work = aside(PATIENCE * 6, move || {
            let written = session.transact(&records, &stopped, || Ok(()));
            (written, session.may_be_committed())
        });
        let mut work = pin!(work);
        let done = tokio::select! {
            done = &mut work => done,
            () = sleep_until(until) => {
                // The client aborts then, or ends a commit that has begun.
                stop.set();
                timeout(GRACE, &mut work).await.ok().flatten()
            }
        };
        match done {
            Some((Ok(written), _)) => Ok(written),
            // The request to commit went out, and its answer did not come.
            // Also where another process has taken the sender's name since: it fences a commit that is asked for again, and says
            // nothing of the first.
            Some((Err(broken), true)) => Err(Failed::Unknown(unclear(&broken))),
            Some((Err(broken), _)) => Err(Failed::Broken(broken)),
            None => Err(Failed::Unknown("the client has not answered".to_owned())),
        }
    }

    /// The number of partitions of the topic of an address, or the reason why nothing can be sent there.
    async fn partitions(&self, to: &Address) -> Result<usize, Sent> {
        let topic = &to.subject;
        // Remembered for a while: a request for each letter would cost more than its transaction.
        let known = self.known().topics.get(topic).copied();
        if let Some((_, partitions)) = known.filter(|(asked, _)| asked.elapsed() < FRESH) {
            return Ok(partitions);
        }
        // In the ledger a letter would be taken for a record of what was sent.
        if !is_topic(topic) || *topic == self.ledger {
            return Err(Sent::Refused(refused(no_topic(topic))));
        }
        match self.lookup.partitions(topic).await {
            Ok(found) => {
                let known = (Instant::now(), found.len());
                self.known().topics.insert(Arc::clone(topic), known);
                Ok(found.len())
            }
            Err(SetupError::NotFound(_)) => Err(Sent::Refused(refused(missing(to)))),
            Err(SetupError::Forbidden(why)) => Err(Sent::Refused(refused(why))),
            Err(error) => Err(later(&error.to_string())),
        }
    }

    fn parcel(
        &self,
        number: usize,
        one: &Outgoing,
        partitions: usize,
    ) -> Result<Parcel, StoreError> {
        let (letter, to) = (&one.letter, &one.to);
        let partition = match to.partition {
            Some(_) => Some(born_in(letter, &to.subject, partitions)?),
            None => None,
        };
        let topic = Arc::clone(&to.subject);
        let is_shared = self.ladder.as_ref().is_some_and(Ladder::is_shared);
        let recipient = match &to.consumer {
            Some(_) => Recipient::Handler { group: group_of(letter).filter(|_| is_shared) },
            None => Recipient::Everybody,
        };
        let key = self.brokers.binding_key();
        let packed = pack_letter(letter, &one.replay, topic, partition, recipient, key)?;
        let entry = ledger::entry(&self.ledger, &self.sender, one)?;
        Ok(Parcel { number, once: one.once, letter: packed, entry })
    }
}

const OVER: &str = "the time for sending was over before its turn came";

/// Gives each of these the same answer.
fn all(
    answers: &mut Vec<(usize, Sent)>,
    parcels: impl Iterator<Item = Parcel>,
    answer: impl Fn() -> Sent,
) {
    answers.extend(parcels.map(|one| (one.number, answer())));
}

/// Returns what is known of a commit that was asked for, and of which nobody knows whether it happened.
fn unclear(broken: &Broken) -> String {
    match broken {
        Broken::Server(error) | Broken::Refused(error) => error.to_string(),
        Broken::Kept(why) => why.clone(),
        _ => "another process has taken over from this sender before the commit was confirmed"
            .to_owned(),
    }
}

pub(super) fn why(broken: &Broken, ledger: &str) -> String {
    match broken {
        Broken::Fenced => "another process has taken over from this sender, or the transaction took too long: nothing of \
                           it was written"
            .to_owned(),
        Broken::Stopped => OVER.to_owned(),
        Broken::Kept(why) => why.clone(),
        Broken::Records(_, code) | Broken::Topic(code) => {
            format!("topic `{ledger}`, which says what was sent, cannot be written to: {code}")
        }
        Broken::Server(error) | Broken::Refused(error) => error.to_string(),
    }
}

pub(super) fn no_topic(topic: &str) -> String {
    format!("`{topic}` is no topic that letters can be sent to; name one that is there")
}

pub(super) fn missing(to: &Address) -> String {
    let topic = &to.subject;
    match &to.consumer {
        Some(consumer) => format!(
            "there is no retry topic `{topic}`, so that nobody would hear it; start `{consumer}`, or name the ladder that it \
             has"
        ),
        None => format!("there is no topic `{topic}`; create it, or name another"),
    }
}

fn later(why: &str) -> Sent {
    Sent::Later(error(StoreErrorKind::Unavailable, why))
}

fn unknown(why: &str) -> Sent {
    Sent::Unknown(error(StoreErrorKind::Unavailable, why))
}

fn error(kind: StoreErrorKind, why: &str) -> StoreError {
    StoreError::new(kind, REPLAYING).with_detail(why)
}

/// The same answer for another letter.
fn copy_of(sent: &Sent) -> Sent {
    let same = |why: &StoreError| error(why.kind(), &why.to_string());
    match sent {
        Sent::Confirmed => Sent::Confirmed,
        Sent::Refused(why) => Sent::Refused(same(why)),
        Sent::Later(why) => Sent::Later(same(why)),
        Sent::Unknown(why) => Sent::Unknown(same(why)),
    }
}
