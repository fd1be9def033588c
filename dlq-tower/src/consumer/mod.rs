//! The consumer: fetches messages, runs them through a stack, and settles them.
//!
//! # What it does
//!
//! [`Consumer`] owns everything that a run starts: one task per source, one per message that has to wait, one for the
//! automatic schedule. It is built once, run once, and when [`run`](Consumer::run) returns nothing of it is alive.
//!
//! ```
//! use dlq_letters::memory::MemoryStore;
//! use dlq_core::Source;
//! use dlq_tower::consumer::{Consumer, InvalidConfig, Report};
//! use dlq_tower::handler::Handles;
//!
//! async fn consume(source: impl Source, handler: impl Handles) -> Result<Report, InvalidConfig> {
//!     let consumer = Consumer::builder(source)
//!         .handler(handler)
//!         .dead_letters(MemoryStore::new())
//!         .build()?;
//!     Ok(consumer.run_until_signal().await)
//! }
//! ```
//!
//! # A message in flight, and the death of the process
//!
//! | the message | what was told to others | if the process dies now |
//! |---|---|---|
//! | is received | nothing | the broker hands it out again when its lease ends |
//! | waits for those of its key, or for its turn to run | its lease is extended | the same; no attempt is lost, for none was made |
//! | is marked (a suspect only) | the mark is durable | it comes again, and the mark counts as a crash (G3) |
//! | is a suspect that waits for its next attempt or for a permit, its mark removed | marks of earlier runs are durable | it comes again, with those crashes and no more |
//! | runs, or waits in the process for its next attempt | its lease is extended | it comes again; attempts since its last delayed retry are forgotten, unless an idempotency store keeps them |
//! | has succeeded | nothing | it comes again and runs again: the handler has to be safe to repeat, or have an idempotency key |
//! | is dead or postponed, and its record is written | the record is durable | it comes again and runs again: the same death writes the same letter (G2), a retry record that is there already is kept, and a success resolves the letter |
//! | the counts of its idempotency key start over, for it is dead | its letter is durable | it comes again; a run that ends in the same death writes the same letter |
//! | is settled | the broker has confirmed | nothing: it is over |
//! | is settled, its mark not yet removed | both | it does not come again; one that was given back does, and the mark counts as a crash |
//!
//! At every instant the message is unsettled at the broker, or its handler has succeeded, or its record is durable
//! (G1). A message that came from a store has its claimed row in place of all this: the outcome is written onto the
//! row in one step, and a process that dies leaves the claim to end, which counts one crash.
//!
//! # When a record cannot be written
//!
//! Nothing is acknowledged. Both errors are logged, and the message is given back. When it comes again, it is [routed
//! again, not run again](crate::dead_letter#a-message-whose-routing-is-not-finished).
//!
//! | the sink | what waits |
//! |---|---|
//! | cannot be reached, is damaged, or is of a newer format | all: fetching pauses, one second at first, twice as long each time, a minute at most |
//! | refuses one letter, for its size, its topic, a constraint | that message, with delays of its own from a second to five minutes; the rest goes on (G4) |
//! | refuses eight different letters one after another, and has written none in between | all, as if it could not be reached |
//!
//! Messages whose letters are refused make the consumer unhealthy: [`refused_letters`](ConsumerHealth::refused_letters) and
//! `dlq_consumer_refused_letters` say how many they are, and which the oldest. Only a letter that is refused for the first
//! time is a probe of its sink; one that comes back says nothing new, however many there are. Of a log, such as Kafka, such a
//! message holds up the commit of its partition: with a [second place](crate::dead_letter::DeadLetterLayer::parking) for
//! what the sink refuses it is written there, and settled.
//!
//! # A success after a letter
//!
//! A process that dies between the letter and the settlement leaves a letter of a message that comes again. If the handler
//! succeeds then, the letter of this very death is resolved in the store before the broker is told, or a replay would
//! have it handled twice (G6). The store is asked only where an earlier delivery ended without an explanation. Letters at a
//! broker stay: nobody can take them back.
//!
//! # What is in flight is bounded
//!
//! At most [`max_in_flight`](ConsumerBuilder::max_in_flight) messages are in flight, and fetching stops there. At most half
//! of them wait in the process for a retry, whatever their handlers allow, so that the waiting never block the healthy
//! (G4); further ones wait in the retry queue. Messages with an order key go beyond that half, for they wait here in any
//! case, and so do those behind them (see Order).
//!
//! # Order
//!
//! Messages with an [order key](crate::handler::Handles::order_key) run one after another within their key, in the
//! order of the source (G5), and a message that has to wait holds its key and no other: however long the wait, it is
//! spent in the process, also when it is a deferral or when its letter cannot be written. When the message dies, the
//! next one goes on.
//!
//! Those behind it in the line are in flight as well, for to give them back would be to lose their order. So one key that
//! waits holds up the others after all once as many of its messages have come as there is room for: fetching stops until
//! it goes on. `dlq_consumer_in_line` shows how many stand in line, and the log warns when they are half of the room. Keep
//! the delays of ordered handlers short, and `max_in_flight` above what one key brings within the longest of them.
//!
//! A handler with an order key on a source that promises no order is refused when the consumer is built. A stop gives
//! the message back, and those behind it; the order in which they come again is the source's. Letters that come back
//! from the store run in line with their key, and behind what was handled since they died. A message whose key cannot be
//! read, because the function panicked, fails for good and unrun, as it does of an idempotency key that panics.
//!
//! # Suspects
//!
//! A message that is handed out the third time without explanation may have killed the process, and so may a letter
//! whose claim was lost once. It waits until nothing else runs, and each of its attempts runs alone. While it waits for the
//! next attempt or for a permit, and while its letter is written, others run: messages that wait hold nobody up, whether
//! they are suspects or not (G4).
//!
//! With [crash marks](ConsumerBuilder::crash_marks), which every store keeps, a durable one is written before
//! each attempt. It is removed before the message waits and after the settlement, so that an attempt which never ended is
//! counted, and the retry stage gives the message up past its `max_crashes`. Only what is marked counts: whoever waited
//! beside a message that kills is not blamed for it, and a suspect only between the end of its handler and the removal of
//! its mark, while its letter is written.
//!
//! A delivery is explained if this process gave the message back itself. So does what an orderly stop gave back or cut off in another
//! one: it is noted beside the marks, if their store answers in half a second, for messages that would be suspects at
//! their next delivery. What a source had fetched and nobody was handed is not noted, nor what was given back before the
//! stop and had not come again; that costs a run alone and nothing more.
//!
//! A run that ends takes its own mark away, and those of earlier runs only when the message is over: handled, dead or
//! postponed, whether or not the broker has confirmed that. One that is given back, or waits here for its next attempt, has crashed as often as before; else a message
//! that fails at first and kills at a later attempt would have crashed once, for ever. A mark that cannot be removed goes
//! with that of the next run in this process, for which it is none; what this one leaves behind counts as a crash.
//!
//! What was given up so is not run again while its letter cannot be written, however long that takes (G3): its marks stay
//! until the broker has confirmed its death, and until then this process remembers it with its crashes. When it comes again
//! it is given up again, with the same count; neither its marks are asked nor how often it was delivered, for some sources
//! count what is given back and others do not. One that its idempotency key convicts is asked for there again, and marked,
//! since the counts of a key may have started over.
//!
//! | what was given up for its crashes | its marks | if the process dies now |
//! |---|---|---|
//! | is being written, or could not be | its crashes, and one for this process | the next process gives it up |
//! | is given back, or waits here in line | the same | the same |
//! | is cut off by a stop while its letter is being written | the same | the same |
//! | is written, and the broker is told | the same | it comes again and is given up again: the same letter |
//! | is settled, or so it was, and the answer was lost | the same | it does not come again, and its marks are left behind |
//! | is settled, and confirmed | none | nothing: it is over |
//!
//! So each process that ends before it could settle such a message adds one to the crashes that its letter shows. Marks
//! that are left behind count for the message when it is replayed: in the store only as far as claims of it were lost
//! since; at a broker, should it become a suspect again there, in full, so that it may die unrun. Its letter is there then,
//! and another replay finds no marks.
//!
//! # Outages
//!
//! Fetching pauses when most messages fail of what may pass, as the [`OutagePolicy`] says: by default 80 % of at least 50
//! that ended within 30 s. Those that fail from then on are given back and not buried: no letter is written, no attempt
//! counted (G10), and those that an idempotency key has counted meanwhile are taken back. What failed until then has died,
//! or waits for its next attempt. [No protection](ConsumerBuilder::without_outage_protection) is a choice; a
//! consumer of fewer messages has as little, unless the minimum is lowered. After the pause a few different messages
//! are tried. One success ends the outage, and a probe that failed beside it has failed by itself; when all fail, the
//! next pause is twice as long. The automatic schedule waits meanwhile. Probes that say nothing, for they are at fault
//! themselves, decide nothing: where no other message comes, health shows the outage until one does.
//!
//! # Stopping
//!
//! On a stop the sources are closed, and what has not started or waits for a retry is given back at once, attempts
//! kept where there is a retry queue; those of a message with an order key are forgotten, unless an idempotency store keeps
//! them. What runs may finish until the [deadline](ConsumerBuilder::shutdown_deadline);
//! then it is cut off and stays unsettled, which the log says; a letter from the store is given back. What was cut off did
//! not crash: its crash mark and its claim of an idempotency key are taken back before [`run`](Consumer::run) returns, if
//! their stores answer in time (half a second, and one). Stopping twice, or before the run, is fine.
//!
//! # Health
//!
//! A part that ends before it should have, by an error or a panic, makes the consumer unhealthy, is logged and
//! [reported](HealthHandle) (G9), and the rest goes on; only when the source itself ends does the run end.
//!
//! # Metrics
//!
//! | name | kind | labels | what |
//! |---|---|---|---|
//! | `dlq_consumer_in_hand` | gauge | `consumer` | messages in flight |
//! | `dlq_consumer_in_line` | gauge | `consumer` | messages in flight that wait for an earlier one of their order key |
//! | `dlq_consumer_paused` | gauge | `consumer` | 1 while fetching pauses |
//! | `dlq_consumer_refused_letters` | gauge | `consumer` | messages that stay with the broker because their letters are refused |
//! | `dlq_consumer_settle_errors_total` | counter | `consumer` | settlements that the broker did not confirm |
//!
//! # Cost
//!
//! Two boxes per message besides the stack's own. What can be done without waiting is done where messages are
//! received, some dozens in a row; one whose handler or settlement has to wait gets a task then, in which a timer for its
//! lease is armed. Where handlers compute for longer than some microseconds, messages get their tasks from the
//! beginning, so that all threads of the runtime have their share. A handler must not block its thread until another
//! message is handled: that one may begin only after it.

mod at_once;
mod builder;
mod counts;
mod evidence;
mod feed;
mod gate;
mod gauges;
mod going;
mod good_ends;
pub(crate) mod hand;
mod health;
mod janitor;
mod keys;
mod lease;
mod message;
mod open;
mod outage;
mod presence;
mod refused;
mod report;
mod resolve;
mod room;
mod run;
mod schedule;
mod shutdown;
mod stack;
mod suspect;
mod suspects;
mod window;

pub use crate::InvalidConfig;
pub use builder::{ConsumerBuilder, Given};
pub use health::{ConsumerHealth, HealthHandle, LostPart, Part, RunState};
pub use open::{Described, OpenError};
pub use outage::OutagePolicy;
pub use refused::RefusedLetters;
pub use report::{Ended, Report};
pub use run::Consumer;
pub use shutdown::{ConsumerHandle, signal};

/// Messages in flight, by consumer: a gauge.
pub const IN_FLIGHT: &str = "dlq_consumer_in_hand";
/// Messages in flight that wait in line for an earlier one of their order key, by consumer: a gauge.
pub const IN_LINE: &str = "dlq_consumer_in_line";
/// State of fetching, by consumer: a gauge that is 1 during a pause, otherwise 0.
pub const PAUSED: &str = "dlq_consumer_paused";
/// Messages whose letters are refused one by one, by consumer: a gauge.
pub const REFUSED_LETTERS: &str = "dlq_consumer_refused_letters";
/// Letters of a consumer that wait for somebody (pending, held or quarantined): a gauge.
pub const DLQ_EVENTS_COUNT: &str = "dlq_events_count";
/// Letters of a consumer that are set aside: a gauge.
pub const DLQ_MESSAGES_QUARANTINED: &str = "dlq_messages_quarantined";
/// Settlements that the broker did not confirm, by consumer.
pub const SETTLE_ERRORS_TOTAL: &str = "dlq_consumer_settle_errors_total";

const _: () = {
    const fn send<T: Send>() {}
    send::<Consumer>();
    send::<ConsumerBuilder>();
    const fn send_sync<T: Send + Sync>() {}
    send_sync::<ConsumerHandle>();
    send_sync::<Report>();
};
