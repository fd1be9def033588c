use std::time::Duration;

use dlq_core::store::Receipt;
use dlq_core::{DeadLetter, Sink, StoreError, StoreErrorKind};

use super::write;
use crate::client::{RedisClient, RedisError, Script, ScriptCall, as_int};
use crate::consumer::{Keys, WrittenFor, millis};

const OPERATION: &str = "write a dead letter";

/// Writes a letter. KEYS: stream of dead letters, mark. ARGV: time in ms for which the mark is kept, most letters (-1 for
/// any number), then fields and values. Answers 1 written, 0 there already, -1 full.
// `XADD` comes before `SET`: where it fails no mark is left. The other way round, the next try would find the mark, and
// the message would be acknowledged without a letter (G1).
static BURY: Script = Script::new(
    r"
if redis.call('EXISTS', KEYS[2]) == 1 then return 0 end
local kind = redis.call('TYPE', KEYS[1]).ok
if kind ~= 'none' and kind ~= 'stream' then
  return redis.error_reply('WRONGTYPE the stream of dead letters is a ' .. kind)
end
local most = tonumber(ARGV[2])
if most >= 0 and redis.call('XLEN', KEYS[1]) >= most then return -1 end
local id = redis.call('XADD', KEYS[1], '*', unpack(ARGV, 3))
redis.call('SET', KEYS[2], id, 'PX', ARGV[1])
return 1
",
);

/// The stream of dead letters of one stream, in the same slot.
///
/// # What is in an entry
///
/// Payload, key and headers of the message as the transport writes them, the headers of the
/// [protocol](dlq_core::protocol) as fields `h:NAME`, and what these do not say as JSON in the field `rest`.
///
/// # One letter per death
///
/// A mark in the same script says that the letter of this death and these bytes is written. It is kept for the
/// [duplicate window](crate::RedisTransport::duplicate_window); beyond that a second copy can be written, and readers take
/// both for one letter. The receipt is `Stored`, or `Unchanged` for a copy.
///
/// # Bounds
///
/// Nothing is trimmed. Where a [bound](crate::RedisTransport::max_dead_letters) is set and reached, or the memory of the
/// server is full, letters are not taken (`Unavailable`), and messages stay pending.
#[derive(Clone, Debug)]
pub struct RedisSink {
    client: RedisClient,
    keys: Keys,
    dead: String,
    most: Option<u64>,
    window: Duration,
}

impl RedisSink {
    pub(crate) fn new(
        client: RedisClient,
        keys: Keys,
        dead: String,
        most: Option<u64>,
        window: Duration,
    ) -> Self {
        Self { client, keys, dead, most, window }
    }

    /// Returns the key of the stream of dead letters.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.dead
    }

    /// The call that writes a letter, and its mark.
    fn call(&self, letter: &DeadLetter) -> Result<(ScriptCall, String), StoreError> {
        let mark = self.keys.death(letter);
        let fields = write::letter(letter).map_err(|error| {
            StoreError::new(StoreErrorKind::Refused, OPERATION).with_source(error)
        })?;
        let most = self.most.map_or(-1, |most| i64::try_from(most).unwrap_or(i64::MAX));
        let call = BURY.keys(&[&self.dead, &mark]).arg(millis(self.window)).arg(most);
        Ok((call.arg(fields), mark))
    }

    fn receipt(&self, answer: Result<redis::Value, RedisError>) -> Result<Receipt, StoreError> {
        let answer = answer.map_err(|error| error.for_running_store(OPERATION))?;
        match as_int(&answer) {
            1 => Ok(Receipt::Stored),
            0 => Ok(Receipt::Unchanged),
            _ => Err(StoreError::new(StoreErrorKind::Unavailable, OPERATION).with_detail(format!(
                "`{}` has {} letters, which is its bound; remove letters or raise the bound",
                self.dead,
                self.most.unwrap_or(0)
            ))),
        }
    }
}

impl Sink for RedisSink {
    async fn put(&self, letters: Vec<DeadLetter>) -> Result<Vec<Receipt>, StoreError> {
        self.put_each(letters).await?.into_iter().collect()
    }

    /// Writes all in one round trip, each by a script of its own.
    async fn put_each(
        &self,
        letters: Vec<DeadLetter>,
    ) -> Result<Vec<Result<Receipt, StoreError>>, StoreError> {
        // A letter that cannot be written keeps its error to itself, and its place among the answers.
        let calls = letters.iter().map(|letter| self.call(letter)).collect::<Vec<_>>();
        let mut outcomes = Vec::with_capacity(calls.len());
        let (mut sent, mut marks) = (Vec::new(), Vec::new());
        for call in calls {
            marks.push(call.map(|(call, mark)| {
                sent.push(call);
                mark
            }));
        }
        let answers = self.client.scripts(&sent).await;
        let mut answers = answers.map_err(|error| error.for_running_store(OPERATION))?.into_iter();
        for mark in marks {
            let mut put = |mark: String| {
                let answer = answers.next();
                let nothing = || StoreError::new(StoreErrorKind::Unexpected, OPERATION);
                let receipt = self.receipt(answer.ok_or_else(nothing)?)?;
                // This goes for a letter that was there before, too: the acknowledgement of its message looks for the
                // mark once more (G1).
                self.client.written().note(WrittenFor::Letter(mark.clone()), mark, self.window);
                Ok(receipt)
            };
            outcomes.push(mark.and_then(&mut put));
        }
        Ok(outcomes)
    }
}
