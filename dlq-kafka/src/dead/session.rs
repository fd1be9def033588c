use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::message::DeliveryResult;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer, ProducerContext, PurgeConfig};
use rdkafka::{ClientContext, Message as _};

use crate::client::brokers::Brokers;
use crate::client::error::{SetupError, is_refusal};
use crate::dead::PATIENCE;
use crate::dead::dispatch::OutgoingRecord;
use crate::dead::stop::Stop;

/// The partition and the offset of a record.
pub(crate) type Written = (i32, i64);

/// Reason why a transaction wrote nothing.
#[derive(Debug)]
pub(crate) enum Broken {
    /// Somebody else has taken the transactional id, or the transaction took too long.
    Fenced,
    /// It was to end.
    Stopped,
    /// The letters go into a store, and are sent from there.
    Kept(String),
    /// These records cannot be written, or stood beside one that cannot.
    Records(Vec<usize>, Code),
    /// A topic cannot be written to.
    Topic(Code),
    /// The cluster does not answer, or not now. What became of it may not be known.
    Server(SetupError),
    /// Asking again does not help.
    Refused(SetupError),
}

impl From<SetupError> for Broken {
    fn from(error: SetupError) -> Self {
        match error {
            SetupError::Unavailable(..) => Self::Server(error),
            _ => Self::Refused(error),
        }
    }
}

/// The right to send under a transactional id, until somebody else takes it.
pub(crate) struct Session {
    producer: BaseProducer<Reports>,
    /// Name of the request.
    sending: String,
}

/// Reports of the client.
#[derive(Default)]
struct Reports {
    /// Delivery reports by the number of the record, with the position at which it was written.
    records: Mutex<Vec<(usize, Result<Written, Code>)>>,
    /// True if the transaction has failed, which the client says in its log only.
    has_failed: AtomicBool,
    /// True if the cluster was asked to commit, so that it may have.
    is_committing: AtomicBool,
}

impl ClientContext for Reports {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, text: &str) {
        if facility == "TXNERR" {
            self.has_failed.store(true, Ordering::SeqCst);
        }
        tracing::debug!(?level, facility, text, "the client says");
    }

    fn error(&self, error: KafkaError, text: &str) {
        tracing::debug!(%error, text, "the client says");
    }
}

impl ProducerContext for Reports {
    type DeliveryOpaque = usize;

    fn delivery(&self, result: &DeliveryResult<'_>, number: usize) {
        let result = match result {
            Ok(message) => Ok((message.partition(), message.offset())),
            Err((error, _)) => Err(error.rdkafka_error_code().unwrap_or(Code::Unknown)),
        };
        let mut records = self.records.lock().unwrap_or_else(PoisonError::into_inner);
        records.push((number, result));
    }
}

impl Session {
    /// Takes the right to send under this transactional id: whoever had it has it no more, and what they had not
    /// committed never was. Blocks.
    pub(crate) fn open(brokers: &Brokers, id: &str) -> Result<Self, Broken> {
        let defaults = [
            ("partitioner", "murmur2_random"),
            ("linger.ms", "2"),
            // The topic has the last word.
            ("message.max.bytes", "67108864"),
        ];
        let fixed = [
            ("transactional.id", id),
            // Brokers abort after this time what a dead sender left open. Readers of what is committed wait until then.
            ("transaction.timeout.ms", "60000"),
            // This is shorter, so a record fails before the brokers abort its transaction.
            ("message.timeout.ms", "30000"),
        ];
        let refused = |error| Broken::Refused(SetupError::answered("make a producer", error));
        let mut config = brokers.client(&defaults, &fixed).map_err(Broken::Refused)?;
        // The client logs `TXNERR` at this level, and `Reports::log` hears of a failed transaction by that.
        config.set_log_level(RDKafkaLogLevel::Error);
        let producer = config.create_with_context(Reports::default()).map_err(refused)?;
        let sending = format!("send letters in transactions of `{id}`");
        let session = Self { producer, sending };
        session.again(|producer| producer.init_transactions(PATIENCE))?;
        Ok(session)
    }

    /// Writes these records, all or none of them, and returns where they stand. Where it does not, this session is at its
    /// end: the client loses count after a transaction that it has aborted because of a record. Blocks, for a minute and a half at most
    /// as long as the client keeps its word.
    ///
    /// `may_commit` is asked when the brokers have every record and before the commit, which its error prevents.
    pub(crate) fn transact(
        &self,
        records: &[OutgoingRecord],
        stop: &Stop,
        may_commit: impl FnOnce() -> Result<(), Broken>,
    ) -> Result<Vec<Written>, Broken> {
        // Numbers of records begin anew: a late report of the transaction before would be taken for one of this.
        self.take_reports();
        self.producer.context().has_failed.store(false, Ordering::SeqCst);
        self.producer.context().is_committing.store(false, Ordering::SeqCst);
        self.producer.begin_transaction().map_err(|error| self.why(error))?;
        tracing::trace!("the transaction is begun");
        let written = self.write(records, stop).and_then(|places| {
            may_commit()?;
            tracing::trace!("the transaction is to be committed");
            // This is set before the request.
            // If the answer is lost after it, nobody knows whether the transaction is committed.
            self.producer.context().is_committing.store(true, Ordering::SeqCst);
            // A second call after a silence goes on with the same commit.
            self.again(|producer| producer.commit_transaction(PATIENCE))?;
            tracing::trace!("the transaction is committed");
            Ok(places)
        });
        // After any other error this session is at its end, and whoever takes the id next aborts what it left open.
        if matches!(written, Err(Broken::Stopped | Broken::Kept(_) | Broken::Server(_))) {
            // If it cannot be, whoever has the right next does it.
            let aborted = self.again(|producer| producer.abort_transaction(PATIENCE));
            tracing::debug!(?aborted, "the transaction is aborted");
        }
        written
    }

    /// Returns true if the last transaction may have been committed although it failed.
    pub(crate) fn may_be_committed(&self) -> bool {
        self.producer.context().is_committing.load(Ordering::SeqCst)
    }

    fn write(&self, records: &[OutgoingRecord], stop: &Stop) -> Result<Vec<Written>, Broken> {
        // Longer than `message.timeout.ms`, so that a record that cannot be written is told by its own report.
        let until = Instant::now() + PATIENCE + Duration::from_secs(5);
        let mut places = vec![(0, 0); records.len()];
        let mut open = records.len();
        for (number, record) in records.iter().enumerate() {
            self.enqueue(record, number, until)?;
            if stop.is_set() {
                return Err(Broken::Stopped);
            }
        }
        tracing::trace!("the records are on their way");
        // The brokers have every record before `may_commit` is asked.
        // Whoever looks for open transactions then finds this one (G6).
        while open > 0 {
            self.producer.poll(Duration::from_millis(1));
            let mut failed = Vec::new();
            for (number, report) in self.take_reports() {
                open -= 1;
                match report {
                    Ok(place) => places[number] = place,
                    Err(code) => failed.push((number, code)),
                }
            }
            if !failed.is_empty() || self.has_failed() {
                return Err(self.judge(failed));
            }
            if stop.is_set() {
                return Err(Broken::Stopped);
            }
            if let Some(broken) = self.fatal() {
                return Err(broken);
            }
            if Instant::now() > until {
                return Err(Broken::Server(self.silent()));
            }
        }
        Ok(places)
    }

    fn enqueue(
        &self,
        record: &OutgoingRecord,
        number: usize,
        until: Instant,
    ) -> Result<(), Broken> {
        let mut next: BaseRecord<'_, [u8], [u8], usize> =
            BaseRecord::with_opaque_to(&record.topic, number).headers(record.headers.clone());
        next.partition = record.partition;
        next.key = record.key.as_deref();
        next.payload = record.value.as_deref();
        loop {
            let Err((error, back)) = self.producer.send(next) else { return Ok(()) };
            match error.rdkafka_error_code() {
                Some(Code::QueueFull) if Instant::now() < until => {
                    // Polling takes the reports of what is written, by which the queue gets room.
                    self.producer.poll(Duration::from_millis(10));
                    next = back;
                }
                Some(code) if is_of_record(code) => {
                    return Err(Broken::Records(vec![number], code));
                }
                Some(code) if is_of_topic(code) => return Err(Broken::Topic(code)),
                _ => return Err(self.why(error)),
            }
        }
    }

    /// Makes a call until it is answered, for a minute at most.
    fn again(
        &self,
        call: impl Fn(&BaseProducer<Reports>) -> Result<(), KafkaError>,
    ) -> Result<(), Broken> {
        let until = Instant::now() + PATIENCE * 2;
        loop {
            let Err(error) = call(&self.producer) else { return Ok(()) };
            // Brokers answer `ConcurrentTransactions` while they end the transaction before.
            // The client calls that neither retriable nor abortable.
            let is_passing = match &error {
                KafkaError::Transaction(error) => {
                    (error.is_retriable() || error.code() == Code::ConcurrentTransactions)
                        && !error.is_fatal()
                        && !error.txn_requires_abort()
                }
                _ => false,
            };
            if !is_passing || Instant::now() > until {
                return Err(self.why(error));
            }
            self.producer.poll(Duration::from_millis(20));
        }
    }

    /// Returns the error if the client cannot continue.
    fn fatal(&self) -> Option<Broken> {
        let (code, text) = self.producer.client().fatal_error()?;
        Some(match code {
            code if is_fenced(code) => Broken::Fenced,
            code if is_refusal(code) => {
                Broken::Refused(SetupError::Config(format!("{}: {text}", self.sending)))
            }
            _ => Broken::Server(SetupError::Unavailable(format!("{}: {text}", self.sending), None)),
        })
    }

    fn why(&self, error: KafkaError) -> Broken {
        if let Some(broken) = self.fatal() {
            return broken;
        }
        match error.rdkafka_error_code() {
            Some(code) if is_fenced(code) => Broken::Fenced,
            Some(code) if is_of_topic(code) => Broken::Topic(code),
            Some(code) if is_refusal(code) => {
                Broken::Refused(SetupError::answered(&self.sending, error))
            }
            _ => Broken::Server(SetupError::answered(&self.sending, error)),
        }
    }

    fn silent(&self) -> SetupError {
        let text = format!("{}: no answer within {PATIENCE:?}", self.sending);
        SetupError::Unavailable(text, None)
    }

    fn take_reports(&self) -> Vec<(usize, Result<Written, Code>)> {
        let mut reports =
            self.producer.context().records.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *reports)
    }

    fn has_failed(&self) -> bool {
        self.producer.context().has_failed.load(Ordering::SeqCst)
    }

    /// Returns the records that made a transaction fail, without those that are given back because of others.
    fn judge(&self, mut failed: Vec<(usize, Code)>) -> Broken {
        // The purge has the client report what is open, so nothing more is written and every culprit is known.
        self.producer.purge(PurgeConfig::default().queue().inflight());
        // All of them are given back at once; what is not is of no help.
        drop(self.producer.flush(Duration::from_millis(200)));
        let reports = self.take_reports().into_iter();
        failed.extend(reports.filter_map(|(number, report)| Some((number, report.err()?))));
        if let Some(broken) = self.fatal() {
            return broken;
        }
        let of =
            |is: fn(Code) -> bool| failed.iter().find(|(_, code)| is(*code)).map(|(_, code)| *code);
        if let Some(code) = of(is_of_topic) {
            return Broken::Topic(code);
        }
        if let Some(code) = of(is_of_record) {
            let blamed = failed.iter().filter(|(_, code)| is_of_record(*code));
            return Broken::Records(blamed.map(|(number, _)| *number).collect(), code);
        }
        if of(is_fenced).is_some() {
            return Broken::Fenced;
        }
        if self.has_failed() {
            // It cannot be committed any more, and this call says why.
            if let Err(error) = self.producer.commit_transaction(Duration::from_secs(5)) {
                return self.why(error);
            }
        }
        let code = failed.first().map_or(Code::Unknown, |(_, code)| *code);
        Broken::Server(SetupError::answered(&self.sending, KafkaError::MessageProduction(code)))
    }
}

/// Returns true if somebody else has taken the right to send, or the cluster has taken it back.
fn is_fenced(code: Code) -> bool {
    matches!(
        code,
        Code::Fenced
            | Code::ProducerFenced
            | Code::InvalidProducerEpoch
            | Code::InvalidProducerIdMapping
            | Code::InvalidTransactionalState
            | Code::UnknownProducerId
    )
}

/// Returns true if the record is at fault, or one beside it: everything in a batch fails at once.
fn is_of_record(code: Code) -> bool {
    matches!(
        code,
        Code::MessageSizeTooLarge
            | Code::MessageBatchTooLarge
            | Code::InvalidMessageSize
            | Code::InvalidRecord
            | Code::InvalidMessage
            | Code::InvalidTimestamp
            | Code::PolicyViolation
            | Code::UnknownPartition
    )
}

fn is_of_topic(code: Code) -> bool {
    matches!(
        code,
        Code::TopicAuthorizationFailed
            | Code::UnknownTopicOrPartition
            | Code::UnknownTopic
            | Code::InvalidTopic
    )
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rdkafka::consumer::{BaseConsumer, Consumer as _};
    use rdkafka::message::OwnedHeaders;
    use rdkafka::mocking::MockCluster;

    use super::*;

    /// An ingest that waits for open transactions finds this one.
    #[test]
    fn g6_the_brokers_have_every_record_when_it_is_asked_whether_they_are_committed() {
        let mock = MockCluster::new(1).unwrap();
        mock.create_topic("orders", 1, 1).unwrap();
        let brokers = Brokers::at(mock.bootstrap_servers());
        let mut config = brokers.client(&[], &[]).unwrap();
        let reader: BaseConsumer = config.set("group.id", "reader").create().unwrap();
        let record = OutgoingRecord {
            topic: Arc::from("orders"),
            partition: Some(0),
            key: None,
            value: Some("1".into()),
            headers: OwnedHeaders::new(),
        };
        let records = [record.clone(), record];
        let session = Session::open(&brokers, "dlq-replay.orders").unwrap();
        let mut end = 0;
        let kept = session.transact(&records, &Stop::default(), || {
            end = reader.fetch_watermarks("orders", 0, PATIENCE).unwrap().1;
            Err(Broken::Kept("in a store".to_owned()))
        });
        assert!(matches!(kept, Err(Broken::Kept(_))), "{kept:?}");
        assert!(end >= 2, "{end}");
        assert!(!session.may_be_committed());
    }
}
