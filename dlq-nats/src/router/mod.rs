//! The event router: dead letters of consumers that are not ours. Behind the feature `router`, but for its configuration,
//! which [`admin`](crate::admin) looks at.
//!
//! A consumer in any language, with a finite `max_deliver`, leaves messages behind: the server stops handing them out,
//! says so once, and forgets. The router hears that, fetches the message by its sequence and writes it to the
//! [stream of dead letters](crate::DlqStream), as [`NatsSink`](crate::NatsSink) does for consumers of ours.
//!
//! # Three ears
//!
//! | ear | hears | is deaf when |
//! |---|---|---|
//! | a durable consumer of a stream of advisories ([`AdvisoryStream`](crate::AdvisoryStream)) | also what was said while no router ran | that stream has no leader |
//! | plain subscriptions, on one connection or more | what is said now | the router does not run or is not connected |
//! | a sweep, every few seconds | provokes what a server would say at the next pull only | the router does not run |
//!
//! All three make one letter: its identity is the message and the consumer, and the server refuses a second copy within
//! the duplicate window. Two routers side by side are as good as one.
//!
//! In a cluster the server that dies may be that which keeps the advisories and that to which the router is connected. So
//! give it a connection to each of the others, too ([`also_heard_by`](EventRouterBuilder::also_heard_by)): until another
//! server leads the stream of advisories, what is said is heard by these only. A second router is as good where it is
//! connected to another server, which is left to chance unless each is told its own.
//!
//! Routers that watch the same share one durable consumer, [`DURABLE`] for those of everything; routers that watch
//! something else have one of their own, so that none acknowledges what is for another. One that is told to watch
//! something else, less or more, begins where the router of everything has come to, if there is one, and else with the
//! oldest advisory: letters that are there already may be written again, and are collapsed by readers. What it watches
//! no longer stays with the consumer that it had before, and is heard when somebody watches the same again while
//! advisories are kept.
//!
//! # Write, confirm, settle
//!
//! An advisory is acknowledged when its letter is confirmed. A router that dies in between hears it again and writes the
//! same letter again, which changes nothing.
//!
//! | state | the process dies | next |
//! |---|---|---|
//! | the advisory is kept, nothing is written | it comes again when its lease ends | the letter is written |
//! | the letter is sent, not confirmed | as above | the server refuses the copy, or takes the first |
//! | the letter is confirmed, the advisory not | as above | the server refuses the copy; the advisory is acknowledged |
//! | the same, and the message leaves its stream | as above | the letter is found; the advisory is acknowledged |
//!
//! # A message that is gone
//!
//! When a message was published is a part of the identity of its letter, so that one that is written without it would be
//! a second letter for those that hear the same words later, and another router may have been in time. So a letter without
//! payload is written when the death is 10 s old, in which what another one has sent is confirmed or has failed, and when
//! the stream of letters has none of these words. For when its message was published stands when its stream was created.
//!
//! In a stream that was deleted and made again sequences begin again. What was published after a death was told of is not
//! the message that died, which has gone; and what dies in either of the two has letters of its own.
//!
//! # A suspicion
//!
//! That a message was handed out often does not say that it failed: what a client fetched ahead counts as well, and an
//! acknowledgement may be on its way, whatever the retention: where a stream drops what is acknowledged (work queue,
//! interest) a late one removes the message all the same. Such a letter is not `confirmed`, and the automatic schedule
//! leaves it out. An advisory does not say who has sent it either: whoever may publish to `$JS.EVENT.ADVISORY.>` in the
//! account can tell of deaths that were none, so deny it to those who produce. A letter is confirmed where nobody told of
//! the message and it was found as the next section says. A worker that is at a message for longer than `ack_wait` after the
//! server has given it up is not foreseen.
//!
//! # What nobody told of
//!
//! In a work queue, and in an interest stream with one consumer, what is left when the consumer has nothing to do and
//! nothing in flight was given up. The sweep looks for such messages, so that there none is missed even when no ear heard
//! its advisory: it takes them one `ack_wait` after the consumer was first seen so, when who had them last has ended.
//! Up to where it has looked is kept in the bucket `DLQ_ROUTER`. In a stream with limits retention the server says nothing
//! that would tell them from handled ones.
//!
//! # Domains
//!
//! What the consumers of leaf nodes give up is heard at their hub, too. A router looks after one JetStream domain, that of
//! the context it was given, and leaves alone what is said in another: the message is not here. Each domain wants a router
//! of its own.
//!
//! A server that is started again with another domain is noticed: before anything is taken for foreign the server is asked
//! once more, and what was said in a domain that it had since the router began is for the router, as is what names none.
//! Where the server does not answer, the advisory comes again. What a router cannot know is a domain that the server had
//! before the router began: let it read all that waits in the stream of advisories before a domain is renamed or removed.
//!
//! # Metrics
//!
//! | name | kind | labels | counts |
//! |---|---|---|---|
//! | `messages_in_dlq_total` | counter | `topic`, `class` | letters written; past 1000 topics they are counted as `other` |
//! | `dlq_router_events_total` | counter | `event` | what the [report](RouterReport) counts |
//!
//! # What cannot be had
//!
//! - A message that was terminated in a stream that drops such messages, or was deleted or expired, is gone before
//!   anybody can read it: its letter has no payload, and the attribute `nats.payload` is `lost`.
//! - When a consumer is deleted, the server says nothing of what it had not handled.
//! - Advisories that are sent while neither the stream of advisories has a leader nor a router is connected to a server
//!   that lives are lost, but for those of work queues and interest streams, as above.

#[cfg(feature = "router")]
mod advisory;
#[cfg(feature = "router")]
mod bucket;
#[cfg(feature = "router")]
mod builder;
mod config;
#[cfg(feature = "router")]
mod domain;
#[cfg(feature = "router")]
mod ears;
#[cfg(feature = "router")]
mod letter;
#[cfg(feature = "router")]
mod metrics;
#[cfg(feature = "router")]
mod recent;
#[cfg(feature = "router")]
mod reconcile;
#[cfg(feature = "router")]
mod report;
#[cfg(feature = "router")]
mod route;
#[cfg(feature = "router")]
mod sweep;
mod watch;
#[cfg(feature = "router")]
mod written;

#[cfg(feature = "router")]
pub use builder::{EventRouter, EventRouterBuilder};
pub use config::{RouterConfig, Watched};
#[cfg(feature = "router")]
pub use metrics::{DLQ_ROUTER_EVENTS_TOTAL, MESSAGES_IN_DLQ_TOTAL};
#[cfg(feature = "router")]
pub use report::RouterReport;
pub use watch::DURABLE;

#[cfg(feature = "router")]
const OPERATION: &str = "route a message";
