use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::stream::Info;
use dlq_core::replay::{ReplayPlan, Selected, Subscriber};
use dlq_core::{Death, StoreError, StoreErrorKind};

use super::super::NatsLetters;
use super::super::picture::{Picture, Row};
use super::super::send::{NatsTarget, Shipment};
use super::hearing::{self, Hears, addressed};
use super::reconcile::looks;
use super::run::lock;
use super::{Agreed, NatsReplay};
use crate::client::buckets;
use crate::client::domain::StreamDomain;
use crate::client::inboxes::Inboxes;
use crate::client::names::{is_subject, token};
use crate::client::permissions;
use crate::client::publish;
use crate::client::streams::find;
use crate::client::subjects::covers;
use crate::dead::dispatch::{Dispatch, NO_HEADER, REPLAYING};

impl NatsReplay {
    /// Returns the plan of the replay as of now, without doing anything. From here on the replay sends nothing else,
    /// until it is planned again.
    ///
    /// # Errors
    ///
    /// `NotFound` when there is no such stream of dead letters, `Refused` when no stream keeps the subject that letters
    /// are to be sent to, or there is no retry stream; `InvalidConfig` when the server says that the user may not publish
    /// where letters go, or not read what was sent before; `Unavailable` when the server does not answer.
    pub async fn plan(&self) -> Result<ReplayPlan, StoreError> {
        let shipment = self.shipment().await?;
        let picture = self.letters.picture(&self.filter, None).await?;
        let selected = self.select(&shipment, &picture, u64::MAX);
        let mut plan = selected.plan();
        self.permitted(&shipment, &selected.send).await?;
        self.look_at(&shipment, &selected.send, &mut plan).await?;
        plan.notes.extend(self.forbidden_parts(&shipment, &selected.send).await);
        let (created, last) = (picture.seen.created.clone(), selected.last().unwrap_or(0));
        // This comes last, so that a plan which fails changes nothing of what was agreed before.
        *lock(&self.agreed) = Some(Agreed { created, last, picture });
        Ok(plan)
    }

    /// Returns the sequence up to which letters may be sent.
    pub(super) fn bound(&self, picture: &Picture) -> Result<u64, StoreError> {
        match &*lock(&self.agreed) {
            None => Ok(u64::MAX),
            Some(agreed) if agreed.created == picture.seen.created => Ok(agreed.last),
            Some(_) => {
                let text = format!(
                    "stream `{}` was created again since this was planned; plan it again",
                    self.letters.stream.name
                );
                Err(StoreError::new(StoreErrorKind::Refused, REPLAYING).with_detail(text))
            }
        }
    }

    /// Finds the receivers of the letters, and remarks about the destination streams.
    async fn look_at(
        &self,
        shipment: &Shipment,
        rows: &[&Row],
        plan: &mut ReplayPlan,
    ) -> Result<(), StoreError> {
        let context = &shipment.dispatch.context;
        let to_handler = matches!(self.target, NatsTarget::Handler(_));
        let streams = addressed(shipment, rows);
        let mut all = Vec::new();
        if !to_handler && !streams.is_empty() {
            all = hearing::streams(context).await.unwrap_or_else(|error| {
                plan.notes.push(format!(
                    "which streams copy those that letters go to is not known: streams could not be listed ({error})"
                ));
                Vec::new()
            });
        }
        for consumer in hearing::deaf(shipment, rows).await? {
            plan.notes.push(format!("letters will fail: {}", hearing::unread(&consumer)));
        }
        let keyed = rows.iter().filter(|row| shipment.loses_key(&row.letter)).count();
        if keyed > 0 {
            plan.notes.push(format!(
                "{keyed} of the letters will fail: they have a key, and {NO_HEADER}"
            ));
        }
        let mut looked = Vec::new();
        for (name, letters) in streams {
            let info = find(context, name).await;
            let Some(info) = info.map_err(|error| error.for_store(REPLAYING))? else {
                plan.notes.push(format!("there is no stream `{name}`; its letters will fail"));
                continue;
            };
            let window = info.config.duplicate_window;
            // A successor begins when the lease has ended: within the window the server still refuses what had arrived.
            if window < self.lease * 2 {
                plan.notes.push(thin(name, window, self.lease));
            }
            looked.extend(self.letters.api.iter().flat_map(|api| looks(api, &info)));
            if to_handler {
                continue;
            }
            let consumers = hearing::consumers(context, name).await?;
            for one in &consumers {
                let hears = |(subject, owner): &(Cow<'_, str>, &str)| {
                    token(owner) != one.name && one.hears(subject)
                };
                if letters.iter().any(hears) {
                    let (stream, consumer) = (name.to_owned(), one.name.clone());
                    plan.subscribers.push(Subscriber { stream, consumer });
                }
            }
            let subjects: BTreeSet<&str> = letters.iter().map(|(subject, _)| &**subject).collect();
            let copies: Vec<Hears> = hearing::copies(&all, name).collect();
            plan.notes.extend(notes(&info, &subjects, &consumers, &copies));
        }
        if let Err(error) = permissions::require(&context.client(), &looked).await {
            plan.notes
                .push(format!("if it dies, the next one cannot look what it has sent: {error}"));
        }
        plan.subscribers.sort_unstable();
        Ok(())
    }

    /// Returns a remark if the user may not write the parts of letters that do not fit in one message, and there may be
    /// such letters.
    async fn forbidden_parts(&self, shipment: &Shipment, rows: &[&Row]) -> Option<String> {
        let NatsTarget::Handler(retries) = &self.target else { return None };
        let client = self.letters.context.client();
        let room = publish::most(&client).saturating_sub(publish::HEADERS) as u64;
        let is_large =
            |row: &&&Row| row.whole().is_none() && row.size.is_some_and(|size| size > room);
        let consumers: BTreeSet<&str> =
            rows.iter().filter(is_large).map(|row| shipment.consumer_for(&row.letter)).collect();
        let aside = |consumer: &str| {
            let [_, _, aside] = retries.queue(consumer);
            aside
        };
        let subjects: Vec<String> = consumers.into_iter().map(aside).collect();
        let error = permissions::require(&client, &subjects).await.err()?;
        Some(format!("letters that do not fit in one message will end it: {error}"))
    }

    /// Splits letters up to this sequence into those that are sent and those that are not.
    pub(super) fn select<'a>(
        &self,
        shipment: &Shipment,
        picture: &'a Picture,
        bound: u64,
    ) -> Selected<'a, u64> {
        let rows = picture.rows.iter().filter(|row| row.place <= bound);
        let sent_by = |death: &Death| picture.marks.get(death).map(|mark| mark.operation);
        self.rules.select(rows, sent_by, |letter| shipment.barred(letter))
    }

    /// Makes sure that there is a place that letters can be sent to.
    pub(super) async fn shipment(&self) -> Result<Shipment, StoreError> {
        let refused =
            |text| Err(StoreError::new(StoreErrorKind::Refused, REPLAYING).with_detail(text));
        let context = self.letters.context.clone();
        let mut keeper = None;
        match &self.target {
            NatsTarget::Origin => {}
            NatsTarget::Subject(subject) => {
                if !is_subject(subject) {
                    return refused(format!(
                        "`{subject}` is no subject that can be published to; name one without wildcards"
                    ));
                }
                let own = &self.letters.stream;
                match context.stream_by_subject(subject.as_str()).await {
                    Ok(stream) if stream != own.name => keeper = Some(stream),
                    Ok(stream) => {
                        return refused(format!(
                            "`{subject}` belongs to `{stream}`, the stream of dead letters; name another subject"
                        ));
                    }
                    Err(error) => {
                        return refused(format!(
                            "no stream is known that keeps `{subject}` ({error}); create one, or name another subject"
                        ));
                    }
                }
            }
            NatsTarget::Handler(stream) => {
                let found = find(&context, &stream.name).await;
                if found.map_err(|error| error.for_store(REPLAYING))?.is_none() {
                    return refused(format!(
                        "there is no retry stream `{}`; start the consumer, or name the stream that it reads",
                        stream.name
                    ));
                }
            }
        }
        let home = StreamDomain::find(context.clone(), &self.letters.stream.name).await;
        let dispatch = Dispatch {
            inboxes: Arc::new(Inboxes::new(home.clone())),
            home,
            context,
            key: self.letters.key.clone(),
            key_header: self.letters.key_header.clone(),
        };
        Ok(Shipment {
            dispatch,
            from: self.letters.stream.name.clone(),
            target: self.target.clone(),
            keeper,
            operation: self.rules.operation,
            again: self.rules.again,
            consumer: self.consumer.clone(),
        })
    }

    /// Refuses letters that the user may not send, or of which it could not be read or noted whether they were.
    pub(super) async fn permitted(
        &self,
        shipment: &Shipment,
        rows: &[&Row],
    ) -> Result<(), StoreError> {
        let sent = rows.iter().filter(|row| shipment.stream_for(&row.letter).is_some());
        let subjects: BTreeSet<_> = sent.map(|row| shipment.subject_for(&row.letter)).collect();
        let mut subjects: Vec<String> = subjects.into_iter().map(Cow::into_owned).collect();
        let NatsLetters { context, api, ledger, stream, .. } = &self.letters;
        // By these it is known whether they are kept in a store.
        let marks = |api: &str| format!("{api}.CONSUMER.LIST.{}", stream.name);
        subjects.extend(api.filter(|_| !rows.is_empty()).map(marks));
        subjects.extend(api.filter(|_| !rows.is_empty()).map(|api| buckets::needs(api, ledger)));
        let client = context.client();
        let may = async {
            permissions::require(&client, &subjects).await?;
            // One part of the bucket may be enough for this user; what it may not write is told.
            let noted = api.filter(|_| !rows.is_empty()).map(|_| buckets::written(ledger));
            permissions::require_some(&client, noted.as_slice()).await
        };
        may.await.map_err(|error| error.for_store(REPLAYING))
    }
}

/// Returns remarks about a stream to which letters go with these subjects.
pub(crate) fn notes(
    info: &Info,
    subjects: &BTreeSet<&str>,
    consumers: &[Hears],
    copies: &[Hears],
) -> Vec<String> {
    let (config, name) = (&info.config, &info.config.name);
    let mut notes = Vec::new();
    let kept = |subject: &str| config.subjects.iter().any(|kept| covers(kept, subject));
    if let Some(subject) = subjects.iter().find(|subject| !kept(subject)) {
        notes.push(format!(
            "stream `{name}` takes no messages on `{subject}` itself, since it mirrors or sources another stream, transforms \
             its subjects, or has other subjects now; its letters will fail: name a subject, or send them to their handler"
        ));
    }
    let heard = |subject: &str| consumers.iter().chain(copies).any(|one| one.hears(subject));
    if hearing::is_choosy(info)
        && let Some(subject) = subjects.iter().find(|subject| kept(subject) && !heard(subject))
    {
        notes.push(format!("{}; its letters will fail", hearing::unwanted(name, subject)));
    }
    for copy in copies.iter().filter(|copy| subjects.iter().any(|subject| copy.hears(subject))) {
        let copy = &copy.name;
        notes.push(format!(
            "stream `{copy}` copies what comes to `{name}`: its consumers will hear the letters, too"
        ));
    }
    let republished = config.republish.as_ref();
    if let Some(to) = republished.filter(|to| {
        to.source.is_empty() || subjects.iter().any(|subject| covers(&to.source, subject))
    }) {
        let to = &to.destination;
        notes.push(format!(
            "stream `{name}` publishes what comes to it again, to `{to}`: whoever listens there will hear the letters, too"
        ));
    }
    notes
}

fn thin(stream: &str, window: Duration, lease: Duration) -> String {
    format!(
        "the duplicate window of `{stream}` is {window:?}, less than twice the lease of {lease:?}: if a replay dies, the \
         server alone does not keep the next one from sending a letter twice, only what can be read of the stream does"
    )
}
