use std::sync::Arc;

use dlq_core::policy::RetryPolicy;
use dlq_core::{SharedClock, SystemClock};
use tower_layer::Layer;

use super::decide::Inner;
use super::{InProcessDelays, Retry};
use crate::metrics::Recorder;

/// Retries by a policy. See the [module docs](super).
#[derive(Clone, Debug)]
#[must_use = "a layer does nothing until it is applied to a service"]
pub struct RetryLayer {
    policy: RetryPolicy,
    consumer: Option<Arc<str>>,
    slots: InProcessDelays,
    clock: SharedClock,
    recorder: Recorder,
}

impl RetryLayer {
    /// Retries as `policy` says.
    ///
    /// The policy is taken as it is; [`RetryPolicy::check`] refuses one that contradicts itself.
    pub fn new(policy: RetryPolicy) -> Self {
        Self {
            policy,
            consumer: None,
            slots: InProcessDelays::default(),
            clock: SystemClock::shared(),
            recorder: Recorder::new(),
        }
    }

    /// Gives up after one attempt.
    pub fn never() -> Self {
        Self::new(RetryPolicy::never())
    }

    /// Sets the consumer's stable name. Defaults to the name that the delivery carries.
    pub fn consumer(mut self, name: impl Into<Arc<str>>) -> Self {
        self.consumer = Some(name.into());
        self
    }

    /// Sets how many messages may wait in the process, or whose slots to use. Defaults to 128 of its own, shared by all
    /// services that the layer is applied to.
    pub fn in_process_delays(mut self, slots: impl Into<InProcessDelays>) -> Self {
        self.slots = slots.into();
        self
    }

    /// Sets the clock for failures that carry no time. Defaults to the machine's.
    pub fn clock(mut self, clock: SharedClock) -> Self {
        self.clock = clock;
        self
    }

    /// Sets what counts failed attempts. Defaults to a recorder of its own.
    pub fn recorder(mut self, recorder: Recorder) -> Self {
        self.recorder = recorder;
        self
    }
}

impl<S> Layer<S> for RetryLayer {
    type Service = Retry<S>;

    fn layer(&self, inner: S) -> Self::Service {
        let shared = Inner {
            policy: self.policy.clone(),
            consumer: self.consumer.clone(),
            slots: self.slots.clone(),
            clock: self.clock.clone(),
            recorder: self.recorder.clone(),
        };
        Retry::new(inner, Arc::new(shared))
    }
}
