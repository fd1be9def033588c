/// A consumer that cannot be built as it was asked for. The text names the settings that contradict each other, and
/// their values.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot build the consumer: {message}")]
pub struct InvalidConfig {
    message: String,
}

impl InvalidConfig {
    pub(super) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into() }
    }
}
