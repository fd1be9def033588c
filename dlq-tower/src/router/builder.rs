use std::collections::HashMap;
use std::sync::Arc;

use dlq_core::Delivery;
use tower_layer::Layer;
use tower_service::Service;

use super::service::Inner;
use super::table::Table;
use super::{DEFAULT_NAME, Matcher, Router};
use crate::handler::{
    HandlerService, HandlerStack, Handles, IntoStack, InvalidConfig, Layers, check_name,
    same_variables,
};
use crate::stage::{ClassifiedError, IsDone};

/// A router whose routes are being declared. See the [module docs](super).
#[derive(Debug)]
#[must_use = "a router does nothing until it is built"]
pub struct RouterBuilder {
    name: Arc<str>,
    routes: Vec<(Matcher, Result<HandlerStack, InvalidConfig>)>,
    fallback: Option<Result<HandlerStack, InvalidConfig>>,
    layers: Layers,
}

impl RouterBuilder {
    pub(super) fn new() -> Self {
        Self {
            name: Arc::from(DEFAULT_NAME),
            routes: Vec::new(),
            fallback: None,
            layers: Layers::default(),
        }
    }

    /// Sets the name under which messages that no handler takes are kept. Defaults to `router`: choose another where
    /// several programs share a store.
    pub fn name(mut self, name: impl Into<Arc<str>>) -> Self {
        self.name = name.into();
        self
    }

    /// Hands messages of a subject, or of an [`event`](super::event), to `handler`.
    pub fn route<Args>(
        mut self,
        messages: impl Into<Matcher>,
        handler: impl IntoStack<Args>,
    ) -> Self {
        self.routes.push((messages.into(), handler.into_stack()));
        self
    }

    /// Hands messages that no route takes to `handler`. Defaults to none: they are rejected.
    pub fn fallback<Args>(mut self, handler: impl IntoStack<Args>) -> Self {
        self.fallback = Some(handler.into_stack());
        self
    }

    /// Adds a layer around the function of every handler, whether its route is declared before or after. It wraps the
    /// handler's own layers, and those that were added before. Defaults to none.
    ///
    /// Each handler has a service of its own of it, so that a limit of `tower::limit` limits each for itself; in a
    /// [`ShareLayer`](crate::handler::ShareLayer) it limits all together. See
    /// [`HandlerBuilder::layer`](crate::handler::HandlerBuilder::layer) for where it stands and how its errors are judged.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use dlq_tower::handler::{ShareLayer, handler};
    /// use dlq_tower::router::Router;
    /// use tower::limit::RateLimitLayer;
    /// # async fn charge() {}
    /// # async fn refund() {}
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), dlq_tower::handler::InvalidConfig> {
    /// // Ten calls a second, of both.
    /// let router = Router::new()
    ///     .route("payments.charge", handler("payments.charge", charge))
    ///     .route("payments.refund", handler("payments.refund", refund))
    ///     .layer(ShareLayer::new(RateLimitLayer::new(10, Duration::from_secs(1))))
    ///     .build()?;
    /// # let _ = router;
    /// # Ok(()) }
    /// ```
    pub fn layer<L>(mut self, layer: L) -> Self
    where
        L: Layer<HandlerService> + Send + Sync + 'static,
        L::Service: Service<Delivery, Future: Send + 'static> + Clone + Send + Sync + 'static,
        <L::Service as Service<Delivery>>::Response: IsDone,
        <L::Service as Service<Delivery>>::Error: ClassifiedError,
    {
        self.layers.push(layer);
        self
    }

    /// Checks the routes.
    ///
    /// # Errors
    ///
    /// When a pattern cannot be read, two routes are in conflict, two handlers have one name or the same variables of
    /// the environment, or a handler that was
    /// given as a builder could not be built. The error names them.
    pub fn build(self) -> Result<Router, InvalidConfig> {
        check_name(&self.name)?;
        let mut handlers = Handlers::default();
        let (mut events, mut subjects) = (Table::default(), Table::default());
        for (matcher, handler) in self.routes {
            // Errors of builders are kept until here, so that `route` can be chained.
            let handler = handlers.add(handler?)?;
            match matcher {
                Matcher::Subject(pattern) => subjects.add("subject", &pattern, handler)?,
                Matcher::Event(pattern) => events.add("event", &pattern, handler)?,
            }
        }
        let fallback = match self.fallback {
            Some(handler) => Some(handlers.add(handler?)?),
            None => None,
        };
        let Handlers { all, by_name } = handlers;
        // Layers are put around last, so they wrap handlers of routes that were declared after them as well.
        let all = all.iter().map(|handler| handler.within(&self.layers)).collect();
        // Letters under the router's name are routed anew, and those under a handler's name go to that handler. One
        // name cannot mean both.
        if by_name.contains_key(&self.name) {
            return Err(InvalidConfig::new(format!(
                "the router and one of its handlers are both called `{}`; give the router another name",
                self.name
            )));
        }
        let name = self.name;
        Ok(Router::of(Inner { name, handlers: all, by_name, events, subjects, fallback }))
    }
}

#[derive(Default)]
struct Handlers {
    all: Vec<HandlerStack>,
    by_name: HashMap<Arc<str>, usize>,
}

impl Handlers {
    /// The number of `handler`, which may serve several routes.
    fn add(&mut self, handler: HandlerStack) -> Result<usize, InvalidConfig> {
        if let Some(known) = self.all.iter().position(|known| known.is(&handler)) {
            return Ok(known);
        }
        let number = self.all.len();
        for name in handler.names() {
            if self.by_name.insert(Arc::clone(&name), number).is_some() {
                return Err(InvalidConfig::new(format!(
                    "two handlers are called `{name}`; give one another name, or clone one built handler for both routes"
                )));
            }
        }
        let variables = handler.variables();
        let reads_them =
            |known: &&HandlerStack| variables.is_some() && known.variables() == variables;
        if let (Some(known), Some(variables)) = (self.all.iter().find(reads_them), variables) {
            return Err(same_variables(handler.name(), known.name(), variables));
        }
        self.all.push(handler);
        Ok(number)
    }
}
