use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use dlq_core::idempotency::{BoxIdempotency, Idempotency};
use dlq_core::policy::RetryPolicy;
use dlq_core::{Classifier, Delivery, SharedClock};
use tower_layer::Layer;
use tower_service::Service;

use super::failed::Judge;
use super::layered::{HandlerService, Layers, WhenReady};
use super::place::{Composed, Run};
use super::stack::{Compose, Inner, KeyFn};
use super::{
    FunctionId, HandlerConfig, HandlerFn, HandlerOverrides, HandlerStack, IntoStack, InvalidConfig,
    Taken, ToKey, Unclassified, env, service,
};
use crate::catch_panic::{CatchPanic, CatchPanicLayer};
use crate::classify::{ClassifyLayer, Derived};
use crate::concurrency::{Concurrency, ConcurrencyLayer};
use crate::idempotency::{Idempotency as Once, IdempotencyLayer};
use crate::metrics::Recorder;
use crate::retry::{InProcessDelays, RetryLayer};
use crate::reuse::Reuse;
use crate::stage::{ClassifiedError, Done, IsDone, Setback};
use crate::timeout::{Timeout, TimeoutLayer};

/// A handler without the attribute: `function` under a stable name, with the default policy. Its errors are transient
/// until [`derived`](HandlerBuilder::derived) or [`classify`](HandlerBuilder::classify) says how to judge them.
///
/// ```
/// use dlq_tower::core::{ErrorClass, RetryPolicy};
/// use dlq_tower::extract::{Attempt, Key};
/// use dlq_tower::handler::handler;
///
/// async fn count(key: Key, attempt: Attempt) -> Result<(), std::io::Error> {
///     println!("{key:?}, run {}", attempt.number());
///     Ok(())
/// }
///
/// let stack = handler("inventory.count", count)
///     .policy(RetryPolicy::new().with_max_attempts(5))
///     .classify(|error: &std::io::Error| match error.kind() {
///         std::io::ErrorKind::InvalidData => ErrorClass::Permanent,
///         _ => ErrorClass::Transient,
///     })
///     .build()?;
/// assert_eq!(stack.policy().max_attempts(), 5);
/// # Ok::<(), dlq_tower::handler::InvalidConfig>(())
/// ```
pub fn handler<F>(name: impl Into<Arc<str>>, function: F) -> HandlerBuilder<F> {
    HandlerBuilder::new(name.into(), function, Unclassified)
}

type Lookup = Arc<dyn Fn(&str) -> Option<String> + Send + Sync>;

/// A handler whose settings are being made. See the [module docs](super) for which setting wins.
///
/// No setting is needed. What the setters are given is checked by [`build`](Self::build), which refuses settings that
/// contradict each other.
#[must_use = "a handler does nothing until it is built"]
pub struct HandlerBuilder<H, S = (), C = Unclassified, I = BoxIdempotency> {
    function: H,
    state: Arc<S>,
    classifier: C,
    idempotency: Option<Arc<I>>,
    settings: Settings,
}

#[derive(Clone)]
struct Environment {
    prefix: String,
    lookup: Lookup,
    /// It is the process' own, which other handlers read as well.
    is_shared: bool,
}

#[derive(Clone)]
struct Settings {
    name: Arc<str>,
    aliases: Vec<Arc<str>>,
    policy: RetryPolicy,
    timeout: Option<Duration>,
    concurrency: Option<usize>,
    idempotency_key: Option<KeyFn>,
    lease: Duration,
    keep: Duration,
    order_by: Option<KeyFn>,
    config: HandlerConfig,
    env: Option<Environment>,
    // None for the machine's.
    clock: Option<SharedClock>,
    recorder: Recorder,
    in_process_delays: InProcessDelays,
    layers: Layers,
    location: Option<&'static str>,
}

impl<H, C> HandlerBuilder<H, (), C> {
    pub(crate) fn new(name: Arc<str>, function: H, classifier: C) -> Self {
        let settings = Settings {
            name,
            aliases: Vec::new(),
            policy: RetryPolicy::new(),
            timeout: None,
            concurrency: None,
            idempotency_key: None,
            lease: Duration::from_secs(60),
            keep: Duration::from_secs(30 * 24 * 60 * 60),
            order_by: None,
            config: HandlerConfig::new(),
            env: None,
            clock: None,
            recorder: Recorder::new(),
            in_process_delays: InProcessDelays::default(),
            layers: Layers::default(),
            location: None,
        };
        Self { function, state: Arc::new(()), classifier, idempotency: None, settings }
    }
}

impl<H, S, C, I> HandlerBuilder<H, S, C, I> {
    /// Sets what [`State`](crate::extract::State) is taken from. Defaults to nothing.
    pub fn with_state<S2: Send + Sync + 'static>(self, state: S2) -> HandlerBuilder<H, S2, C, I> {
        let Self { function, classifier, idempotency, settings, .. } = self;
        HandlerBuilder { function, state: Arc::new(state), classifier, idempotency, settings }
    }

    /// Sets how errors are judged: by a closure that returns a [`Classification`](dlq_core::Classification) or an
    /// [`ErrorClass`](dlq_core::ErrorClass), or any [`Classifier`]. Replaces what the attribute says of it.
    pub fn classify<C2>(self, classifier: C2) -> HandlerBuilder<H, S, C2, I> {
        let Self { function, state, idempotency, settings, .. } = self;
        HandlerBuilder { function, state, classifier, idempotency, settings }
    }

    /// Errors are judged by their own [`Classify`](dlq_core::Classify) implementation.
    pub fn derived(self) -> HandlerBuilder<H, S, Derived, I> {
        self.classify(Derived)
    }

    fn set(mut self, set: impl FnOnce(&mut Settings)) -> Self {
        set(&mut self.settings);
        self
    }

    /// Sets the stable name, under which letters, claims and retry records are kept. Defaults to that of the attribute.
    ///
    /// To rename a handler, give the former name as an [alias](Self::alias), or its letters stay behind, and what it
    /// has handled is forgotten. That goes for the default as well, when the function moves to another module.
    pub fn name(self, name: impl Into<Arc<str>>) -> Self {
        self.set(|settings| settings.name = name.into())
    }

    /// Adds a name that the handler had before, and whose letters it takes back. What was handled under it stays handled:
    /// with an [`idempotency_key`](Self::idempotency_key) each message costs one more look at the store for each alias.
    /// Defaults to none.
    pub fn alias(self, alias: impl Into<Arc<str>>) -> Self {
        self.set(|settings| settings.aliases.push(alias.into()))
    }

    /// Sets how it is retried. Defaults to [`RetryPolicy::new`].
    pub fn policy(self, policy: RetryPolicy) -> Self {
        self.set(|settings| settings.policy = policy)
    }

    /// Sets how long an attempt may take; `None` for as long as it likes. Defaults to `None`.
    pub fn timeout(self, limit: impl Into<Option<Duration>>) -> Self {
        self.set(|settings| settings.timeout = limit.into())
    }

    /// Sets how many attempts run at once; `None` for as many as the consumer has in flight. Defaults to `None`.
    pub fn concurrency(self, limit: impl Into<Option<usize>>) -> Self {
        self.set(|settings| settings.concurrency = limit.into())
    }

    /// Sets where it is kept which messages were handled. Needs an [`idempotency_key`](Self::idempotency_key).
    /// Defaults to none.
    ///
    /// The store becomes part of the builder's type, so that its calls need no boxes. Where it depends on a condition
    /// whether there is one, give a [`BoxIdempotency`], which leaves the type as it is.
    pub fn idempotency<I2: Idempotency>(self, store: I2) -> HandlerBuilder<H, S, C, I2> {
        let Self { function, state, classifier, settings, .. } = self;
        HandlerBuilder { function, state, classifier, idempotency: Some(Arc::new(store)), settings }
    }

    /// Sets by which key a message is handled once; a message without one is handled as often as it comes. Needs a
    /// store for [`idempotency`](Self::idempotency). Defaults to none.
    ///
    /// The closure must not panic; [`by_payload`](crate::extract::by_payload) makes one that guards yours.
    pub fn idempotency_key<F, K>(self, key: F) -> Self
    where
        F: Fn(&Delivery) -> K + Send + Sync + 'static,
        K: ToKey,
    {
        let key: KeyFn = Arc::new(move |delivery| key(delivery).into_key());
        self.set(|settings| settings.idempotency_key = Some(key))
    }

    /// Sets how long a claim lasts without a word. Choose at most the transport's own lease. Defaults to 60 s.
    pub fn idempotency_lease(self, lease: Duration) -> Self {
        self.set(|settings| settings.lease = lease)
    }

    /// Sets how long it is kept that a message was handled. Choose at least as long as letters are kept. Defaults to
    /// 30 days.
    pub fn idempotency_keep(self, keep: Duration) -> Self {
        self.set(|settings| settings.keep = keep)
    }

    /// Sets by which key messages run one after another, in the order of their source; a message without one needs no
    /// order. Defaults to none.
    ///
    /// The closure must not panic; [`by_payload`](crate::extract::by_payload) makes one that guards yours.
    pub fn order_by<F, K>(self, key: F) -> Self
    where
        F: Fn(&Delivery) -> K + Send + Sync + 'static,
        K: ToKey,
    {
        let key: KeyFn = Arc::new(move |delivery| key(delivery).into_key());
        self.set(|settings| settings.order_by = Some(key))
    }

    /// Applies what the configuration says of the handler. Wins over code. Defaults to nothing.
    pub fn configure(self, config: &HandlerConfig) -> Self {
        self.set(|settings| settings.config = config.clone())
    }

    /// Applies what the environment says of the handler. Wins over code and configuration. Defaults to nothing.
    ///
    /// With the prefix `DLQ`, the handler `payments.charge` reads `DLQ_PAYMENTS_CHARGE_MAX_ATTEMPTS`, else
    /// `DLQ_MAX_ATTEMPTS`; so for `MAX_RETRIES` (the same under another name), `MAX_CRASHES`, `BACKOFF`, `MAX_IN_PROCESS_DELAY`,
    /// `MAX_RETRY_AFTER`, `PANIC`, `TIMEOUT` and `CONCURRENCY`. Everything but letters and digits is `_` in a variable, so
    /// that the handlers `a.b`, `a-b` and `a_b` would read the same ones: [`build`](Self::build) refuses the second of them.
    ///
    /// A variable that begins so and sets nothing, such as `DLQ_PAYMENTS_CHARGE_MAX_ATTEMPS`, is refused as well. Where the
    /// name of the handler is a single word, or the prefix is empty, only one that is a letter or two from a setting is: others
    /// may be the program's own. [`check_env`](super::check_env) refuses variables of handlers that there are not.
    pub fn env(self, prefix: impl Into<String>) -> Self {
        // A value that is not UTF-8 is refused when it is read, like any other that makes no sense.
        let lookup: Lookup = Arc::new(|name| {
            std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
        });
        let prefix = prefix.into();
        self.set(|settings| settings.env = Some(Environment { prefix, lookup, is_shared: true }))
    }

    /// The same as [`env`](Self::env), with variables from elsewhere: a file of them, or a test.
    pub fn env_from<F>(self, prefix: impl Into<String>, lookup: F) -> Self
    where
        F: Fn(&str) -> Option<String> + Send + Sync + 'static,
    {
        let (prefix, lookup) = (prefix.into(), Arc::new(lookup));
        self.set(|settings| settings.env = Some(Environment { prefix, lookup, is_shared: false }))
    }

    /// Sets the clock that failures are timed by. Defaults to the machine's.
    pub fn clock(self, clock: SharedClock) -> Self {
        self.set(|settings| settings.clock = Some(clock))
    }

    /// Sets what counts failed attempts. Defaults to a recorder of its own.
    pub fn recorder(self, recorder: Recorder) -> Self {
        self.set(|settings| settings.recorder = recorder)
    }

    /// Sets how many messages may wait in the process for their next attempt, or whose slots to use. Defaults to 128 of
    /// its own.
    pub fn in_process_delays(self, slots: impl Into<InProcessDelays>) -> Self {
        self.set(|settings| settings.in_process_delays = slots.into())
    }

    /// Adds a layer around the function: any [`Layer`] of `tower`, applied to each attempt. A later layer wraps the earlier
    /// ones. Defaults to none.
    ///
    /// It stands inside retry, permit, idempotency, timeout and panic guard, and around the classified function with its
    /// extractors and state. Its service may keep an attempt waiting until it is ready, which neither counts against the
    /// [`timeout`](Self::timeout) nor keeps the consumer from stopping: the message is then deferred, and so it is where the
    /// service fails to become ready. The message keeps its [permit](Self::concurrency) and its key while it waits.
    ///
    /// An error of the function passes through layers unchanged, also in a box. A layer's own error is transient where it is
    /// a [`BoxError`](dlq_core::BoxError); [`ClassifyErrorsLayer`](crate::classify::ClassifyErrorsLayer) says otherwise. A
    /// layer whose service cannot be cloned, such as a rate limit, goes into a [`ShareLayer`](super::ShareLayer).
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use dlq_tower::handler::{ShareLayer, handler};
    /// use tower::limit::{ConcurrencyLimitLayer, RateLimitLayer};
    ///
    /// async fn charge() {}
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), dlq_tower::handler::InvalidConfig> {
    /// let stack = handler("payments.charge", charge)
    ///     .layer(ConcurrencyLimitLayer::new(2))
    ///     .layer(ShareLayer::new(RateLimitLayer::new(10, Duration::from_secs(1))))
    ///     .build()?;
    /// # let _ = stack;
    /// # Ok(()) }
    /// ```
    pub fn layer<L>(self, layer: L) -> Self
    where
        L: Layer<HandlerService> + Send + Sync + 'static,
        L::Service: Service<Delivery, Future: Send + 'static> + Clone + Send + Sync + 'static,
        <L::Service as Service<Delivery>>::Response: IsDone,
        <L::Service as Service<Delivery>>::Error: ClassifiedError,
    {
        self.set(|settings| settings.layers.push(layer))
    }

    /// Sets where the function stands in the source.
    pub(crate) fn location(self, location: &'static str) -> Self {
        self.set(|settings| settings.location = Some(location))
    }

    /// Composes the layers.
    ///
    /// # Errors
    ///
    /// When settings contradict each other or cannot be read, or another function has the name and shares the store of
    /// keys; the error names them.
    pub fn build<Args>(self) -> Result<HandlerStack, InvalidConfig>
    where
        H: HandlerFn<S, Args>,
        S: Send + Sync + 'static,
        C: Classifier<H::Error> + Clone + Send + Sync + 'static,
        I: Idempotency,
        Args: 'static,
    {
        let Self { function, state, classifier, idempotency, settings } = self;
        let settings = settings.check(idempotency.is_some())?;
        let Settings { name, aliases, policy, timeout, concurrency, order_by, clock, .. } =
            settings.clone();
        let known = FunctionId::of::<H>();
        let mut taken = match idempotency.as_ref().and_then(|store| store.store_identity()) {
            Some(store) => {
                let names = std::iter::once(&name).chain(&aliases).cloned();
                // They are free again where a later step fails, since `taken` is dropped with the error.
                Taken::names(&store, names, known)?
            }
            None => Vec::new(),
        };
        let variables = settings.env.as_ref().map(|env| env::own(&env.prefix, &name));
        // Variables from a file or a test are read by this handler alone.
        if let Some(prefix) = &variables
            && settings.env.as_ref().is_some_and(|env| env.is_shared)
        {
            taken.push(Taken::variables(prefix, &name)?);
        }

        let mut classify = ClassifyLayer::new(Judge(classifier));
        if let Some(location) = settings.location {
            classify = classify.location(location);
        }
        let mut guard = CatchPanicLayer::new().policy(policy.panic());
        let mut limit = timeout.map(TimeoutLayer::new);
        let mut retry = RetryLayer::new(policy.clone())
            .consumer(Arc::clone(&name))
            .in_process_delays(settings.in_process_delays.clone())
            .recorder(settings.recorder.clone());
        if let Some(clock) = clock {
            classify = classify.clock(clock.clone());
            guard = guard.clock(clock.clone());
            limit = limit.map(|limit| limit.clock(clock.clone()));
            retry = retry.clock(clock);
        }

        let function = classify.layer(service::service(function, state));
        let once = settings.once(idempotency);
        let key_janitors = once.as_ref().map(IdempotencyLayer::key_janitor);
        let permits = concurrency.map(ConcurrencyLayer::new);
        let stages = Stages { guard, limit, once, permits, retry };
        let layers = settings.layers.clone();
        // It is kept, so that a router can put its own layers around the function later.
        let compose: Compose = Arc::new(move |layers| stages.around(function.clone(), layers));
        let service = compose(&layers);

        Ok(HandlerStack::new(Inner {
            name,
            aliases,
            policy,
            timeout,
            concurrency,
            order_by,
            key_janitors,
            service,
            layers,
            compose,
            function: known,
            variables,
            _taken: taken.into(),
        }))
    }
}

/// The stages around an attempt, inside out.
struct Stages<I> {
    guard: CatchPanicLayer,
    limit: Option<TimeoutLayer>,
    once: Option<IdempotencyLayer<I>>,
    permits: Option<ConcurrencyLayer>,
    retry: RetryLayer,
}

impl<I: Idempotency> Stages<I> {
    /// Composes all stages and `layers` around the classified function.
    fn around<S>(&self, function: S, layers: &Layers) -> Arc<dyn Run>
    where
        S: Reuse + Service<Delivery, Response = Done, Error = Setback>,
        S: Clone + Send + Sync + 'static,
        S::Future: Send + 'static,
    {
        // Without layers nothing is erased, which would cost a box for each attempt.
        if layers.is_empty() {
            return self.outer(self.inner(function));
        }
        let class = self.guard.class();
        let service = self.inner(layers.around(HandlerService::new(function)));
        self.outer(WhenReady::new(service, class))
    }

    /// The stages that wait for nothing.
    fn inner<S>(&self, service: S) -> Timeout<CatchPanic<S>> {
        let service = self.guard.layer(service);
        match &self.limit {
            Some(limit) => limit.layer(service),
            None => Timeout::without(service),
        }
    }

    /// Puts the layers around `service` that wait for a store, for a permit and for the next attempt.
    fn outer<S>(&self, service: S) -> Arc<dyn Run>
    where
        S: Reuse + Service<Delivery, Response = Done, Error = Setback>,
        S: Clone + Send + Sync + 'static,
        S::Future: Send + 'static,
    {
        // The permit stands inside retry, so a message that waits for its next attempt holds none (G4), and outside idempotency,
        // so one that waits for a permit holds no claim.
        let service = match &self.once {
            Some(once) => once.layer(service),
            None => Once::without(service),
        };
        let service = match &self.permits {
            Some(permits) => permits.layer(service),
            None => Concurrency::without(service),
        };
        Arc::new(Composed::new(self.retry.layer(service)))
    }
}

impl Settings {
    /// The settings with all overrides applied.
    fn check(mut self, is_idempotent: bool) -> Result<Self, InvalidConfig> {
        for name in std::iter::once(&self.name).chain(&self.aliases) {
            check_name(name)?;
        }
        let name = Arc::clone(&self.name);
        let mut overrides = self.config.overrides(&name);
        if let Some(Environment { prefix, lookup, is_shared }) = &self.env {
            if *is_shared {
                // Only the variables of the process can be listed, so misspelt names are found only there.
                env::check(prefix, &name, env::variables())?;
            }
            // The environment wins over the configuration, and both win over code.
            overrides = env::overrides(prefix, &name, &**lookup)?.or(overrides);
        }
        let HandlerOverrides { timeout, concurrency, .. } = overrides;
        let policy = overrides.policy().apply(&self.policy);
        self.policy = policy.map_err(|error| InvalidConfig::policy(&name, error))?;
        self.timeout = timeout.or(self.timeout);
        self.concurrency = concurrency.or(self.concurrency);

        let wrong =
            |what: &str| Err(InvalidConfig::new(format!("the handler `{name}` has {what}")));
        match (is_idempotent, &self.idempotency_key) {
            (false, Some(_)) => wrong(
                "`idempotency_key` but no store to keep its keys in; call `.idempotency(store)`",
            ),
            // A store without a key would look like protection and give none.
            (true, None) => wrong(
                "a store for idempotency but no `idempotency_key`; set one, e.g. the id of the event",
            ),
            _ if is_idempotent && self.lease.is_zero() => {
                wrong("`idempotency_lease = 0s`, by which every claim has ended at once")
            }
            _ if self.timeout.is_some_and(|limit| limit.is_zero()) => {
                wrong("`timeout = 0s`, in which no attempt can succeed")
            }
            _ if self.concurrency == Some(0) => {
                wrong("`concurrency = 0`, by which nothing would ever run")
            }
            _ => Ok(self),
        }
    }

    fn once<I: Idempotency>(&self, store: Option<Arc<I>>) -> Option<IdempotencyLayer<I>> {
        let (store, key) = store.zip(self.idempotency_key.clone())?;
        // Keys are kept under the present name, even for a letter that comes under a former one: both are the same
        // message.
        let layer = IdempotencyLayer::sharing(store, key)
            .consumer(Arc::clone(&self.name))
            .former_names(self.aliases.iter().cloned())
            .lease(self.lease)
            .keep(self.keep)
            .max_crashes(self.policy.max_crashes());
        Some(layer)
    }
}

/// A name stands in subjects, topics, headers and commands.
pub(crate) fn check_name(name: &str) -> Result<(), InvalidConfig> {
    let bad = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '*' | '>');
    if name.is_empty() || name.len() > 200 || name.contains(bad) {
        return Err(InvalidConfig::new(format!(
            "`{}` is not a name for a handler; write at most 200 letters, digits, `.`, `-` and `_`",
            name.chars().take(80).collect::<String>().escape_debug()
        )));
    }
    Ok(())
}

impl<H, S, C, I, Args> IntoStack<(Args,)> for HandlerBuilder<H, S, C, I>
where
    H: HandlerFn<S, Args>,
    S: Send + Sync + 'static,
    C: Classifier<H::Error> + Clone + Send + Sync + 'static,
    I: Idempotency,
    Args: 'static,
{
    fn into_stack(self) -> Result<HandlerStack, InvalidConfig> {
        self.build()
    }
}

impl<H: Clone, S, C: Clone, I> Clone for HandlerBuilder<H, S, C, I> {
    fn clone(&self) -> Self {
        Self {
            function: self.function.clone(),
            state: Arc::clone(&self.state),
            classifier: self.classifier.clone(),
            idempotency: self.idempotency.clone(),
            settings: self.settings.clone(),
        }
    }
}

impl<H, S, C, I> fmt::Debug for HandlerBuilder<H, S, C, I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HandlerBuilder")
            .field("name", &self.settings.name)
            .field("aliases", &self.settings.aliases)
            .field("policy", &self.settings.policy)
            .field("timeout", &self.settings.timeout)
            .field("concurrency", &self.settings.concurrency)
            .finish_non_exhaustive()
    }
}
