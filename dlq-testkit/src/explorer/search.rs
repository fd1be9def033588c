use std::fmt;
use std::sync::Arc;

use super::flaw::Flaw;
use super::gate::is_of_the_store;
use super::plan::{Fault, Plan};
use super::program::{Program, WholeConsumer};
use super::run::{Case, run};
use super::scenario::Scenario;

/// After so many findings a scenario is explored no further: it is broken, and more of the same helps nobody.
const ENOUGH: usize = 25;

/// Number of pairs of faults that are tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Depth {
    /// Every single fault, and so many pairs, evenly spread over all of them; two of three are such that the process dies.
    Pairs(usize),
    /// Every single fault and every pair.
    All,
}

/// Runs a scenario with every fault at every step, and with pairs of faults.
#[derive(Debug)]
#[must_use]
pub struct Explorer {
    scenario: Arc<Scenario>,
    program: Box<dyn Program>,
    flaw: Option<Flaw>,
    conflicts: Option<u64>,
    depth: Depth,
}

impl Explorer {
    /// Explores `scenario` with the consumer of `dlq-tower`.
    pub fn new(scenario: Scenario) -> Self {
        Self {
            scenario: Arc::new(scenario),
            program: Box::new(WholeConsumer),
            flaw: None,
            conflicts: None,
            depth: Depth::Pairs(600),
        }
    }

    /// Sets the program under test. Defaults to [`WholeConsumer`].
    pub fn program(mut self, program: impl Program) -> Self {
        self.program = Box::new(program);
        self
    }

    /// Breaks a promise on purpose. Defaults to none.
    pub fn flaw(mut self, flaw: Flaw) -> Self {
        self.flaw = Some(flaw);
        self
    }

    /// Lets the store decide without a lock, and compare versions when it writes, with some invented conflicts from this
    /// seed. Defaults to a lock.
    pub fn conflicts(mut self, seed: u64) -> Self {
        self.conflicts = Some(seed);
        self
    }

    /// Sets how many pairs of faults are tried. Defaults to 600.
    pub fn depth(mut self, depth: Depth) -> Self {
        self.depth = depth;
        self
    }

    /// Runs one plan.
    pub fn replay(&self, plan: &Plan) -> Report {
        let mut report = Report::new(&self.scenario);
        report.take(plan, self.run(plan));
        report
    }

    /// Runs all plans, or as many as it takes to find 25 that break a guarantee.
    pub fn explore(&self) -> Report {
        let mut report = Report::new(&self.scenario);
        let nothing = Plan::none();
        let undisturbed = self.run(&nothing);
        let steps = undisturbed.steps.clone();
        report.steps = steps.len();
        report.take(&nothing, undisturbed);

        // Where the second fault of a pair can be, for each first one.
        let mut pairs: Vec<(Plan, Vec<&'static str>)> = Vec::new();
        for (plan, _) in further(&nothing, &steps) {
            if report.findings.len() >= ENOUGH {
                return report;
            }
            let case = self.run(&plan);
            pairs.push((plan.clone(), case.steps.clone()));
            report.take(&plan, case);
        }
        let all: Vec<Plan> = pairs
            .iter()
            .flat_map(|(plan, steps)| further(plan, steps))
            .map(|(plan, _)| plan)
            .collect();
        report.pairs = all.len();
        let most = match self.depth {
            Depth::All => all.len(),
            Depth::Pairs(most) => most,
        };
        let (deadly, others): (Vec<Plan>, Vec<Plan>) = all.into_iter().partition(Plan::is_deadly);
        // Two of three pairs are deadly. If one kind has too few, the other has the rest.
        let from_deadly = (most - most / 3).max(most.saturating_sub(others.len()));
        let from_deadly = from_deadly.min(deadly.len());
        let from_others = (most - from_deadly).min(others.len());
        for plan in spread(&deadly, from_deadly).chain(spread(&others, from_others)) {
            if report.findings.len() >= ENOUGH {
                return report;
            }
            report.take(plan, self.run(plan));
        }
        report
    }

    fn run(&self, plan: &Plan) -> Case {
        let Self { program, scenario, flaw, conflicts, .. } = self;
        run(&**program, scenario, (*flaw, *conflicts), plan)
    }
}

/// Picks a number of plans, evenly over all.
fn spread(plans: &[Plan], wanted: usize) -> impl Iterator<Item = &Plan> {
    (0..wanted).map(move |index| &plans[index * plans.len() / wanted])
}

/// Every plan with one more fault, later than those of `plan`, in a case that had these steps.
fn further(plan: &Plan, steps: &[&'static str]) -> Vec<(Plan, &'static str)> {
    let last = plan.faults().last().map_or(0, |(step, _)| *step);
    let mut plans = Vec::new();
    for (step, what) in (1_u32..).zip(steps) {
        // A fault before those of the plan would make another case of it, whose steps are not known.
        if step <= last {
            continue;
        }
        for fault in Fault::ALL {
            if applies(fault, what) {
                plans.push((plan.and(step, fault), *what));
            }
        }
    }
    plans
}

/// Returns true if a fault means something at a step of this kind.
fn applies(fault: Fault, what: &str) -> bool {
    match (what, fault) {
        // Arriving is one instant: after it is before what comes next.
        ("receive", Fault::CrashAfter | Fault::Hang | Fault::Unheard | Fault::Slow) => false,
        // A handler's errors are its own, and are in its story.
        ("handle", Fault::Error | Fault::Hang | Fault::Unheard) => false,
        // At any other step it would be the same as at the next call of the store.
        (_, Fault::Gone | Fault::Broken) => is_of_the_store(what),
        _ => true,
    }
}

/// A case in which a guarantee was broken.
#[derive(Clone, Debug)]
pub struct Finding {
    /// Plan of faults.
    pub plan: Plan,
    /// Violations that were found.
    pub violations: Vec<String>,
    /// Name of each step.
    pub steps: Vec<&'static str>,
}

/// Result of exploring a scenario.
#[derive(Clone, Debug)]
#[must_use]
#[non_exhaustive]
pub struct Report {
    /// The scenario.
    pub scenario: &'static str,
    /// Number of steps without faults.
    pub steps: usize,
    /// Cases that were run, and in which every fault of the plan happened.
    pub cases: usize,
    /// Number of cases with one fault or none.
    pub singles: usize,
    /// In how many of these the process died: distinct crash points.
    pub deaths: usize,
    /// Number of pairs of faults.
    pub pairs: usize,
    /// Cases in which a guarantee was broken.
    pub findings: Vec<Finding>,
}

impl Report {
    fn new(scenario: &Scenario) -> Self {
        Self {
            scenario: scenario.name(),
            steps: 0,
            cases: 0,
            singles: 0,
            deaths: 0,
            pairs: 0,
            findings: Vec::new(),
        }
    }

    fn take(&mut self, plan: &Plan, case: Case) {
        // A case whose fault was never reached equals one with fewer faults, and is not counted.
        if plan.faults().len() < 2 {
            self.singles += usize::from(case.met);
        }
        if plan.is_deadly() {
            self.deaths += usize::from(case.met);
        }
        self.cases += usize::from(case.met);
        if !case.violations.is_empty() {
            let Case { steps, violations, .. } = case;
            self.findings.push(Finding { plan: plan.clone(), violations, steps });
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { scenario, steps, cases, singles, deaths, pairs, findings } = self;
        write!(
            f,
            "{scenario}: {deaths} crash points in {cases} cases ({singles} single, {} of {pairs} pairs) over {steps} steps, {} findings",
            cases - singles,
            findings.len()
        )?;
        for finding in findings.iter().take(10) {
            write!(f, "\n  DLQ_EXPLORE_CASE='{scenario} {}'", finding.plan)?;
            for violation in &finding.violations {
                write!(f, "\n    {violation}")?;
            }
            for (step, fault) in finding.plan.faults() {
                let what =
                    finding.steps.get(*step as usize - 1).copied().unwrap_or("never reached");
                write!(f, "\n    step {step} ({what}): {fault}")?;
            }
        }
        Ok(())
    }
}
