//! The seam to whatever keeps the states: plain data in, a decision out.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::future::Future;

use crate::algorithm::Mode;
use crate::clock::Nanos;
use crate::cost::Cost;
use crate::decision::Decision;
use crate::error::{RuleError, RuleErrorKind};
use crate::rule::Rule;

/// The most rules that one request is charged to.
pub const MAX_CHARGES: usize = 64;

/// A rule that an engine has prepared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RuleId(pub u32);

/// One client's part of a request, under one rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charge<'a> {
    /// The rule.
    pub rule: RuleId,
    /// The client: any bytes.
    pub key: &'a [u8],
    /// The cost of the request.
    pub cost: Cost,
}

/// Keeps the clients of prepared rules, and decides.
///
/// `now: None` means the engine's own clock. Time never goes back: an earlier `now` than the latest
/// one used is taken as that. The conformance suite (feature `testing`) says the rest.
pub trait Engine {
    /// The answer to a request.
    type Decide: Future<Output = Result<Decision, EngineError>> + Send + 'static;
    /// The end of a change.
    type Done: Future<Output = Result<(), EngineError>> + Send + 'static;

    /// Makes a rule known under a name; once, not on every request. A name that is known already
    /// keeps its id and its clients' history, and gets the new rule.
    ///
    /// # Errors
    /// An invalid name, a rule that the engine can't keep, and too little memory for its clients.
    fn prepare(&self, name: &str, rule: &Rule) -> Result<RuleId, EngineError>;

    /// Returns the rule that is prepared under a name.
    fn prepared(&self, name: &str) -> Option<Rule>;

    /// Decides a request under one or several rules. A [check](Mode::Check) is all or nothing, a
    /// [charge](Mode::Charge) is stored under every rule, a [peek](Mode::Peek) under none; all three
    /// answer the same verdict.
    fn decide(&self, charges: &[Charge<'_>], mode: Mode, now: Option<Nanos>) -> Self::Decide;

    /// Checks one request at once, for callers that need no figures if it is within its rule: then it is
    /// charged, and the result is `true`. On `false` nothing was stored and nothing is known; the caller asks
    /// [`decide`](Engine::decide). An engine that cannot answer at once always returns `false`.
    fn admit_at_once(&self, _charge: &Charge<'_>) -> bool {
        false
    }

    /// Takes back what was charged at `charged_at`, or now where that is `None`.
    fn refund(
        &self,
        charge: &Charge<'_>,
        charged_at: Option<Nanos>,
        now: Option<Nanos>,
    ) -> Self::Done;

    /// Forgets a client.
    fn reset(&self, rule: RuleId, key: &[u8]) -> Self::Done;
}

/// An engine that others keep a hand on.
impl<E: Engine + ?Sized> Engine for Arc<E> {
    type Decide = E::Decide;
    type Done = E::Done;

    fn prepare(&self, name: &str, rule: &Rule) -> Result<RuleId, EngineError> {
        (**self).prepare(name, rule)
    }

    fn prepared(&self, name: &str) -> Option<Rule> {
        (**self).prepared(name)
    }

    fn decide(&self, charges: &[Charge<'_>], mode: Mode, now: Option<Nanos>) -> Self::Decide {
        (**self).decide(charges, mode, now)
    }

    fn admit_at_once(&self, charge: &Charge<'_>) -> bool {
        (**self).admit_at_once(charge)
    }

    fn refund(
        &self,
        charge: &Charge<'_>,
        charged_at: Option<Nanos>,
        now: Option<Nanos>,
    ) -> Self::Done {
        (**self).refund(charge, charged_at, now)
    }

    fn reset(&self, rule: RuleId, key: &[u8]) -> Self::Done {
        (**self).reset(rule, key)
    }
}

/// An error of an engine that could not answer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EngineError {
    /// The rule is none of this engine's.
    UnknownRule(RuleId),
    /// No charge, or more than [`MAX_CHARGES`].
    Charges(usize),
    /// An invalid rule, name or cost.
    Invalid(RuleError),
    /// The store of the states can't be reached, or has no memory left.
    Unavailable(String),
}

impl fmt::Display for EngineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownRule(RuleId(id)) => write!(f, "rule {id} is not prepared"),
            Self::Charges(count) => write!(f, "{count} charges; expected 1 to {MAX_CHARGES}"),
            Self::Invalid(error) => fmt::Display::fmt(error, f),
            Self::Unavailable(why) => write!(f, "the engine is unavailable: {why}"),
        }
    }
}

impl core::error::Error for EngineError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::Invalid(error) => Some(error),
            _ => None,
        }
    }
}

impl From<RuleError> for EngineError {
    fn from(error: RuleError) -> Self {
        Self::Invalid(error)
    }
}

/// Checks a rule's name: `[a-z0-9][a-z0-9_-]{0,63}`.
///
/// # Errors
/// When it is another.
pub fn check_name(name: &str) -> Result<(), RuleError> {
    let starts = name.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit());
    let allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_' || b == b'-';
    if starts && name.len() <= 64 && name.bytes().all(allowed) {
        return Ok(());
    }
    let shown: String = name.chars().take(70).flat_map(char::escape_debug).collect();
    let problem = format!("`{shown}` is not 1 to 64 of a-z 0-9 _ -, a letter or digit first");
    Err(RuleError::of_kind(RuleErrorKind::Name, problem).of("name"))
}

/// Returns true if the request needs no merging: at most [`MAX_CHARGES`] charges, no two with the same rule and
/// key.
#[cfg(feature = "std")]
pub(crate) fn are_distinct(charges: &[Charge<'_>]) -> bool {
    let same = |a: &Charge<'_>, b: &Charge<'_>| a.rule == b.rule && a.key == b.key;
    let comes_again = |(nth, charge)| charges[..nth].iter().any(|before| same(before, charge));
    (1..=MAX_CHARGES).contains(&charges.len()) && !charges.iter().enumerate().any(comes_again)
}

/// Returns the charges with those of one rule and key added up, each with its place in `charges`, and every sum
/// checked against its rule's `max_cost`.
///
/// # Errors
/// A rule that is not known, and a sum above its rule's `max_cost`.
pub fn merge_charges<'a, 'r>(
    charges: &[Charge<'a>],
    rule: impl Fn(RuleId) -> Option<&'r Rule>,
) -> Result<Vec<(usize, Charge<'a>)>, EngineError> {
    if charges.is_empty() || charges.len() > MAX_CHARGES {
        return Err(EngineError::Charges(charges.len()));
    }
    let mut merged: Vec<(usize, Charge<'a>)> = Vec::with_capacity(charges.len());
    for (place, charge) in charges.iter().enumerate() {
        let known = rule(charge.rule).ok_or(EngineError::UnknownRule(charge.rule))?;
        let same = |(_, m): &(usize, Charge<'_>)| m.rule == charge.rule && m.key == charge.key;
        let before = merged.iter().position(same).unwrap_or(merged.len());
        let sum = merged.get(before).map_or(Cost::ZERO, |(_, m)| m.cost) + charge.cost;
        known.accept(sum)?;
        match merged.get_mut(before) {
            Some((_, m)) => m.cost = sum,
            None => merged.push((place, *charge)),
        }
    }
    Ok(merged)
}

/// Puts the places of merged charges back to those of the request.
pub fn restore_places(decision: &mut Decision, merged: &[(usize, Charge<'_>)]) {
    let place = |index: usize| merged.get(index).map_or(0, |(place, _)| *place);
    decision.over = decision.over.iter().map(place).collect();
    decision.rule = place(decision.rule);
}
