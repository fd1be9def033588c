use std::convert::Infallible;
use std::fmt;
use std::time::Duration;

use dlq_core::idempotency::BoxIdempotency;
use dlq_core::{Delivery, ErrorClass};
use dlq_tower::extract::Json;
use dlq_tower::handler::{HandlerStack, handler};
use tokio::time::sleep;

use super::gate::Process;
use super::idempotency::SteppedIdempotency;
use super::scenario::Act;
use super::world::CONSUMER;

/// Duration of a late success: longer than any lease.
const LATE: Duration = Duration::from_secs(50);

/// Error of a run.
#[derive(Debug)]
struct Refusal(ErrorClass);

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the story wants a {} failure", self.0)
    }
}

impl std::error::Error for Refusal {}

/// The handler that does what the stories say.
pub(super) fn told(process: &Process) -> HandlerStack {
    let scenario = &process.world.scenario;
    let teller = process.clone();
    let mut builder = handler(CONSUMER, move |Json(story): Json<usize>, delivery: Delivery| {
        tell(teller.clone(), story - 1, delivery)
    })
    .classify(|refusal: &Refusal| refusal.0)
    .policy(scenario.policy.clone())
    .clock(process.world.clock.clone());
    if scenario.idempotent {
        let keys = SteppedIdempotency::new(process.clone(), process.world.idempotency.clone());
        let world = process.world.clone();
        builder = builder
            .idempotency(BoxIdempotency::new(keys))
            .idempotency_lease(Duration::from_secs(30))
            .idempotency_key(move |delivery: &Delivery| {
                let stories = &world.scenario.stories;
                let own =
                    stories.iter().find(|story| story.message.id() == delivery.message().id());
                own.map(|story| story.key.clone())
            });
    }
    if scenario.ordered {
        builder = builder.order_by(|delivery: &Delivery| delivery.message().key().cloned());
    }
    builder.build().expect("the settings of scenarios do not contradict each other")
}

async fn tell(process: Process, story: usize, delivery: Delivery) -> Result<(), Refusal> {
    let effect = || async {
        let act = process.world.begin(story, &delivery);
        match act {
            Act::Succeed => process.world.succeed(story),
            Act::SucceedLate => {
                sleep(LATE).await;
                process.live().await;
                process.world.succeed(story);
            }
            Act::Kill => process.die::<()>().await,
            Act::Transient | Act::Permanent | Act::Panic | Act::KillLater => {}
        }
        Ok::<_, Infallible>(act)
    };
    // A handler has no errors of the border; its failures are its acts.
    let Ok(act) = process.run(effect).await;
    match act {
        Act::Transient => Err(Refusal(ErrorClass::Transient)),
        Act::Permanent => Err(Refusal(ErrorClass::Permanent)),
        // Unwinds without the panic hook, which would print thousands of times.
        Act::Panic => std::panic::resume_unwind(Box::new("the story wants a panic")),
        Act::Succeed | Act::SucceedLate | Act::Kill | Act::KillLater => Ok(()),
    }
}
