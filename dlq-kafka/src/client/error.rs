//! Errors of the cluster in words.

use std::fmt;

use dlq_core::{BoxError, StoreError, StoreErrorKind, TransportError, TransportErrorKind};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};

/// A topic or a client that could not be made ready, or a request that was not answered as hoped.
#[derive(Debug)]
pub(crate) enum SetupError {
    /// The requested setting, or an existing one, is not acceptable.
    Config(String),
    /// This topic may not be used by this user, who may use others.
    Forbidden(String),
    /// This build cannot read what is there.
    Unreadable(String),
    /// The requested item does not exist.
    NotFound(String),
    /// The cluster did not answer, or not now.
    Unavailable(String, Option<BoxError>),
}

/// Texts of the client about settings that this build does not support.
const ABSENT: [&str; 2] = ["OpenSSL", "No provider for SASL mechanism SCRAM"];

impl SetupError {
    pub(crate) fn unavailable(what: impl Into<String>, source: impl Into<BoxError>) -> Self {
        Self::Unavailable(what.into(), Some(source.into()))
    }

    /// Makes the error of a request: `what` names the request and its topic.
    pub(crate) fn answered(what: &str, error: KafkaError) -> Self {
        let mut text = match &error {
            // The client says the value too, which may be a password.
            KafkaError::ClientConfig(_, why, setting, _) => {
                format!("{what}: the setting `{setting}` will not do: {why}")
            }
            error => format!("{what}: {error}"),
        };
        if ABSENT.iter().any(|absent| text.contains(absent)) {
            text.push_str("; TLS and SCRAM are in builds with the feature `ssl` of `dlq-kafka`");
        }
        match code(&error) {
            Some(code) if is_refusal(code) => Self::Config(text),
            Some(RDKafkaErrorCode::UnknownTopicOrPartition | RDKafkaErrorCode::UnknownTopic) => {
                Self::NotFound(text)
            }
            // A client that cannot be made at all has a setting that will not do.
            None if matches!(
                error,
                KafkaError::ClientConfig(..) | KafkaError::ClientCreation(_)
            ) =>
            {
                Self::Config(text)
            }
            // What is not known to be final is worth another try. A wrong guess the other way would stop a consumer for good.
            _ => Self::Unavailable(text, Some(error.into())),
        }
    }

    pub(crate) fn for_store(self, operation: &'static str) -> StoreError {
        let (kind, text, source) = match self {
            Self::Config(text) | Self::Forbidden(text) | Self::Unreadable(text) => {
                (StoreErrorKind::InvalidConfig, text, None)
            }
            Self::NotFound(text) => (StoreErrorKind::NotFound, text, None),
            Self::Unavailable(text, source) => (StoreErrorKind::Unavailable, text, source),
        };
        let error = StoreError::new(kind, operation).with_detail(text);
        match source {
            Some(source) => error.with_source(source),
            None => error,
        }
    }

    pub(crate) fn for_transport(self, operation: &'static str) -> TransportError {
        let (kind, text, source) = match self {
            Self::Config(text)
            | Self::Forbidden(text)
            | Self::Unreadable(text)
            | Self::NotFound(text) => (TransportErrorKind::InvalidConfig, text, None),
            Self::Unavailable(text, source) => (TransportErrorKind::Unavailable, text, source),
        };
        let error = TransportError::new(kind, operation).with_detail(text);
        match source {
            Some(source) => error.with_source(source),
            None => error,
        }
    }
}

/// Returns the code of the broker or the client, which the client's own method leaves out for administration.
pub(crate) fn code(error: &KafkaError) -> Option<RDKafkaErrorCode> {
    match error {
        KafkaError::AdminOp(code) => Some(*code),
        _ => error.rdkafka_error_code(),
    }
}

/// Returns true if the request went to a broker that is about to take over or hand over. Brokers answer so about
/// partitions and groups for a moment after these were created, after a broker's start, and when another one takes
/// over.
pub(crate) fn is_moving(error: &KafkaError) -> bool {
    use RDKafkaErrorCode::{
        CoordinatorLoadInProgress, CoordinatorNotAvailable, FencedLeaderEpoch, LeaderNotAvailable,
        NotCoordinator, NotLeaderForPartition, OffsetNotAvailable, UnknownLeaderEpoch,
        UnknownPartition, UnknownTopic, UnknownTopicOrPartition, WaitingForCoordinator,
    };
    let moving = [
        CoordinatorLoadInProgress,
        CoordinatorNotAvailable,
        NotCoordinator,
        WaitingForCoordinator,
        LeaderNotAvailable,
        NotLeaderForPartition,
        // A new leader that does not know yet how far the others have come.
        OffsetNotAvailable,
        FencedLeaderEpoch,
        UnknownLeaderEpoch,
        UnknownPartition,
        UnknownTopic,
        UnknownTopicOrPartition,
    ];
    code(error).is_some_and(|code| moving.contains(&code))
}

/// Returns true if asking again does not help.
pub(crate) fn is_refusal(code: RDKafkaErrorCode) -> bool {
    use RDKafkaErrorCode::{
        Authentication, ClusterAuthorizationFailed, GroupAuthorizationFailed, InvalidConfig,
        InvalidPartitions, InvalidReplicationFactor, InvalidTopic, PolicyViolation,
        SaslAuthenticationFailed, TopicAuthorizationFailed, TransactionalIdAuthorizationFailed,
        UnsupportedSASLMechanism,
    };
    matches!(
        code,
        Authentication
            | ClusterAuthorizationFailed
            | GroupAuthorizationFailed
            | InvalidConfig
            | InvalidPartitions
            | InvalidReplicationFactor
            | InvalidTopic
            | PolicyViolation
            | SaslAuthenticationFailed
            | TopicAuthorizationFailed
            | TransactionalIdAuthorizationFailed
            | UnsupportedSASLMechanism
    )
}

impl fmt::Display for SetupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config(text)
            | Self::Forbidden(text)
            | Self::Unreadable(text)
            | Self::NotFound(text)
            | Self::Unavailable(text, _) => f.write_str(text),
        }
    }
}
