//! Conditions that have to hold when everything has come to rest.

use std::collections::HashSet;
use std::time::Duration;

use dlq_core::{Cause, DeadLetter, DeliveredFrom, Reason, Status};

use super::scenario::{Ending, Order, Story};
use super::world::World;

/// Longest wait of a healthy message.
const PATIENCE: Duration = Duration::from_millis(500);

/// Notes everything in a world at rest that breaks a guarantee.
pub(super) fn check(world: &World) {
    kept(world);
    for (index, story) in world.scenario.stories.iter().enumerate() {
        let letter = world.row(index);
        ended(world, index, story, letter.as_ref());
        waited(world, index, story);
        // One that another process has handled meanwhile is nobody's to copy.
        let is_dead = letter.as_ref().is_some_and(|letter| letter.state.status == Status::Pending)
            && !world.has_succeeded(index);
        if is_dead && world.scenario.feed.is_some() && world.feed.get(world.letter(index)).is_none()
        {
            world.violated(format!("G1: the letter of message {} has no copy", index + 1));
        }
    }
    if let Some(most) = world.scenario.most_replayed {
        let stories = 0..world.scenario.stories.len();
        let replayed = |story: &usize| {
            world.runs(*story).iter().any(|run| run.delivered_from == DeliveredFrom::Store)
        };
        let replayed = stories.filter(replayed).count();
        if replayed > most {
            world.violated(format!("G6: {replayed} messages were replayed, at most {most} may be"));
        }
    }
    if world.unfinished_operations() > 0 {
        world.violated("G7: an operation has not ended".to_owned());
    }
}

/// The same of a world whose store is gone for good: nothing has come to its end that needed it, and nothing is lost.
pub(super) fn check_without_store(world: &World) {
    world.inspect("at rest");
    kept(world);
}

/// Checks the conditions that hold in every world.
fn kept(world: &World) {
    // Each fault and each kill may let the broker hand out a message once more.
    let repeats = world.gate.repeats() + world.kills();
    let rows = world.rows();
    for (index, story) in world.scenario.stories.iter().enumerate() {
        let letters: Vec<_> =
            rows.iter().filter(|row| row.message.id() == story.message.id()).collect();
        if letters.len() > 1 {
            world.violated(format!("G2: message {} has {} letters", index + 1, letters.len()));
        }
        let letter = world.row(index);
        // A letter that only the producer's id finds has an identity under which nobody would look for it.
        if letters.len() != usize::from(letter.is_some()) {
            world.violated(format!("G2: a letter of message {} has another identity", index + 1));
        }
        if let Some(letter) = &letter {
            honest(world, index, letter);
            if letter.message.payload() != story.message.payload()
                || letter.message.key() != story.message.key()
            {
                world.violated(format!("G8: the letter of message {} has other bytes", index + 1));
            }
        }
        let runs = world.runs(index);
        let succeeded = runs.iter().filter(|run| run.succeeded).count();
        if succeeded > 1 + repeats {
            world.violated(format!(
                "G6: message {} was handled {succeeded} times; faults explain {repeats} repetitions",
                index + 1
            ));
        }
    }
}

/// G4: a message that is handled at once waits for no other, as long as nothing goes wrong but one refused letter.
fn waited(world: &World, index: usize, story: &Story) {
    if world.scenario.refused.is_none() || !world.gate.plan.faults().is_empty() || !story.later {
        return;
    }
    if let Some(waited) = world.waited(index).filter(|waited| *waited > PATIENCE) {
        world.violated(format!("G4: message {} waited {waited:?} for others", index + 1));
    }
}

/// G3: a letter says what really happened.
fn honest(world: &World, story: usize, letter: &DeadLetter) {
    let undecoded = letter.cause == Some(Cause::Decode);
    let runs = world.runs(story);
    let made = world.made(story, letter.generation);
    let number = story + 1;
    let (attempts, generation) = (letter.attempts as usize, letter.generation);
    let dead = matches!(letter.state.status, Status::Pending | Status::Quarantined);
    // A message that cannot be decoded dies before its handler runs.
    if attempts > made && !undecoded {
        world.violated(format!(
            "G3: the letter of message {number} counts {attempts} attempts in generation {generation}; {made} were made"
        ));
    }
    if !dead {
        return;
    }
    // A reason is a lie unless the handler has run at least so often.
    let least = match letter.reason {
        Reason::Exhausted => world.scenario.policy.max_attempts() as usize,
        Reason::Permanent if !undecoded => 1,
        // Any other reason can be true of a message that never reached its handler: a process may die before.
        _ => 0,
    };
    if made < least {
        world.violated(format!(
            "G3: message {number} died of `{}` in generation {generation} after {made} runs; it takes {least}",
            letter.reason
        ));
    }
    let generations: HashSet<_> = runs.iter().map(|run| run.generation).collect();
    // How often it has died already is for the forger to say.
    let is_forged = world.scenario.stories[story].forgery.is_some();
    if generation as usize > generations.len() && !is_forged {
        world.violated(format!(
            "G2: message {number} is said to have died {} times, and ran in {} generations",
            generation + 1,
            generations.len()
        ));
    }
}

/// The message has ended as it does when nothing goes wrong.
fn ended(world: &World, index: usize, story: &Story, letter: Option<&DeadLetter>) {
    let found = letter.map(|letter| (letter.state.status, letter.reason));
    let fits = match story.ending {
        Ending::Handled => {
            // A stream keeps the letters of what it was sent back from.
            let was_sent_back = world.scenario.orders.contains(&Order::SendBack);
            world.has_succeeded(index)
                && (was_sent_back || found.is_none_or(|(status, _)| status == Status::Resolved))
        }
        Ending::Dead(reason) => found == Some((Status::Pending, reason)),
        Ending::Quarantined(reason) => found == Some((Status::Quarantined, reason)),
        Ending::DeadUnlessHandled(reason) if world.has_succeeded(index) => {
            // Of two processes that have a message one may write its letter after the other has handled it.
            found.is_none_or(|(status, _)| status == Status::Resolved)
                || (world.gate.plan.outlasts_a_lease() && found == Some((Status::Pending, reason)))
        }
        Ending::DeadUnlessHandled(reason) => found == Some((Status::Pending, reason)),
    };
    if fits || inherits(world, index, story, found) {
        return;
    }
    let handled = if world.has_succeeded(index) { "handled" } else { "not handled" };
    world.violated(format!(
        "G1: message {} ended {handled}, with the letter {found:?}; expected {:?}",
        index + 1,
        story.ending
    ));
}

/// Returns true if a death may inherit counts. A recorded message that runs once more, because the broker has not heard
/// or a process stood still, leaves counts with its key, which nobody may reset any more: one attempt or one crash for
/// each such run.
fn inherits(world: &World, index: usize, story: &Story, found: Option<(Status, Reason)>) -> bool {
    let again = world.ran_again(index);
    let policy = &world.scenario.policy;
    let left = |own: usize, most: u32| again > 0 && own + again >= most as usize;
    story.later
        && match found {
            Some((Status::Pending, Reason::Exhausted)) => {
                left(world.runs(index).len(), policy.max_attempts())
            }
            Some((Status::Pending, Reason::MaxCrashes)) => {
                left(world.gate.repeats(), policy.max_crashes())
            }
            _ => false,
        }
}
