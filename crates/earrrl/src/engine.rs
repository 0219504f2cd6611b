//! The interface between callers and stores of clients' states.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::future::Future;
use core::pin::Pin;

use crate::algorithm::Mode;
use crate::clock::Nanos;
use crate::cost::Cost;
use crate::decision::Decision;
use crate::error::{RuleError, RuleErrorKind};
use crate::hold::{Actual, Committed, HoldTerms, Holding};
use crate::hold_id::HoldId;
use crate::rule::Rule;
pub use crate::rule_id::RuleId;

/// The greatest number of rules that one request can be charged to.
pub const MAX_CHARGES: usize = 64;

/// The charge of a request to one client under one rule.
///
/// ```
/// use earrrl::{Charge, Cost, Engine, MemoryEngine};
///
/// let engine = MemoryEngine::new(1000)?;
/// let rule = engine.prepare("tokens", &"gcra 100/s burst=1000".parse()?)?;
/// let charge = Charge { rule, key: b"alice", cost: Cost::from_units(731) };
/// # assert!(engine.admit_at_once(&charge) || charge.cost > Cost::ZERO);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charge<'a> {
    /// The rule's id.
    pub rule: RuleId,
    /// The client's key: any bytes.
    pub key: &'a [u8],
    /// The cost of the request.
    pub cost: Cost,
}

/// The future of a reservation or its commit, by any engine.
pub type Reserving<T> = Pin<Box<dyn Future<Output = Result<T, EngineError>> + Send>>;

/// A store of the clients of prepared rules, which decides requests.
///
/// `now: None` stands for the time of the engine's own clock. Time never goes back: if `now` is
/// earlier than the latest time that the engine used, the latest time is used instead.
///
/// ```
/// use earrrl::{Charge, Cost, Engine, EngineError, Mode, RuleId};
///
/// /// Works with every engine: in memory, on Redis, or your own.
/// async fn is_allowed(
///     engine: &impl Engine,
///     rule: RuleId,
///     key: &[u8],
/// ) -> Result<bool, EngineError> {
///     let charge = Charge { rule, key, cost: Cost::ONE };
///     Ok(engine.decide(&[charge], Mode::Check, None).await?.allowed)
/// }
/// # Ok::<(), EngineError>(())
/// ```
pub trait Engine {
    /// The future of a decision.
    type Decide: Future<Output = Result<Decision, EngineError>> + Send + 'static;
    /// The future of a change, such as a refund.
    type Done: Future<Output = Result<(), EngineError>> + Send + 'static;

    /// Prepares a rule under a name, once and not on every request. If the name is prepared
    /// already, it keeps its id and its clients' history, and the new rule replaces the old one.
    ///
    /// ```
    /// # use earrrl::{Engine, MemoryEngine};
    /// let engine = MemoryEngine::new(1000)?;
    /// let login = engine.prepare("login", &"gcra 1/m burst=5".parse()?)?;
    /// assert_eq!(engine.prepare("login", &"gcra 1/m burst=9".parse()?)?, login);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if the name is invalid, the engine cannot keep the rule, or there is too
    /// little memory for its clients.
    fn prepare(&self, name: &str, rule: &Rule) -> Result<RuleId, EngineError>;

    /// Prepares a rule as [`prepare`](Engine::prepare) does, in the store `store`, whose rules are limits for the same
    /// clients: the plans that a client can have, for example. A client has one state there. It keeps this state when
    /// its next request comes under another rule of the store, if states mean the same under both: the same algorithm
    /// with the same half-life, period or window. Otherwise it begins afresh.
    ///
    /// The first rule of a store is prepared under the store's own name. An engine whose rules cannot share clients
    /// ignores the store, as the default implementation does.
    ///
    /// ```
    /// # use earrrl::{Charge, Cost, Engine, MemoryEngine, Mode};
    /// let engine = MemoryEngine::new(1000)?;
    /// let free = engine.prepare_in("api", "api", &"fixed-window 2/1d".parse()?)?;
    /// let paid = engine.prepare_in("api", "api-paid", &"fixed-window 9/1d".parse()?)?;
    /// let ask = |rule| engine.decide(&[Charge { rule, key: b"alice", cost: Cost::ONE }], Mode::Check, None).into_inner();
    /// assert_eq!(ask(free)?.remaining, 1);
    /// assert_eq!(ask(paid)?.remaining, 7);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error as [`prepare`](Engine::prepare) does.
    fn prepare_in(&self, store: &str, name: &str, rule: &Rule) -> Result<RuleId, EngineError> {
        let _ = store;
        self.prepare(name, rule)
    }

    /// Returns the rule that is prepared under `name`, or `None`.
    ///
    /// ```
    /// # use earrrl::{Engine, MemoryEngine};
    /// let engine = MemoryEngine::new(1000)?;
    /// engine.prepare("login", &"gcra 1/m burst=5".parse()?)?;
    /// assert_eq!(engine.prepared("login"), Some("gcra 1/m burst=5".parse()?));
    /// assert_eq!(engine.prepared("logout"), None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    fn prepared(&self, name: &str) -> Option<Rule>;

    /// Decides a request under one or several rules. A [check](Mode::Check) is stored only if all
    /// rules let the request pass (strict rules always store it), a [charge](Mode::Charge) is
    /// stored under every rule, and a [peek](Mode::Peek) under none. All three return the same
    /// verdict.
    ///
    /// ```
    /// # use earrrl::{Charge, Cost, Engine, MemoryEngine, Mode};
    /// let engine = MemoryEngine::new(1000)?;
    /// let rule = engine.prepare("login", &"fixed-window 1/1d".parse()?)?;
    /// let charge = Charge { rule, key: b"alice", cost: Cost::ONE };
    /// assert!(engine.decide(&[charge], Mode::Check, None).into_inner()?.allowed);
    /// assert!(!engine.decide(&[charge], Mode::Check, None).into_inner()?.allowed);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    fn decide(&self, charges: &[Charge<'_>], mode: Mode, now: Option<Nanos>) -> Self::Decide;

    /// Checks one request synchronously, for callers that need no figures of an allowed request.
    /// Returns true if the request was allowed and charged. On `false`, nothing was stored and the
    /// request may still be allowed; the caller must call [`decide`](Engine::decide). An engine
    /// that cannot answer synchronously always returns `false`.
    ///
    /// ```
    /// # use earrrl::{Charge, Cost, Engine, MemoryEngine};
    /// let engine = MemoryEngine::new(1000)?;
    /// let rule = engine.prepare("login", &"fixed-window 1/1d".parse()?)?;
    /// let charge = Charge { rule, key: b"alice", cost: Cost::ONE };
    /// assert!(engine.admit_at_once(&charge) && !engine.admit_at_once(&charge));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    fn admit_at_once(&self, _charge: &Charge<'_>) -> bool {
        false
    }

    /// Takes back a charge that was stored at `charged_at`; `None` stands for the latest charge, at
    /// the present time.
    ///
    /// ```
    /// # use earrrl::{Charge, Cost, Engine, MemoryEngine};
    /// let engine = MemoryEngine::new(1000)?;
    /// let rule = engine.prepare("login", &"fixed-window 1/1d".parse()?)?;
    /// let charge = Charge { rule, key: b"alice", cost: Cost::ONE };
    /// assert!(engine.admit_at_once(&charge));
    /// engine.refund(&charge, None, None).into_inner()?;
    /// assert!(engine.admit_at_once(&charge));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    fn refund(
        &self,
        charge: &Charge<'_>,
        charged_at: Option<Nanos>,
        now: Option<Nanos>,
    ) -> Self::Done;

    /// Removes all state of a client.
    ///
    /// ```
    /// # use earrrl::{Charge, Cost, Engine, MemoryEngine};
    /// let engine = MemoryEngine::new(1000)?;
    /// let rule = engine.prepare("login", &"fixed-window 1/1d".parse()?)?;
    /// let charge = Charge { rule, key: b"alice", cost: Cost::ONE };
    /// assert!(engine.admit_at_once(&charge));
    /// engine.reset(rule, b"alice").into_inner()?;
    /// assert!(engine.admit_at_once(&charge));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    fn reset(&self, rule: RuleId, key: &[u8]) -> Self::Done;

    /// Decides a request whose cost is an estimate, and reserves the estimate if the request is
    /// allowed, as [`MemoryEngine::hold`](crate::MemoryEngine::hold) describes. An engine without
    /// reservations returns an error.
    fn place_hold(
        &self,
        _charges: &[Charge<'_>],
        _terms: HoldTerms,
        _now: Option<Nanos>,
    ) -> Reserving<Holding> {
        no_reservations()
    }

    /// Corrects a reservation to the actual cost, exactly once, as
    /// [`MemoryEngine::commit`](crate::MemoryEngine::commit) describes. An engine without
    /// reservations returns an error.
    fn commit_hold(
        &self,
        _id: HoldId,
        _actual: Actual<'_>,
        _now: Option<Nanos>,
    ) -> Reserving<Committed> {
        no_reservations()
    }
}

fn no_reservations<T: Send + 'static>() -> Reserving<T> {
    let error = RuleError::new("this engine keeps no reservations".into());
    Box::pin(core::future::ready(Err(error.into())))
}

impl<E: Engine + ?Sized> Engine for Arc<E> {
    type Decide = E::Decide;
    type Done = E::Done;

    fn prepare(&self, name: &str, rule: &Rule) -> Result<RuleId, EngineError> {
        (**self).prepare(name, rule)
    }

    fn prepare_in(&self, store: &str, name: &str, rule: &Rule) -> Result<RuleId, EngineError> {
        (**self).prepare_in(store, name, rule)
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

    fn place_hold(
        &self,
        charges: &[Charge<'_>],
        terms: HoldTerms,
        now: Option<Nanos>,
    ) -> Reserving<Holding> {
        (**self).place_hold(charges, terms, now)
    }

    fn commit_hold(
        &self,
        id: HoldId,
        actual: Actual<'_>,
        now: Option<Nanos>,
    ) -> Reserving<Committed> {
        (**self).commit_hold(id, actual, now)
    }
}

/// The reason why an engine could not answer.
///
/// ```
/// use earrrl::{Engine, EngineError, MemoryEngine, Mode};
///
/// let engine = MemoryEngine::new(1000)?;
/// let nothing = engine.decide(&[], Mode::Check, None).into_inner();
/// assert_eq!(nothing, Err(EngineError::Charges(0)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EngineError {
    /// The rule was not prepared by this engine.
    UnknownRule(RuleId),
    /// The number of charges of a request, which is 0 or above [`MAX_CHARGES`].
    Charges(usize),
    /// A rule, name or cost is invalid.
    Invalid(RuleError),
    /// All reservations that the engine keeps at a time are live; contains their number.
    Reservations {
        /// The bound, `max_reservations`.
        most: usize,
    },
    /// The reservation is unknown: it expired, or never existed.
    UnknownReservation(HoldId),
    /// Another request has a reservation of this id, which the caller chose.
    OtherReservation(HoldId),
    /// The store of the states is not reachable, or has no memory left.
    Unavailable(String),
}

impl fmt::Display for EngineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownRule(RuleId(id)) => write!(f, "rule {id} is not prepared"),
            Self::Charges(count) => write!(f, "{count} charges; expected 1 to {MAX_CHARGES}"),
            Self::Invalid(error) => fmt::Display::fmt(error, f),
            Self::Reservations { most } => write!(
                f,
                "{most} reservations are live, which is max_reservations; commit or release some"
            ),
            Self::UnknownReservation(id) => write!(f, "reservation {id} is unknown or expired"),
            Self::OtherReservation(id) => write!(
                f,
                "reservation {id} is of another request; choose an id for each request"
            ),
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

/// Checks that a rule's name matches `[a-z0-9][a-z0-9_-]{0,63}`.
///
/// ```
/// assert!(earrrl::internal::check_name("login-by_address").is_ok());
/// assert!(earrrl::internal::check_name("Login").is_err());
/// ```
///
/// # Errors
/// Returns a [`RuleErrorKind::Name`] error if it does not.
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
    if charges.is_sorted_by(|a, b| a.rule.0 < b.rule.0) {
        return (1..=MAX_CHARGES).contains(&charges.len());
    }
    let same = |a: &Charge<'_>, b: &Charge<'_>| a.rule == b.rule && a.key == b.key;
    let comes_again = |(nth, charge)| charges[..nth].iter().any(|before| same(before, charge));
    (1..=MAX_CHARGES).contains(&charges.len()) && !charges.iter().enumerate().any(comes_again)
}

/// Adds up the charges with the same rule and key. Returns each sum with the first such charge's
/// place in `charges`.
///
/// # Errors
/// Returns an error if a rule is not prepared, or a sum is above its rule's `max_cost`.
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

/// Converts the places in a decision on merged charges to places in the request's own list of
/// charges.
pub fn restore_places(decision: &mut Decision, merged: &[(usize, Charge<'_>)]) {
    let place = |index: usize| merged.get(index).map_or(0, |(place, _)| *place);
    decision.over = decision.over.iter().map(place).collect();
    decision.rule = place(decision.rule);
}
