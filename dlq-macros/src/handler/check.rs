//! Rules between options: what contradicts itself is refused at its token.

use std::time::Duration;

use syn::LitStr;

use super::args::Args;
use super::backoff::{Backoff, Kind};
use crate::errors::Errors;

pub(super) fn check(args: &Args, errors: &mut Errors) {
    names(args, errors);
    if let Some(attempts) = &args.max_attempts
        && attempts.value == 0
    {
        errors.at(
            &attempts.literal,
            "`max_attempts = 0` would never run the handler; write at least 1",
        );
    }
    if let Some(limit) = &args.concurrency
        && limit.value == 0
    {
        errors
            .at(&limit.literal, "`concurrency = 0` would never run the handler; write at least 1");
    }
    if let Some(timeout) = &args.timeout
        && timeout.value.is_zero()
    {
        errors.at(
            &timeout.text,
            "in `timeout = \"0s\"` no attempt can succeed; leave it out for no timeout",
        );
    }
    if let (Some(panic), Some(attempts)) = (&args.panic, &args.max_attempts)
        && panic.retry
        && attempts.value == 1
    {
        errors
            .at(&panic.word, "`panic = retry` contradicts `max_attempts = 1`, which never retries");
    }
    if let Some(backoff) = &args.backoff {
        delays(backoff, errors);
        reached(backoff, args, errors);
    }
}

fn names(args: &Args, errors: &mut Errors) {
    // The name becomes part of subjects and topics, in which the last two are wildcards.
    let bad = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '*' | '>');
    let aliases = args.aliases.iter().flatten();
    let mut known: Vec<String> = Vec::new();
    for name in args.name.iter().chain(aliases) {
        let text = name.value();
        if text.is_empty() || text.len() > 200 || text.contains(bad) {
            errors.at(
                name,
                "this is not a name for a handler; write at most 200 letters, digits, `.`, `-` and `_`",
            );
        }
        if known.contains(&text) {
            errors.at(name, format!("the name `{text}` is given twice; drop one"));
        }
        known.push(text);
    }
}

/// The cap that holds when none is set.
fn default_cap(kind: Kind) -> Option<Duration> {
    match kind {
        Kind::Exponential | Kind::Decorrelated => Some(Duration::from_secs(30)),
        Kind::Linear => Some(Duration::from_secs(3600)),
        Kind::Constant | Kind::Ladder => None,
    }
}

fn delays(backoff: &Backoff, errors: &mut Errors) {
    let first = &backoff.delays[0];
    match &backoff.max {
        Some(max) if max.value < first.value => errors.at(
            &max.text,
            format!(
                "the cap \"{}\" is below the first delay \"{}\"; raise the cap or shorten the delay",
                max.text.value(),
                first.text.value()
            ),
        ),
        None if default_cap(backoff.kind).is_some_and(|cap| cap < first.value) => errors.at(
            &first.text,
            format!(
                "the first delay \"{}\" is above the default cap of {} s; add `max = \"…\"`",
                first.text.value(),
                default_cap(backoff.kind).map_or(0, |cap| cap.as_secs())
            ),
        ),
        _ => {}
    }
    if let Some(factor) = &backoff.factor
        && !(factor.value.is_finite() && factor.value >= 1.0)
    {
        errors.at(&factor.literal, "a factor below 1 would shorten the delays; write at least 1");
    }
    for pair in backoff.delays.windows(2) {
        if pair[1].value < pair[0].value {
            errors.at(
                &pair[1].text,
                format!(
                    "the ladder goes down from \"{}\" to \"{}\"; order its stages from short to long",
                    pair[0].text.value(),
                    pair[1].text.value()
                ),
            );
        }
    }
}

/// Each stage of a ladder needs a failed attempt before it, and one that comes after.
fn reached(backoff: &Backoff, args: &Args, errors: &mut Errors) {
    let Some(attempts) = args.max_attempts.as_ref().filter(|_| backoff.kind == Kind::Ladder) else {
        return;
    };
    let reached = usize::try_from(attempts.value.saturating_sub(1)).unwrap_or(usize::MAX);
    // No attempts at all have been refused above, and one mistake is told once.
    if let Some(stage) = backoff.delays.get(reached).filter(|_| attempts.value > 0) {
        let text: &LitStr = &stage.text;
        errors.at(
            text,
            format!(
                "with `max_attempts = {}` the stage \"{}\" is never reached; allow {} attempts or drop the stage",
                attempts.value,
                text.value(),
                backoff.delays.len() + 1
            ),
        );
    }
}
