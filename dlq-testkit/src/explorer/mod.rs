//! The crash explorer: what happens to messages when the process dies, or something outside it fails, at *every* step.
//!
//! # What it does
//!
//! A [`Scenario`] is a few messages and what their handler does each time it runs. It meets a whole program (the
//! consumer of `dlq-tower` with layers, store source, suspects and schedule) in a world of doubles: a broker, a store and
//! an idempotency store in memory, which outlive the program. Each call that crosses the border of the process is a
//! numbered step. The explorer runs the scenario once undisturbed, then once for every [`Fault`] at every step, then for
//! pairs of faults: the process dies before or after the effect of the call; the call fails, hangs, succeeds unheard or
//! late; the process is told to stop; it stands still while another takes over, and goes on later; the store is gone for
//! good. After a death or a stop the program is started again in the world that is left, until everything has come to rest.
//!
//! Deliveries, retry records and letters of the broker pass through the [header protocol](dlq_core::protocol), as on every
//! transport, and senders may [forge](Forgery) its headers.
//!
//! # What it checks
//!
//! | guarantee | check |
//! |---|---|
//! | G1 | after every step each message is unsettled, or handled, or recorded; at rest it has ended as it does undisturbed |
//! | G2 | one letter per message, under the one identity it can have, whatever others claim to be; no death without a run |
//! | G3 | no attempt is counted that was not made; nobody dies `exhausted` before the attempts were made, nor of another's crashes; what kills the process does so no more often than the policy allows, and not again while its letter is not written |
//! | G4 | messages that are handled at once wait for none whose letter is refused |
//! | G5 | messages of one key are handled in the order of the source, while one process has them |
//! | G6 | a resolved letter does not run again; success repeats at most once per fault; a canary that fails keeps the rest |
//! | G7 | operations end, and everything comes to rest |
//! | G8 | the letter has the bytes of the message |
//! | G9 | the consumer does not end by itself; it says that it is unwell while the store is gone and messages wait for it |
//! | G10 | a deferral is not an attempt |
//!
//! # Example
//!
//! ```
//! use dlq_core::Reason;
//! use dlq_testkit::explorer::{Act, Depth, Ending, Explorer, Scenario, Story};
//!
//! let story = Story::new(1, &[Act::Permanent], Ending::Dead(Reason::Permanent));
//! let report = Explorer::new(Scenario::new("permanent", [story])).depth(Depth::Pairs(10)).explore();
//! assert!(report.findings.is_empty(), "{report}");
//! ```
//!
//! # When something is found
//!
//! The report names scenario and plan of the case, e.g. `permanent 3:unheard,5:crash-after`. [`Explorer::replay`] runs it
//! alone; time is paused and everything is deterministic, so that it shows the same again.
//!
//! That the explorer finds what it looks for is shown by breaking promises on purpose: see [`Flaw`] and [`Program`].

mod check;
mod flaw;
mod gate;
mod handler;
mod headers;
mod idempotency;
mod plan;
mod program;
mod run;
mod scenario;
mod scenarios;
mod search;
mod store;
mod transport;
mod world;

pub use flaw::Flaw;
pub use headers::Forgery;
pub use plan::{Fault, InvalidPlan, Plan};
pub use program::{Parts, Program, Pulse, Running, WholeConsumer};
pub use scenario::{Act, Ending, Order, Record, Scenario, Story};
pub use scenarios::scenarios;
pub use search::{Depth, Explorer, Finding, Report};
pub use store::{SteppedSink, SteppedStore};
pub use transport::{SteppedRetryQueue, SteppedSettle, SteppedSource};
