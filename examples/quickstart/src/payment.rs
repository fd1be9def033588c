//! Payload that the producer sends.

use std::sync::atomic::{AtomicBool, Ordering};

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

/// A payment that is to be charged.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Payment {
    pub(crate) id: String,
    #[serde(deserialize_with = "amount")]
    pub(crate) amount_cents: i64,
    pub(crate) card: String,
}

/// True in the build that reads amounts written as text, as an old producer sends them.
static AS_TEXT: AtomicBool = AtomicBool::new(false);

/// Makes this the fixed build.
pub(crate) fn accept_amounts_as_text(yes: bool) {
    AS_TEXT.store(yes, Ordering::Relaxed);
}

fn amount<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i64, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Amount {
        Number(i64),
        Text(String),
    }
    match Amount::deserialize(deserializer)? {
        Amount::Number(cents) => Ok(cents),
        Amount::Text(text) if AS_TEXT.load(Ordering::Relaxed) => {
            text.parse().map_err(|_| D::Error::custom("amount_cents is not a number"))
        }
        Amount::Text(_) => Err(D::Error::custom("amount_cents is a text, expected a number")),
    }
}
