//! JetStream domain that a router looks after.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use async_nats::jetstream::Context;
use dlq_core::{StoreError, StoreErrorKind};

use super::OPERATION;
use crate::client::permissions::unanswered;

/// Maximum number of foreign domains that are reported.
const TOLD: usize = 1000;

/// The domain behind a context. A server that is started again may have another one, so that before anything is taken for
/// foreign the server is asked again.
#[derive(Debug)]
pub(super) struct Domain(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    /// All that it has been, `None` for the nameless one; empty where nobody says. What was said in an earlier one may be
    /// heard later.
    ours: BTreeSet<Option<String>>,
    /// Foreign domains that were reported.
    foreign: BTreeSet<String>,
}

impl Domain {
    pub(super) async fn find(context: &Context) -> Self {
        let mut known = Known::default();
        match ask(context).await {
            Ok(domain) => _ = known.ours.insert(domain),
            Err(error) => tracing::warn!(
                %error,
                "the JetStream domain is not known (`$JS.API.INFO`): what leaf nodes say is taken for our own"
            ),
        }
        Self(Mutex::new(known))
    }

    /// Returns true if a message from this domain is for us; if it names none, nobody can tell that it is not.
    ///
    /// # Errors
    ///
    /// When it seems to be foreign and the server does not say whether it is.
    pub(super) async fn includes(
        &self,
        context: &Context,
        said: Option<&str>,
    ) -> Result<bool, StoreError> {
        let Some(said) = said else { return Ok(true) };
        let about = Some(said.to_owned());
        if self.known().includes(&about) {
            return Ok(true);
        }
        let now = ask(context).await.map_err(|error| {
            let text = format!(
                "whether the JetStream domain `{said}` is that of the server is not known: {error}; {}",
                unanswered(&context.client(), "$JS.API.INFO")
            );
            StoreError::new(StoreErrorKind::Unavailable, OPERATION).with_detail(text)
        })?;
        let mut known = self.known();
        // The former ones stay: what was said in them may still wait in the stream of advisories.
        if known.ours.insert(now.clone()) {
            tracing::warn!(domain = ?now, "the server has another JetStream domain than before");
        }
        let is_ours = known.includes(&about);
        if !is_ours && known.foreign.len() < TOLD && known.foreign.insert(said.to_owned()) {
            tracing::warn!(
                domain = said,
                ours = ?now,
                "what is given up in another JetStream domain is left to the router there"
            );
        }
        Ok(is_ours)
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    fn includes(&self, domain: &Option<String>) -> bool {
        self.ours.is_empty() || self.ours.contains(domain)
    }
}

async fn ask(
    context: &Context,
) -> Result<Option<String>, async_nats::jetstream::context::AccountError> {
    let account = context.query_account().await?;
    Ok(account.domain.filter(|domain| !domain.is_empty()))
}
