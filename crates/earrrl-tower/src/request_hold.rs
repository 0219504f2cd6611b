//! Reservations of requests: the estimate is charged before the service is called, and corrected to
//! the actual cost when the response's body has ended.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};

use earrrl::internal::lock;
use earrrl::{Cost, Decision, EngineError, RuleId};

use crate::lasting::{Lasting, PendingCharge};

/// The reservation of a request under the rules that are
/// [`reserved`](crate::RequestRule::reserved). The layer adds it to the request's extensions. A
/// handler reports the actual cost by it, at any time before the response's body ends.
///
/// The layer commits the reservation once: when the response's body has ended or is dropped, or when
/// the client leaves before the response. A rule without a report keeps its estimate.
///
/// ```
/// use earrrl::{Cost, Rule};
/// use earrrl_tower::{RequestHold, RequestRule, key};
///
/// let tokens: Rule = "token-bucket 100000 refill=100000/1d".parse()?;
/// let rule = RequestRule::new("tokens", tokens, key::Everyone)
///     .cost_by(|request| Cost::from_units(4096))
///     .reserved();
///
/// async fn handler(request: http::Request<()>) {
///     if let Some(hold) = request.extensions().get::<RequestHold>() {
///         let tokens_used = 812;
///         hold.report(Cost::from_units(tokens_used));
///     }
/// }
/// # let _ = (handler, rule);
/// # Ok::<(), earrrl::RuleError>(())
/// ```
#[derive(Clone)]
pub struct RequestHold(Arc<Mutex<Vec<ReservedRule>>>);

/// The reservation under one rule.
pub(crate) struct ReservedRule {
    pub(crate) name: Arc<str>,
    pub(crate) id: RuleId,
    pub(crate) max_cost: Cost,
    pub(crate) granted: Cost,
    /// The actual cost: nothing before the service is called, then the one that was reported last.
    pub(crate) actual: Option<Cost>,
}

impl RequestHold {
    /// Returns the cost that was granted under the first reserved rule. It is the estimate, or less
    /// if the layer's [`hold_terms`](crate::Builder::hold_terms) permit that.
    pub fn granted(&self) -> Cost {
        self.rules().first().map_or(Cost::ZERO, |rule| rule.granted)
    }

    /// Returns the cost that was granted under the rule or plan with this name; `None` if it is not
    /// reserved for this request.
    pub fn granted_under(&self, name: &str) -> Option<Cost> {
        self.rules()
            .iter()
            .find(|rule| &*rule.name == name)
            .map(|rule| rule.granted)
    }

    /// Sets the actual cost under all reserved rules; at most each rule's `max_cost` is charged. A
    /// later report replaces an earlier one, so a stream can report its total again and again. A
    /// report after the commit has no effect.
    pub fn report(&self, cost: Cost) {
        self.rules()
            .iter_mut()
            .for_each(|rule| rule.actual = Some(cost));
    }

    /// Sets the actual cost under the rule or plan with this name. Returns false if it is not
    /// reserved for this request.
    pub fn report_under(&self, name: &str, cost: Cost) -> bool {
        let mut rules = self.rules();
        let rule = rules.iter_mut().find(|rule| &*rule.name == name);
        rule.map(|rule| rule.actual = Some(cost)).is_some()
    }

    fn rules(&self) -> MutexGuard<'_, Vec<ReservedRule>> {
        lock(&self.0)
    }

    /// Returns the actual costs: those that were reported, and otherwise the estimates.
    fn actual_costs(&self) -> Vec<(RuleId, Cost)> {
        let rules = self.rules();
        let cost = |rule: &ReservedRule| rule.actual.unwrap_or(rule.granted).min(rule.max_cost);
        rules.iter().map(|rule| (rule.id, cost(rule))).collect()
    }
}

impl fmt::Debug for RequestHold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RequestHold")
    }
}

/// The owner of a request's reservation. Dropping it commits the reservation; if the service was
/// never called, the reservation is released.
pub(crate) struct HoldGuard {
    hold: RequestHold,
    commit: Commit,
}

/// Starts the commit of a reservation with the actual cost under each reserved rule.
type Commit = Box<dyn Fn(&[(RuleId, Cost)]) -> PendingCharge + Send + Sync>;

/// A decision with its reservation, if it is allowed.
pub(crate) type Placed = (Decision, Option<HoldGuard>);

/// A reservation in flight. If it is dropped, the reservation is released when it arrives, since the
/// service is not called then.
pub(crate) type PlacingHold = Lasting<Result<Placed, EngineError>>;

impl HoldGuard {
    pub(crate) fn new(rules: Vec<ReservedRule>, commit: Commit) -> Self {
        Self {
            hold: RequestHold(Arc::new(Mutex::new(rules))),
            commit,
        }
    }

    /// Notes that the service is called. Returns the handle for the request's handler.
    pub(crate) fn enter(&mut self) -> RequestHold {
        for rule in self.hold.rules().iter_mut() {
            rule.actual = None;
        }
        self.hold.clone()
    }
}

impl Drop for HoldGuard {
    fn drop(&mut self) {
        // An engine in memory has committed when this value is dropped.
        drop((self.commit)(&self.hold.actual_costs()));
    }
}

impl fmt::Debug for HoldGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HoldGuard")
    }
}
