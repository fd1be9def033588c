//! Extractors: what a handler takes from a delivery, one argument each.
//!
//! ```
//! use dlq_tower::extract::{Attempt, Json, State};
//! # #[derive(serde::Deserialize)] struct Payment { cents: u64 }
//! # #[derive(Clone)] struct Gateway;
//! # impl Gateway { async fn charge(&self, _: &Payment, _: u32) -> Result<(), std::io::Error> { Ok(()) } }
//!
//! async fn charge(
//!     Json(payment): Json<Payment>,
//!     attempt: Attempt,
//!     State(gateway): State<Gateway>,
//! ) -> Result<(), std::io::Error> {
//!     gateway.charge(&payment, attempt.number()).await
//! }
//! # let _ = dlq_tower::handler::handler("payments.charge", charge).with_state(Gateway).build().unwrap();
//! ```
//!
//! | extractor | gives | is refused when |
//! |---|---|---|
//! | [`Json<T>`](Json), `Protobuf<T>`, `MsgPack<T>` | the payload, decoded | it cannot be decoded, or there is none |
//! | [`Bytes`](::bytes::Bytes) | the payload as it is | there is none (a tombstone) |
//! | [`Key`] | the key | there is none |
//! | [`Headers`](dlq_core::Headers) | all headers | never |
//! | [`Attempt`] | which run this is | never |
//! | [`Meta`] | where the message stood, and every count | never |
//! | [`State<T>`](State) | what the handler was built with | never |
//! | [`Message`](dlq_core::Message), [`Delivery`](dlq_core::Delivery) | the whole | never |
//! | `Option<T>` | `None` when what `T` takes is absent | what `T` takes is there, but broken |
//! | `Result<T, Rejection>` | the refusal, for the handler to judge | never |
//!
//! # On failure
//!
//! A refusal is a [`Rejection`]. The handler does not run, and the message is given up at once: the same bytes will be
//! refused again. Absent and empty differ everywhere: a handler that has a use for tombstones takes an `Option`.
//!
//! # Cost
//!
//! A payload is decoded once per attempt, also when key closures look at it first: the value they have seen is handed
//! to the handler. Decoded values are not kept for later attempts, so that they need not be `Clone`.

mod attempt;
mod bytes;
mod delivery;
mod from_delivery;
mod headers;
#[cfg(feature = "json")]
mod json;
mod key;
mod message;
mod meta;
#[cfg(feature = "msgpack")]
mod msgpack;
mod option;
mod payload;
#[cfg(feature = "protobuf")]
mod protobuf;
mod rejection;
mod result;
mod state;

pub use self::attempt::Attempt;
pub use self::from_delivery::{FromDelivery, FromRef};
#[cfg(feature = "json")]
pub use self::json::Json;
pub use self::key::Key;
pub use self::meta::Meta;
#[cfg(feature = "msgpack")]
pub use self::msgpack::MsgPack;
pub use self::payload::{Payload, by_payload, take};
#[cfg(feature = "protobuf")]
pub use self::protobuf::Protobuf;
pub use self::rejection::Rejection;
pub use self::state::State;
