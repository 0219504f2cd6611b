use core::fmt;
use core::time::Duration;

use crate::algorithm::exponential::{Exponential, Measured};
use crate::algorithm::{Algorithm, Limit, Mode, Word, each, figures};
use crate::clock::Nanos;
use crate::cost::Cost;
use crate::decision::{Decision, Outcome, Wait};
use crate::rule::Rule;

/// The answer to a request. The verdict itself is computed at once, and all figures only on demand.
///
/// ```
/// use earrrl::{Limiter, Rule, Wait};
///
/// let rule: Rule = "fixed-window 2/1d".parse()?;
/// let limiter: Limiter<str> = Limiter::builder(rule).build()?;
/// let verdict = limiter.check("alice");
/// assert!(verdict.is_allowed());
/// assert_eq!((verdict.remaining(), verdict.retry_after()), (1, Wait::NONE));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy)]
#[must_use]
pub struct Verdict<'a> {
    pub(super) rule: &'a Rule,
    pub(super) now: Nanos,
    pub(super) cost: Cost,
    pub(super) allowed: bool,
    pub(super) details: Details<'a>,
}

#[derive(Clone, Copy)]
pub(super) enum Details<'a> {
    /// The states before and after the request, under a rule that denies requests over its limit.
    Words {
        before: Option<Word>,
        after: Option<Word>,
        mode: Mode,
    },
    /// The same for exponential, whose states are no words.
    Averages {
        limit: &'a Exponential,
        before: Option<Measured>,
        after: Option<Measured>,
        mode: Mode,
    },
    Whole(Decision),
}

impl Verdict<'_> {
    /// Returns true if the request is answered as allowed, which is every outcome except
    /// [`Outcome::Deny`].
    ///
    /// ```
    /// # use earrrl::{Limiter, Rule};
    /// # let rule: Rule = "fixed-window 1/1d".parse()?;
    /// # let limiter: Limiter<str> = Limiter::builder(rule).build()?;
    /// assert!(limiter.check("alice").is_allowed());
    /// assert!(!limiter.check("alice").is_allowed());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn is_allowed(&self) -> bool {
        self.allowed
    }

    /// Returns the verdict if the request is allowed, for use with `?`.
    ///
    /// ```
    /// # use earrrl::{Denied, Limiter, Rule};
    /// # let rule: Rule = "fixed-window 1/1d".parse()?;
    /// let limiter: Limiter<str> = Limiter::builder(rule).build()?;
    /// let serve = || -> Result<&str, Denied> {
    ///     limiter.check("alice").ok()?;
    ///     Ok("hello")
    /// };
    /// assert_eq!(serve(), Ok("hello"));
    /// assert!(serve().is_err_and(|denied| denied.decision().remaining == 0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns [`Denied`], which contains the whole decision, if the request is denied.
    #[inline]
    pub fn ok(self) -> Result<Self, Denied> {
        if self.allowed {
            Ok(self)
        } else {
            Err(Denied(self.decision()))
        }
    }

    /// Returns the instant at which the request was decided. A refund names this instant.
    ///
    /// ```
    /// # use earrrl::{Limiter, ManualClock, Nanos, Rule};
    /// # let rule: Rule = "fixed-window 1/1d".parse()?;
    /// let clock = ManualClock::new(Nanos::from_secs(5));
    /// let limiter = Limiter::<str>::builder(rule).clock(clock).build()?;
    /// assert_eq!(limiter.check("alice").decided_at(), Nanos::from_secs(5));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn decided_at(&self) -> Nanos {
        self.now
    }

    /// Returns the request's cost, which was charged if the request was stored.
    ///
    /// ```
    /// # use earrrl::{Cost, Limiter, Rule};
    /// # let rule: Rule = "fixed-window 2/1d".parse()?;
    /// # let limiter: Limiter<str> = Limiter::builder(rule).build()?;
    /// let verdict = limiter.check_cost("alice", Cost::from_units(2))?;
    /// assert_eq!(verdict.cost(), Cost::from_units(2));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn cost(&self) -> Cost {
        self.cost
    }

    /// Returns the outcome of the request.
    ///
    /// ```
    /// # use earrrl::{Action, Limiter, Outcome, Rule};
    /// let rule: Rule = "fixed-window 1/1d".parse()?;
    /// let rule = rule.with_action(Action::Quarantine)?;
    /// let limiter: Limiter<str> = Limiter::builder(rule).build()?;
    /// assert_eq!(limiter.check("alice").outcome(), Outcome::Allow);
    /// let second = limiter.check("alice");
    /// assert!(second.is_allowed() && second.outcome() == Outcome::Quarantine);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn outcome(&self) -> Outcome {
        self.decision().outcome
    }

    /// Returns the client's measured rate, in cost units per second; `None` for token-bucket and
    /// gcra.
    ///
    /// ```
    /// # use earrrl::{Limiter, Rule};
    /// # let rule: Rule = "fixed-window 86400/1d".parse()?;
    /// # let limiter: Limiter<str> = Limiter::builder(rule).build()?;
    /// limiter.check("alice").ok()?;
    /// assert!(limiter.check("alice").rate().is_some_and(|rate| rate < 0.001));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn rate(&self) -> Option<f64> {
        self.decision().rate
    }

    /// Returns the number of requests of cost 1 that would be allowed in sequence at
    /// [`decided_at`](Self::decided_at).
    ///
    /// ```
    /// # use earrrl::{Cost, Limiter, Rule};
    /// # let rule: Rule = "fixed-window 2/1d".parse()?;
    /// # let limiter: Limiter<str> = Limiter::builder(rule).build()?;
    /// assert_eq!(limiter.check("alice").remaining(), 1);
    /// assert_eq!(limiter.check("alice").remaining(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn remaining(&self) -> u64 {
        self.decision().remaining
    }

    /// Returns the wait that the client is told; see [`Decision::retry_after`].
    ///
    /// ```
    /// # use earrrl::{Limiter, ManualClock, Nanos, Rule};
    /// # use std::time::Duration;
    /// # let clock = ManualClock::new(Nanos::from_secs(10));
    /// # let rule: Rule = "fixed-window 1/1m".parse()?;
    /// # let limiter = Limiter::<str>::builder(rule).clock(clock).build()?;
    /// limiter.check("alice").ok()?;
    /// let wait = limiter.check("alice").retry_after().duration();
    /// assert_eq!(wait, Some(Duration::from_secs(50)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn retry_after(&self) -> Wait {
        self.decision().retry_after
    }

    /// Returns the wait until the client's past requests no longer affect decisions, if nothing
    /// else is sent.
    ///
    /// ```
    /// # use earrrl::{Cost, Limiter, Rule};
    /// # let rule: Rule = "fixed-window 2/1d".parse()?;
    /// # let limiter: Limiter<str> = Limiter::builder(rule).build()?;
    /// assert!(limiter.check("alice").reset_after().as_secs() <= 86_400);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn reset_after(&self) -> Duration {
        self.decision().reset_after
    }

    /// Returns the whole decision.
    ///
    /// ```
    /// # use earrrl::{Cost, Limiter, Rule};
    /// # let rule: Rule = "fixed-window 2/1d".parse()?;
    /// # let limiter: Limiter<str> = Limiter::builder(rule).build()?;
    /// let decision = limiter.check("alice").decision();
    /// assert!(decision.allowed && decision.over.is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[cold]
    pub fn decision(&self) -> Decision {
        match self.details {
            Details::Whole(decision) => decision,
            Details::Words {
                before,
                after,
                mode,
            } => each!(self.rule.limit(), limit => {
                let state = |word: Option<Word>| limit.state_of(word?);
                self.decision_of(limit, state(before), state(after), is_told(&before, &after, mode))
            }),
            Details::Averages {
                before,
                after,
                mode,
                limit,
            } => self.decision_of(limit, before, after, is_told(&before, &after, mode)),
        }
    }

    fn decision_of<A: Algorithm>(
        &self,
        limit: &A,
        before: Option<A::State>,
        after: Option<A::State>,
        is_told: bool,
    ) -> Decision {
        let before = limit.advance(before, self.now);
        let after = limit.advance(after, self.now);
        let estimate = limit.estimate(before.as_ref(), self.now, self.cost);
        let is_told = is_told && !self.allowed;
        let figures = figures(
            limit,
            estimate,
            after.as_ref(),
            is_told,
            self.now,
            self.cost,
        );
        Decision::single(self.allowed, self.now, figures)
    }
}

/// Returns true if a check has stored its request, so that a denied one has a place in the queue.
fn is_told<S: PartialEq>(before: &S, after: &S, mode: Mode) -> bool {
    mode == Mode::Check && before != after
}

impl fmt::Debug for Verdict<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.decision().fmt(f)
    }
}

/// The error of [`Verdict::ok`]: the request was denied.
///
/// ```
/// use earrrl::{Denied, Limiter, Rule};
///
/// # let rule: Rule = "fixed-window 1/1d".parse()?;
/// let limiter: Limiter<str> = Limiter::builder(rule).build()?;
/// limiter.check("alice").ok()?;
/// let denied: Denied = limiter.check("alice").ok().unwrap_err();
/// assert!(denied.to_string().starts_with("over the limit; allowed again in "));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Denied(pub(super) Decision);

impl Denied {
    /// Returns the decision on the denied request.
    ///
    /// ```
    /// # use earrrl::{Cost, Limiter, Rule};
    /// # let rule: Rule = "fixed-window 2/1d".parse()?;
    /// # let limiter: Limiter<str> = Limiter::builder(rule).build()?;
    /// limiter.check_cost("alice", Cost::from_units(2))?.ok()?;
    /// let denied = limiter.check("alice").ok().unwrap_err();
    /// assert_eq!(denied.decision().remaining, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn decision(&self) -> &Decision {
        &self.0
    }
}

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.retry_after {
            Wait::For(wait) => write!(f, "over the limit; allowed again in {wait:?}"),
            Wait::Never => f.write_str("the cost is more than the rule ever admits"),
        }
    }
}

impl std::error::Error for Denied {}
