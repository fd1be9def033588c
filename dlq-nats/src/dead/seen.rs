use async_nats::jetstream::stream::Info;

/// The state of a stream, by which it is known whether anything has come or gone since.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(super) created: String,
    last: u64,
    messages: u64,
}

impl Seen {
    pub(super) fn of(info: &Info) -> Self {
        let created = info.created.to_string();
        // A message that is removed from between others changes nothing but their number.
        Self { created, last: info.state.last_sequence, messages: info.state.messages }
    }
}
