//! A connection to the servers that a URL names, and to the stream of dead letters there.

use std::future::{Future, ready};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dlq_core::BindingKey;
use dlq_core::log::Log as _;
use dlq_nats::async_nats::jetstream::context::GetStreamErrorKind;
use dlq_nats::async_nats::jetstream::{self, Context, ErrorCode, stream};
use dlq_nats::async_nats::{
    Client, ConnectError, ConnectErrorKind, ConnectOptions, Event, ServerAddr, ServerError,
};
use dlq_nats::{DlqStream, NatsLetters, RetryStream};
use futures_util::{FutureExt as _, StreamExt as _, TryStreamExt as _};
use tokio::sync::Notify;

use super::url::{Login, NatsUrl};
use crate::broker::Mark;
use crate::cli::BrokerArgs;
use crate::error::{CliError, chain};

/// Requests that are optional where they are refused: who the user is, which JetStream domain it is, and up to where
/// routers have looked, which those that watch work queues and interest streams need, and say so.
const OPTIONAL: [&str; 3] =
    ["\"$SYS.REQ.USER.INFO\"", "API.INFO\"", "API.STREAM.INFO.KV_DLQ_ROUTER\""];
/// Time limit for one server.
// Several servers are tried in a row, and one that is silent must leave time for the next.
const CONNECTING: Duration = Duration::from_secs(3);
/// Time limit for all servers together.
const PATIENCE: Duration = Duration::from_secs(10);

/// A server, and the name of the stream that the URL gave.
#[derive(Clone, Debug)]
pub(crate) struct Broker {
    pub(crate) context: Context,
    /// True if it is the server's own JetStream.
    pub(crate) is_own: bool,
    pub(crate) stream: String,
    /// The secret of the consumers, where there is one.
    pub(crate) key: Option<BindingKey>,
    /// The URL, fit to be shown.
    pub(crate) shown: String,
    /// The servers that it names, and how they are connected to.
    servers: Vec<ServerAddr>,
    options: Box<ConnectOptions>,
    refusals: Arc<Refusals>,
}

/// Refusals of the server. They arrive apart from the request, which is then never answered.
#[derive(Debug, Default)]
struct Refusals {
    latest: Mutex<Option<String>>,
    came: Notify,
    /// True if the connection was reported lost, and not yet restored.
    is_lost: AtomicBool,
}

impl Refusals {
    fn latest(&self) -> Option<String> {
        self.latest.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn forget(&self) {
        *self.latest.lock().unwrap_or_else(PoisonError::into_inner) = None;
        // A permit that is left would end the next wait at once.
        let _ = self.came.notified().now_or_never();
    }
}

impl Broker {
    pub(crate) async fn connect(
        scheme: &str,
        rest: &str,
        shown: String,
        args: &BrokerArgs,
    ) -> Result<Self, CliError> {
        let url = NatsUrl::parse(scheme, rest)?;
        let key = args.binding_key()?;
        let refusals = Arc::new(Refusals::default());
        let heard = Arc::clone(&refusals);
        let mut options = ConnectOptions::new()
            .name("dlq")
            .connection_timeout(CONNECTING)
            .require_tls(scheme == "tls")
            // The client reports refusals by events alone: the request that was refused only runs into its timeout.
            .event_callback(move |event| {
                let heard = Arc::clone(&heard);
                async move { hear(&heard, &event) }
            });
        options = match url.login {
            Some(Login::Password(user, password)) => options.user_and_password(user, password),
            Some(Login::Token(token)) => options.token(token),
            None => options,
        };
        if let Some(file) = &args.creds {
            options = options.credentials_file(file).await.map_err(|error| {
                CliError::refused(format!(
                    "the credentials file {} cannot be used: {error}",
                    file.display()
                ))
            })?;
        }
        if let Some(file) = &args.tls_ca {
            // The client would report a missing file as an error of the connection.
            if !file.is_file() {
                let text = format!("there is no file {} with certificates", file.display());
                return Err(CliError::refused(text));
            }
            options = options.add_root_certificates(file.clone());
        }
        let connected =
            tokio::time::timeout(PATIENCE, options.clone().connect(&url.servers[..])).await;
        let client = match connected {
            Ok(Ok(client)) => client,
            Ok(Err(error)) => return Err(not_connected(&shown, &error)),
            Err(_) => {
                let text = format!("{shown}: no server answered within {} s", PATIENCE.as_secs());
                return Err(CliError::failed(text));
            }
        };
        let context = match &args.js_domain {
            Some(domain) => jetstream::with_domain(client, domain),
            None => jetstream::new(client),
        };
        let is_own = args.js_domain.is_none();
        let (stream, servers, options) = (url.stream, url.servers, Box::new(options));
        Ok(Self { context, is_own, stream, key, shown, servers, options, refusals })
    }

    /// A connection to each of the servers that the URL names, to that one alone, also to one that is not there yet. None
    /// where it names one only.
    pub(crate) async fn each(&self) -> Result<Vec<Client>, CliError> {
        let mut clients = Vec::new();
        // The one server of a URL is heard by the connection that there is.
        for server in self.servers.iter().filter(|_| self.servers.len() > 1) {
            let name = format!("{}:{}", server.host(), server.port());
            let options = ConnectOptions::clone(&self.options)
                // Otherwise the client moves to another server of the cluster, and two of these connections would hear
                // the same one.
                .ignore_discovered_servers()
                // A router starts also while one of the servers is down, and hears it once it is back.
                .retry_on_initial_connect()
                .event_callback(move |event| {
                    match event {
                        Event::Connected => tracing::debug!("{name}: connected"),
                        event => tracing::warn!("{name}: {event}"),
                    }
                    ready(())
                });
            let client = options.connect(server).await;
            clients.push(client.map_err(|error| not_connected(&self.shown, &error))?);
        }
        Ok(clients)
    }

    /// Returns true if there are more servers than the URL names.
    pub(crate) fn has_others(&self) -> bool {
        let found = self.context.client().server_info().connect_urls;
        self.servers.len() == 1 && found.len() > 1
    }

    /// Returns the result of `work`, unless the server refuses something on the way, for which it would wait in vain.
    pub(crate) async fn permitted<T>(
        &self,
        work: impl Future<Output = Result<T, CliError>>,
    ) -> Result<T, CliError> {
        self.unless_refused(work).await.unwrap_or_else(|why| Err(self.not_permitted(&why)))
    }

    /// The same, with what the server says of what it refuses.
    pub(super) async fn unless_refused<T>(
        &self,
        work: impl Future<Output = Result<T, CliError>>,
    ) -> Result<Result<T, CliError>, String> {
        // What was refused before has been told, or did no harm.
        self.refusals.forget();
        tokio::select! {
            // Finished work comes first: a refusal that did no harm does not spoil it.
            biased;
            done = work => match (done, self.refusals.latest()) {
                // The refusal says more than the timeout to which it led.
                (Err(_), Some(why)) => Err(why),
                (done, _) => Ok(done),
            },
            () = self.refusals.came.notified() => Err(self.refusals.latest().unwrap_or_default()),
        }
    }

    /// Returns the next refusal of the server.
    pub(crate) async fn refused(&self) -> CliError {
        self.refusals.forget();
        self.refusals.came.notified().await;
        self.not_permitted(&self.refusals.latest().unwrap_or_default())
    }

    pub(super) fn not_permitted(&self, why: &str) -> CliError {
        CliError::failed(format!(
            "{}: the server does not permit it: {why}; grant that to this user, or say another user",
            self.shown
        ))
    }

    /// The settings of a stream; `None` when there is none of this name.
    pub(crate) async fn config(&self, name: &str) -> Result<Option<stream::Config>, CliError> {
        let error = match self.context.get_stream(name).await {
            Ok(stream) => return Ok(Some(stream.cached_info().config.clone())),
            Err(error) => error,
        };
        match error.kind() {
            GetStreamErrorKind::JetStream(answer)
                if answer.error_code() == ErrorCode::STREAM_NOT_FOUND =>
            {
                Ok(None)
            }
            GetStreamErrorKind::Request => Err(CliError::failed(format!(
                "{}: the server does not answer for JetStream: {}; is JetStream enabled for this account?",
                self.shown,
                chain(&error)
            ))),
            _ => Err(CliError::failed(format!("{}: {}", self.shown, chain(&error)))),
        }
    }

    /// The stream of dead letters that the URL names, as it is.
    pub(crate) async fn letters(&self) -> Result<DlqStream, CliError> {
        let name = &self.stream;
        let Some(config) = self.config(name).await? else {
            return Err(CliError::failed(format!(
                "{}: there is no stream `{name}`{}; a consumer or `dlq route` creates it, or name another: nats://HOST/STREAM",
                self.shown,
                self.others().await
            )));
        };
        existing(&config).ok_or_else(|| {
            CliError::refused(format!(
                "{}: stream `{name}` keeps {}, and not dead letters, which would be `PREFIX.>` and `PREFIX-aside.>`; name \
                 the stream of dead letters: nats://HOST/STREAM",
                self.shown,
                config.subjects.join(", ")
            ))
        })
    }

    /// Returns the numbers of messages and bytes in the stream of dead letters.
    pub(super) async fn queue_depth(&self) -> Result<(u64, u64), CliError> {
        let stream = self.context.get_stream(&self.stream).await;
        let stream = stream
            .map_err(|error| CliError::failed(format!("{}: {}", self.shown, chain(&error))))?;
        let state = &stream.cached_info().state;
        Ok((state.messages, state.bytes))
    }

    /// Returns the existing streams, in words.
    async fn others(&self) -> String {
        let names: Result<Vec<String>, _> =
            self.context.stream_names().take(11).try_collect().await;
        match names {
            Ok(names) if names.is_empty() => " (there are no streams)".to_owned(),
            Ok(names) => format!(" (there are {})", names.join(", ")),
            // The names are a help in another error, which must not be lost for theirs.
            Err(_) => String::new(),
        }
    }

    /// Returns the stores that the letters of the stream go into.
    pub(crate) async fn marks(&self, letters: &DlqStream) -> Result<Vec<Mark>, CliError> {
        let letters = NatsLetters::new(&self.context, letters.clone());
        let marks = letters.marks().await?.into_iter();
        Ok(marks
            .map(|mark| Mark {
                store: mark.store,
                confirmed: (mark.confirmed > 0)
                    .then(|| format!("letters up to {}", mark.confirmed)),
                delete: format!("nats consumer rm {} {}", self.stream, mark.by),
                by: mark.by,
            })
            .collect())
    }
}

/// A stream of dead letters as it is; `None` when it is one of something else.
pub(crate) fn existing(config: &stream::Config) -> Option<DlqStream> {
    let prefixes = config.subjects.iter().filter_map(|subject| subject.strip_suffix(".>"));
    // Both subjects together tell a stream of letters from one of messages, whatever its name.
    let mut prefixes = prefixes
        .filter(|prefix| config.subjects.iter().any(|other| *other == format!("{prefix}-aside.>")));
    let prefix = prefixes.next()?;
    Some(
        DlqStream::new()
            .name(&config.name)
            .prefix(prefix)
            // The settings are taken over as they are: with others the stream would be changed by whoever only looks at
            // it.
            .max_age(config.max_age)
            .replicas(config.num_replicas)
            .duplicate_window(config.duplicate_window),
    )
}

/// The stream by which letters go to their handlers, as it is; `None` when it is one of something else.
pub(crate) fn existing_retries(config: &stream::Config) -> Option<RetryStream> {
    let mut prefixes = config.subjects.iter().filter_map(|subject| subject.strip_suffix("-at.>"));
    let prefix = prefixes.next()?;
    Some(
        RetryStream::new()
            .name(&config.name)
            .prefix(prefix)
            .replicas(config.num_replicas)
            .duplicate_window(config.duplicate_window),
    )
}

fn hear(refusals: &Refusals, event: &Event) {
    match event {
        Event::ServerError(ServerError::Other(text)) if is_refusal(text) => {
            tracing::warn!("the server refuses something: {text}");
            *refusals.latest.lock().unwrap_or_else(PoisonError::into_inner) = Some(text.clone());
            // The text is in its place before anybody is woken to read it.
            refusals.came.notify_one();
        }
        Event::ServerError(error) => tracing::warn!("the server says: {error}"),
        Event::Disconnected => {
            refusals.is_lost.store(true, Ordering::Relaxed);
            tracing::warn!("the connection to the server is lost");
        }
        // The first connection is an event as well, and no news to anybody.
        Event::Connected if refusals.is_lost.swap(false, Ordering::Relaxed) => {
            tracing::warn!("connected to the server again");
        }
        other => tracing::debug!("{other}"),
    }
}

/// Returns true if the server says that this user lacks a right that is needed. Other texts are no matter of rights.
fn is_refusal(text: &str) -> bool {
    text.to_ascii_lowercase().contains("permissions violation")
        && !OPTIONAL.iter().any(|subject| text.contains(subject))
}

fn not_connected(shown: &str, error: &ConnectError) -> CliError {
    let why = chain(error);
    let advice = match error.kind() {
        ConnectErrorKind::AuthorizationViolation | ConnectErrorKind::Authentication => {
            "the server does not know this user; write nats://USER:PASSWORD@HOST or nats://TOKEN@HOST, or give --creds FILE"
        }
        _ if why.contains("certificate") => {
            "the server's certificate is not trusted; if it is your own, give --tls-ca FILE"
        }
        _ if shown.starts_with("tls:") => {
            "no server was reached that speaks TLS; is the address right, does it run, and does it want tls://?"
        }
        _ => "no server was reached; is the address right, and does it run?",
    };
    CliError::failed(format!("{shown}: {advice} ({why})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_refusal_is_a_matter_of_rights() {
        let refusals = Refusals::default();
        let says = |text: &str| {
            hear(&refusals, &Event::ServerError(ServerError::Other(text.to_owned())));
            refusals.latest()
        };
        for text in
            ["Stale Connection", "maximum connections exceeded", "Unknown Protocol Operation"]
        {
            assert_eq!(says(text), None, "{text}");
        }
        for subject in
            ["$SYS.REQ.USER.INFO", "$JS.API.INFO", "$JS.hub.API.STREAM.INFO.KV_DLQ_ROUTER"]
        {
            let text = format!("Permissions Violation for Publish to \"{subject}\"");
            assert_eq!(says(&text), None, "it is done without");
        }
        let text = "Permissions Violation for Publish to \"$JS.ACK.DLQ.x.1.1.1.1.0\"";
        assert_eq!(says(text).as_deref(), Some(text));
        refusals.forget();
        assert!(refusals.latest().is_none() && refusals.came.notified().now_or_never().is_none());
    }
}
