use std::fmt;
use std::str::FromStr;

use dlq_core::StoreErrorKind;

/// Fault at a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Fault {
    /// The process dies before the call has an effect.
    CrashBefore,
    /// The process dies after the effect, before it hears of it.
    CrashAfter,
    /// The call fails at once, without effect.
    Error,
    /// The call does not answer for longer than any lease, then fails without effect.
    Hang,
    /// The effect happens, and the caller hears of an error.
    Unheard,
    /// Effect and answer come late: after longer than any lease.
    Slow,
    /// The process is told to stop, and the call goes well.
    Stop,
    /// The process stands still for longer than any lease, as a machine does that is suspended, and then goes on. Another
    /// is started meanwhile.
    Freeze,
    /// From this call on the store is gone for good: each call fails as unavailable, without effect.
    Gone,
    /// From this call on the store is of no use any more: each call fails with a kind that no retry mends.
    Broken,
}

impl Fault {
    /// Every fault.
    pub const ALL: [Self; 10] = [
        Self::CrashBefore,
        Self::CrashAfter,
        Self::Error,
        Self::Hang,
        Self::Unheard,
        Self::Slow,
        Self::Stop,
        Self::Freeze,
        Self::Gone,
        Self::Broken,
    ];

    const fn as_str(self) -> &'static str {
        match self {
            Self::CrashBefore => "crash-before",
            Self::CrashAfter => "crash-after",
            Self::Error => "error",
            Self::Hang => "hang",
            Self::Unheard => "unheard",
            Self::Slow => "slow",
            Self::Stop => "stop",
            Self::Freeze => "freeze",
            Self::Gone => "gone",
            Self::Broken => "broken",
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Faults by step. The text form is `7:error,12:crash-after`; without faults it is `none`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Plan(Vec<(u32, Fault)>);

impl Plan {
    /// Nothing goes wrong.
    #[must_use]
    pub const fn none() -> Self {
        Self(Vec::new())
    }

    /// The same plan, and `fault` at `step`, counted from 1.
    #[must_use]
    pub fn and(&self, step: u32, fault: Fault) -> Self {
        let mut faults = self.0.clone();
        faults.push((step, fault));
        // The last fault is the latest, behind which further ones are tried.
        faults.sort_by_key(|(step, _)| *step);
        Self(faults)
    }

    /// The faults, in the order of their steps.
    #[must_use]
    pub fn faults(&self) -> &[(u32, Fault)] {
        &self.0
    }

    /// Returns true if the messages stay with one process all the time.
    pub(super) fn keeps_the_process(&self) -> bool {
        self.0.iter().all(|(_, fault)| {
            matches!(fault, Fault::Error | Fault::Hang | Fault::Unheard | Fault::Slow)
        })
    }

    /// Returns true if a call or a process takes longer than a lease, so that two processes have one message.
    pub(super) fn outlasts_a_lease(&self) -> bool {
        let is_long = |fault: &Fault| matches!(fault, Fault::Hang | Fault::Slow | Fault::Freeze);
        self.0.iter().any(|(_, fault)| is_long(fault))
    }

    /// Returns true if the process dies.
    pub(super) fn is_deadly(&self) -> bool {
        let kills = |fault: &Fault| matches!(fault, Fault::CrashBefore | Fault::CrashAfter);
        self.0.iter().any(|(_, fault)| kills(fault))
    }

    /// Returns the kind of the errors of a store that is gone for good by `step`.
    pub(super) fn lost_store(&self, step: u32) -> Option<StoreErrorKind> {
        let mut earlier = self.0.iter().filter(|(at, _)| *at <= step);
        earlier.find_map(|(_, fault)| match fault {
            Fault::Gone => Some(StoreErrorKind::Unavailable),
            Fault::Broken => Some(StoreErrorKind::Incompatible),
            _ => None,
        })
    }

    /// Returns the fault at `step`.
    pub(super) fn at(&self, step: u32) -> Option<Fault> {
        self.0.iter().find(|(at, _)| *at == step).map(|(_, fault)| *fault)
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("none");
        }
        for (index, (step, fault)) in self.0.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            write!(f, "{comma}{step}:{fault}")?;
        }
        Ok(())
    }
}

/// A text that is not a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidPlan(String);

impl fmt::Display for InvalidPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` is not a fault; write e.g. `7:error`, with one of:", self.0)?;
        Fault::ALL.iter().try_for_each(|fault| write!(f, " {fault}"))
    }
}

impl std::error::Error for InvalidPlan {}

impl FromStr for Plan {
    type Err = InvalidPlan;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "none" {
            return Ok(Self::none());
        }
        let part = |part: &str| {
            let (step, name) = part.trim().split_once(':')?;
            let fault = Fault::ALL.into_iter().find(|fault| fault.as_str() == name)?;
            Some((step.parse().ok()?, fault))
        };
        text.split(',').try_fold(Self::none(), |plan, text| {
            let (step, fault) = part(text).ok_or_else(|| InvalidPlan(text.to_owned()))?;
            Ok(plan.and(step, fault))
        })
    }
}
