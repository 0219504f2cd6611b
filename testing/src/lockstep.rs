//! Sends the same requests to an engine and to the reference engine, and compares each answer.

use std::sync::Arc;
use std::time::Duration;

use crate::ReferenceEngine;
use crate::{Mismatch, Profile};
use earrrl::{
    Charge, Clock, Cost, Decision, Engine, EngineError, Limit, ManualClock, Mode, Nanos, Rule,
    RuleId, Wait,
};

/// An operation that both engines execute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Decides a request and stores it as the rule's policy requires.
    Check,
    /// Decides a request and stores it in any case.
    Charge,
    /// Decides a request and stores nothing.
    Peek,
    /// Takes back a request that was charged at this instant.
    Refund(Nanos),
    /// Takes back the request that was charged last.
    RefundLast,
    /// Removes the client.
    Reset,
}

/// The index of a rule, a client's key, and a cost.
pub type Asked<'a> = (usize, &'a [u8], Cost);

/// A rule, and its ids in both engines.
struct PreparedPair {
    rule: Rule,
    engine: RuleId,
    reference: RuleId,
}

/// An engine and the reference engine with the same rules.
pub struct Lockstep<'a, E> {
    /// The engine under test.
    pub engine: E,
    reference: ReferenceEngine,
    clock: Arc<ManualClock>,
    rules: Vec<PreparedPair>,
    profile: &'a Profile,
    scene: String,
    /// The number of answers compared so far.
    pub compared: usize,
}

impl<'a, E: Engine> Lockstep<'a, E> {
    /// Returns both engines with the rules prepared under the names `rule-0`, `rule-1` and so on.
    ///
    /// # Errors
    /// Returns an error if either engine does not accept a rule.
    pub fn new(
        scene: &str,
        engine: E,
        rules: &[Rule],
        profile: &'a Profile,
    ) -> Result<Self, Mismatch> {
        let clock = Arc::new(ManualClock::new(Nanos::ZERO));
        let reference = ReferenceEngine::new(clock.clone());
        let mut lockstep = Self {
            engine,
            reference,
            clock,
            rules: Vec::new(),
            profile,
            scene: scene.into(),
            compared: 0,
        };
        for (place, rule) in rules.iter().enumerate() {
            lockstep.prepare(place, rule)?;
        }
        Ok(lockstep)
    }

    /// Prepares the rule with an index, or replaces the rule that has it.
    ///
    /// # Errors
    /// Returns an error if either engine does not accept the rule.
    pub fn prepare(&mut self, place: usize, rule: &Rule) -> Result<(), Mismatch> {
        let name = format!("rule-{place}");
        let failed = |error: EngineError| Mismatch::new(&self.scene, format!("prepare: {error}"));
        let engine = self.engine.prepare(&name, rule).map_err(failed)?;
        let reference = self.reference.prepare(&name, rule).map_err(failed)?;
        self.rules.truncate(place);
        self.rules.push(PreparedPair {
            rule: rule.clone(),
            engine,
            reference,
        });
        Ok(())
    }

    /// Returns the id that the engine under test gave to the rule with an index.
    pub fn id(&self, place: usize) -> RuleId {
        self.rules[place].engine
    }

    /// Returns `at` rounded to a multiple of the engine's clock step.
    pub fn rounded(&self, at: Nanos) -> Nanos {
        let step = self.profile.step.as_nanos() as u64;
        Nanos::new(at.get() / step * step)
    }

    /// Executes an operation in both engines. Returns the decision of the engine under test, or
    /// `None` for a refund or reset.
    ///
    /// # Errors
    /// Returns an error if the answers differ.
    pub async fn ask(
        &mut self,
        operation: Operation,
        charges: &[Asked<'_>],
        now: Nanos,
    ) -> Result<Option<Decision>, Mismatch> {
        self.clock.set(now);
        let charge = |id: fn(&PreparedPair) -> RuleId| -> Vec<Charge<'_>> {
            let each = charges.iter();
            each.map(|&(rule, key, cost)| Charge {
                rule: id(&self.rules[rule]),
                key,
                cost,
            })
            .collect()
        };
        let mine = charge(|rule| rule.engine);
        let theirs = charge(|rule| rule.reference);
        let got = apply(&self.engine, operation, &mine, now).await;
        let expected = apply(&self.reference, operation, &theirs, self.clock.now()).await;
        self.compared += 1;
        let problem = match (&got, &expected) {
            (Ok(got), Ok(expected)) => self.difference(got.as_ref(), expected.as_ref(), charges),
            (Err(_), Err(_)) => None,
            _ => Some("one failed".into()),
        };
        match problem {
            None => Ok(got.ok().flatten()),
            Some(field) => Err(Mismatch::new(
                &self.scene,
                format!(
                    "answer {}, {operation:?} of {charges:?} at {now:?} under {}: {field} differs\n  \
                     got      {got:?}\n  expected {expected:?}",
                    self.compared, self.rules[charges[0].0].rule
                ),
            )),
        }
    }

    /// Returns the first field in which two decisions differ by more than the engine's profile
    /// permits.
    fn difference(
        &self,
        got: Option<&Decision>,
        expected: Option<&Decision>,
        charges: &[Asked<'_>],
    ) -> Option<String> {
        let (Some(got), Some(expected)) = (got, expected) else {
            return (got.is_some() != expected.is_some()).then(|| "the kind of answer".into());
        };
        let estimated = charges
            .iter()
            .any(|(rule, ..)| is_estimate(self.rules[*rule].rule.limit()));
        let fields = [
            ("allowed", got.allowed == expected.allowed),
            ("at", got.at == expected.at),
            ("outcome", got.outcome == expected.outcome),
            ("rule", got.rule == expected.rule),
            ("over", got.over == expected.over),
            ("rate", self.same_rate(got.rate, expected.rate)),
            ("limit", close(got.limit, expected.limit, 1e-12)),
            (
                "remaining",
                self.same_remaining(got.remaining, expected.remaining, estimated),
            ),
            (
                "retry_after",
                self.same_wait(got.retry_after, expected.retry_after),
            ),
            (
                "reset_after",
                self.same_time(got.reset_after, expected.reset_after),
            ),
            ("delay", self.same_time(got.delay, expected.delay)),
        ];
        fields
            .into_iter()
            .find(|(_, same)| !same)
            .map(|(name, _)| name.into())
    }

    fn same_rate(&self, got: Option<f64>, expected: Option<f64>) -> bool {
        match (got, expected) {
            // An engine may drop a rate that has decayed this far.
            (Some(got), Some(expected)) if got.max(expected) < 1e-20 => true,
            (Some(got), Some(expected)) => close(got, expected, self.profile.rate_tolerance),
            (got, expected) => got.is_none() && expected.is_none(),
        }
    }

    /// Compares two remaining quotas. Those that are rounded down from an estimate may differ by
    /// one if the engine is not exact.
    fn same_remaining(&self, got: u64, expected: u64, estimated: bool) -> bool {
        let exact = !estimated || self.profile.rate_tolerance <= 1e-9;
        let slack = if exact {
            0
        } else {
            1 + (expected as f64 * 1e-6) as u64
        };
        got.abs_diff(expected) <= slack
    }

    fn same_wait(&self, got: Wait, expected: Wait) -> bool {
        match (got, expected) {
            (Wait::For(got), Wait::For(expected)) => self.same_time(got, expected),
            (got, expected) => got == expected,
        }
    }

    fn same_time(&self, got: Duration, expected: Duration) -> bool {
        let slack = self.profile.step + expected.mul_f64(self.profile.rate_tolerance);
        got.abs_diff(expected) <= slack
    }
}

fn is_estimate(limit: &Limit) -> bool {
    matches!(limit, Limit::RecentAverage(_) | Limit::Exponential(_))
}

fn close(got: f64, expected: f64, tolerance: f64) -> bool {
    got == expected || (got - expected).abs() <= tolerance * expected.abs() + f64::MIN_POSITIVE
}

async fn apply<E: Engine>(
    engine: &E,
    operation: Operation,
    charges: &[Charge<'_>],
    now: Nanos,
) -> Result<Option<Decision>, EngineError> {
    let first = charges.first().ok_or(EngineError::Charges(0));
    match operation {
        Operation::Check => engine
            .decide(charges, Mode::Check, Some(now))
            .await
            .map(Some),
        Operation::Charge => engine
            .decide(charges, Mode::Charge, Some(now))
            .await
            .map(Some),
        Operation::Peek => engine
            .decide(charges, Mode::Peek, Some(now))
            .await
            .map(Some),
        Operation::Refund(at) => engine
            .refund(first?, Some(at), Some(now))
            .await
            .map(|()| None),
        Operation::RefundLast => engine.refund(first?, None, Some(now)).await.map(|()| None),
        Operation::Reset => {
            let charge = first?;
            engine.reset(charge.rule, charge.key).await.map(|()| None)
        }
    }
}
