use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, PoisonError};

use dlq_core::replay::{ReplayPlan, Selected, Skipped};
use dlq_core::{Death, Filter, StoreError};
use futures_util::{StreamExt as _, stream};

use super::super::picture::{LetterPosition, Picture, Row};
use super::super::send::{KafkaTarget, Shipment};
use super::{Agreed, KafkaReplay, readers, subscribers};
use crate::client::error::SetupError;
use crate::client::ladder::is_topic;
use crate::dead::dispatch::{REPLAYING, refused};
use crate::dialect::{Gap, UNREADABLE_HEADERS};

/// Number of topics that are requested at the same time.
const AT_ONCE: usize = 16;
/// Number of letters that a plan names of those that may have been sent.
const SAMPLE: usize = 10;

impl KafkaReplay {
    /// Returns the plan of the replay as of now. Planning writes nothing and takes nothing from a replay that runs.
    /// From here on the replay sends nothing else, until it is planned again.
    ///
    /// # Errors
    ///
    /// `NotFound` when there is no such topic of dead letters, `Refused` when letters are to be sent to a topic that is
    /// not there or is itself one of dead letters, `InvalidConfig` when the ledger will not do or something is not
    /// permitted, `Unavailable` when the cluster does not answer.
    pub async fn plan(&self) -> Result<ReplayPlan, StoreError> {
        let picture = self.letters.picture(None).await?;
        let (shipment, selected) = self.prepare(&picture, None).await?;
        let mut plan = selected.plan();
        self.note_strangers(&selected, &mut plan.notes);
        self.note_undated(&picture, &mut plan.notes);
        let headless = |row: &&&Row| row.letter.attributes.contains_key(UNREADABLE_HEADERS);
        let headless = selected.send.iter().filter(headless).count();
        if headless > 0 {
            plan.notes.push(format!(
                "{headless} letters have headers whose names are not UTF-8, which the client does not give out (see the \
                 attribute `{UNREADABLE_HEADERS}`); their messages are sent without them"
            ));
        }
        // By topic, whose letters go there.
        let mut owners: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
        for row in &selected.send {
            if let Ok(topic) = shipment.topic_for(&row.letter) {
                owners
                    .entry(topic)
                    .or_default()
                    .insert(shipment.group_of(&row.letter).unwrap_or(""));
            }
        }
        let closed = shipment.topics.values().filter_map(|there| there.as_ref().err());
        plan.notes.extend(closed.map(|why| format!("{why}; the letters that go there will fail")));
        let unclear =
            selected.send.iter().filter_map(|row| picture.sent.unclear(&row.letter.death()));
        plan.notes.extend(unclear.take(SAMPLE).map(|why| format!("{why}; the letter will fail")));
        let unheard = shipment.unheard.values();
        plan.notes.extend(unheard.map(|why| format!("{why}; the letters that go there will fail")));
        if let KafkaTarget::Handler(ladder) = &self.target {
            // Where groups share the topics it is known by now.
            if !ladder.is_shared() {
                let ways = shipment.ways(selected.send.iter().map(|row| &row.letter));
                let unheard = readers::unheard(self.letters.brokers(), ways).await;
                plan.notes.extend(unheard.into_values());
            }
        } else {
            subscribers::find(self.letters.brokers(), &owners, &mut plan).await?;
        }
        plan.notes.sort_unstable();
        let agreed = Agreed { last: selected.last(), picture: Arc::clone(&picture) };
        // The picture is kept, so that the run sends what the operator has seen and nothing that has arrived since.
        *self.agreed.lock().unwrap_or_else(PoisonError::into_inner) = Some(agreed);
        Ok(plan)
    }

    /// Returns the result of the last plan, if there was one.
    pub(super) fn agreed(&self) -> Option<Agreed> {
        self.agreed.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Prepares the letters that were agreed to for sending.
    pub(super) async fn prepare<'a>(
        &'a self,
        picture: &'a Picture,
        agreed: Option<Agreed>,
    ) -> Result<(Shipment, Selected<'a, LetterPosition>), StoreError> {
        // Letters that others wrote have other identities by another alias, so their marks would not be found (G6).
        if let Some(why) = picture.sent.refuses() {
            return Err(refused(why.to_owned()));
        }
        let mut shipment = self.shipment();
        let selected = self.select(&shipment, picture, agreed);
        let letters = selected.send.iter().map(|row| &row.letter);
        let mut topics = shipment.topics_for(letters);
        if let KafkaTarget::Topic(topic) = &self.target {
            self.check(topic)?;
            topics.insert(topic.clone());
        }
        // Of one that is not there it takes a while to know.
        let asked = topics.into_iter().map(|topic| async {
            let there = self.letters.lookup.partitions(&topic.as_str().into()).await;
            (topic, there)
        });
        // In order and not as they come, so that of several errors it is always the same one that is told.
        let mut asked = stream::iter(asked).buffered(AT_ONCE);
        while let Some((topic, there)) = asked.next().await {
            let there = match there {
                Ok(partitions) => Ok(partitions.len()),
                Err(SetupError::NotFound(_)) => Err(shipment.missing(&topic)),
                Err(SetupError::Forbidden(why)) => Err(why),
                Err(error) => return Err(error.for_store(REPLAYING)),
            };
            match (&self.target, there) {
                // One topic takes all letters here.
                // Elsewhere a topic that is missing fails its own letters, and the others are sent.
                (KafkaTarget::Topic(_), Err(why)) => return Err(refused(why)),
                (_, there) => drop(shipment.topics.insert(topic, there)),
            }
        }
        // Groups that share retry topics pass over what is of another: a record of none is one that nobody ever handles.
        if matches!(&self.target, KafkaTarget::Handler(ladder) if ladder.is_shared()) {
            let ways = shipment.ways(selected.send.iter().map(|row| &row.letter));
            shipment.unheard = readers::unheard(self.letters.brokers(), ways).await;
        }
        Ok((shipment, selected))
    }

    fn check(&self, topic: &str) -> Result<(), StoreError> {
        if !is_topic(topic) {
            return Err(refused(format!(
                "`{topic}` is no name of a topic; name one that is there"
            )));
        }
        // A letter that is sent where the letters are from would be a letter again, and one in the ledger a mark of nothing.
        if topic == self.letters.topic() || topic == &*self.letters.ledger {
            return Err(refused(format!(
                "`{topic}` is where the letters are from, or the ledger of what was sent back; name another topic"
            )));
        }
        Ok(())
    }

    fn shipment(&self) -> Shipment {
        Shipment {
            from: self.letters.topic().to_owned(),
            ledger: Arc::clone(&self.letters.ledger),
            cluster: Arc::clone(self.letters.brokers().cluster_shared()),
            key: self.letters.brokers().binding_key().cloned(),
            target: self.target.clone(),
            operation: self.rules.operation,
            who: self.who.clone(),
            group: self.group.clone(),
            topics: HashMap::new(),
            unheard: BTreeMap::new(),
        }
    }

    /// Splits letters into those that are sent and those that are not.
    fn select<'a>(
        &'a self,
        shipment: &Shipment,
        picture: &'a Picture,
        agreed: Option<Agreed>,
    ) -> Selected<'a, LetterPosition> {
        let is_agreed =
            |row: &&Row| agreed.as_ref().is_none_or(|agreed| agreed.includes(row.place));
        let rows = picture.matching(&self.filter).filter(is_agreed);
        let sent_by = |death: &Death| picture.sent.marks().get(death).map(|mark| mark.operation);
        self.rules.select(rows, sent_by, |letter| shipment.topic_for(letter).err())
    }

    /// Says which letters the bounds of time have left out though nobody knows when they died.
    fn note_undated(&self, picture: &Picture, notes: &mut Vec<String>) {
        let mut whenever: Filter = self.filter.clone();
        (whenever.since, whenever.until) = (None, None);
        let is_left_out =
            |row: &&Row| Gap::DiedAt.is_in(&row.letter) && !self.filter.matches(&row.letter);
        let undated = picture.matching(&whenever).filter(is_left_out).count();
        if undated > 0 {
            notes.push(format!(
                "{undated} more letters do not say when they died, and their messages are older or younger than the bounds of \
                 time; choose them by `--offsets` instead (`KafkaLetters::range`)"
            ));
        }
    }

    /// Says of letters of other clusters how they can be sent.
    fn note_strangers(&self, selected: &Selected<'_, LetterPosition>, notes: &mut Vec<String>) {
        // The alias is what the operator has called the cluster, and is easily forgotten in one of two places.
        let here = self.letters.brokers().cluster();
        let mut strangers: BTreeMap<&str, u64> = BTreeMap::new();
        for (row, why) in &selected.skip {
            let origin = &row.letter.origin;
            if *why == Skipped::NoOrigin
                && origin.transport() == "kafka"
                && origin.cluster() != here
            {
                *strangers.entry(origin.cluster()).or_default() += 1;
            }
        }
        notes.extend(strangers.into_iter().map(|(cluster, count)| {
            format!(
                "{count} letters were born in the cluster `{cluster}`, and this one is called `{here}`; if it is the same, \
                 say so (`--kafka-cluster NAME`, or `Brokers::with_cluster`), otherwise name a topic"
            )
        }));
    }
}
