//! A rule with its key, its costs and its exemptions.

use earrrl::{Cost, Rule};
use http::StatusCode;
use http::request::Parts;
use http::response;

use crate::hints::Hints;
use crate::key::{Key, TargetBelow, target};
use crate::path::PathPattern;

type OfRequest<T> = Box<dyn Fn(&Parts) -> T + Send + Sync>;
type OfResponse<T> = Box<dyn Fn(&response::Parts) -> T + Send + Sync>;

/// A rule for requests, with the key that distinguishes clients and the cost of a request.
///
/// ```
/// use earrrl::Rule;
/// use earrrl_tower::{ClientAddress, RequestRule};
/// let rule: Rule = "recent-average 5/s half-life=30s".parse()?;
/// let unlimited = RequestRule::new("per-address", rule, ClientAddress::default())
///     .exempt(|request| request.uri.path() == "/healthz")
///     .plan("partner", "gcra 100/s burst=500".parse()?, |request| {
///         request.headers.contains_key("x-partner")
///     });
/// # Ok::<(), earrrl::RuleError>(())
/// ```
pub struct RequestRule {
    pub(crate) name: String,
    pub(crate) rule: Rule,
    pub(crate) key: Box<dyn Key>,
    /// The paths to which the rule applies; all if there are none.
    pub(crate) paths: Vec<PathPattern>,
    pub(crate) missing: Missing,
    pub(crate) cost: RequestCost,
    pub(crate) cost_after: Option<OfResponse<Cost>>,
    pub(crate) settled: bool,
    pub(crate) reserved: bool,
    pub(crate) exempt: Option<OfRequest<bool>>,
    pub(crate) plans: Vec<Plan>,
    pub(crate) limit_by: Option<OfRequest<Option<Rule>>>,
    pub(crate) hints: Hints,
}

/// A rule that takes the place of another for the requests that match a condition.
pub(crate) struct Plan {
    pub(crate) name: String,
    pub(crate) rule: Rule,
    pub(crate) applies: OfRequest<bool>,
}

pub(crate) enum RequestCost {
    Fixed(Cost),
    By(OfRequest<Cost>),
}

/// The treatment of a request that has no key, such as one without the header that the key is read
/// from.
///
/// ```
/// use earrrl_tower::{Missing, RequestRule, key};
/// use http::{HeaderName, StatusCode};
/// let api_key = key::header(HeaderName::from_static("x-api-key"));
/// let rule = RequestRule::new("per-key", "gcra 10/s burst=50".parse()?, api_key)
///     .missing(Missing::Deny(StatusCode::UNAUTHORIZED));
/// # let _ = rule;
/// # Ok::<(), earrrl::RuleError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Missing {
    /// All such requests count as one client, so that no client evades the limit by leaving out the
    /// key.
    #[default]
    Shared,
    /// The rule does not apply to the request.
    Skip,
    /// The request is denied with this status. A gRPC call gets the code that gRPC maps to this
    /// status, such as UNAUTHENTICATED for 401.
    Deny(StatusCode),
}

impl RequestRule {
    /// Returns a rule with a name, which headers show, and the key that distinguishes its clients.
    /// By default a request costs 1.
    ///
    /// A name has 1 to 64 of the characters `a-z`, `0-9`, `_` and `-`, a letter or digit first.
    ///
    /// ```
    /// use earrrl_tower::{ClientAddress, RequestRule};
    /// let login = "gcra 1/m burst=5".parse()?;
    /// let rule = RequestRule::new("login", login, ClientAddress::default());
    /// # let _ = rule;
    /// # Ok::<(), earrrl::RuleError>(())
    /// ```
    pub fn new(name: impl Into<String>, rule: Rule, key: impl Key) -> Self {
        Self {
            name: name.into(),
            rule,
            key: Box::new(key),
            paths: Vec::new(),
            missing: Missing::default(),
            cost: RequestCost::Fixed(Cost::ONE),
            cost_after: None,
            settled: false,
            reserved: false,
            exempt: None,
            plans: Vec::new(),
            limit_by: None,
            hints: Hints::default(),
        }
    }

    /// Sets the paths to which the rule applies. A request counts if any interpretation of its path that some server
    /// has matches one of them, so that no spelling evades the rule.
    ///
    /// ```
    /// use earrrl_tower::{ClientAddress, RequestRule};
    /// let rule = RequestRule::new("login", "gcra 5/m burst=5".parse()?, ClientAddress::default())
    ///     .paths(["/login".parse()?, "/api/login/*".parse()?]);
    /// # let _ = rule;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn paths(mut self, paths: impl IntoIterator<Item = PathPattern>) -> Self {
        self.paths = paths.into_iter().collect();
        self.key.restrict(&self.paths);
        self
    }

    /// Returns true if the rule does not apply to a request, because of its path or an exemption.
    pub(crate) fn passes_over(&self, request: &Parts) -> bool {
        let is_there = |target: &[u8]| self.paths.iter().any(|path| path.matches(target));
        let is_elsewhere = || {
            let below = request.extensions.get::<TargetBelow>();
            !is_there(target(request)) && !below.is_some_and(|below| is_there(&below.0))
        };
        !self.paths.is_empty() && is_elsewhere()
            || self.exempt.as_ref().is_some_and(|exempt| exempt(request))
    }

    /// Sets the treatment of requests that have no key.
    #[must_use]
    pub fn missing(self, missing: Missing) -> Self {
        Self { missing, ..self }
    }

    /// Sets the cost of every request. A request of cost zero is judged but not stored, which suits
    /// costs that are known only later.
    ///
    /// ```
    /// use earrrl::Cost;
    /// use earrrl_tower::{RequestRule, key};
    /// let limit = "token-bucket 100 refill=1/s".parse()?;
    /// let exports = RequestRule::new("export", limit, key::Everyone).cost(Cost::from_units(20));
    /// # let _ = exports;
    /// # Ok::<(), earrrl::RuleError>(())
    /// ```
    #[must_use]
    pub fn cost(self, cost: Cost) -> Self {
        Self {
            cost: RequestCost::Fixed(cost),
            ..self
        }
    }

    /// Sets a closure that computes a request's cost; the module [`crate::cost`] has such closures.
    /// A request whose cost is above the rule's `max_cost` is denied.
    ///
    /// ```
    /// use earrrl::Cost;
    /// use earrrl_tower::{ClientAddress, RequestRule};
    /// let limit = "token-bucket 100 refill=10/s".parse()?;
    /// let rule = RequestRule::new("api", limit, ClientAddress::default())
    ///     .cost_by(|request| if request.uri.path() == "/search" { Cost::from_units(5) } else { Cost::ONE });
    /// # let _ = rule;
    /// # Ok::<(), earrrl::RuleError>(())
    /// ```
    #[must_use]
    pub fn cost_by(self, cost: impl Fn(&Parts) -> Cost + Send + Sync + 'static) -> Self {
        Self {
            cost: RequestCost::By(Box::new(cost)),
            ..self
        }
    }

    /// Sets a closure that computes a request's additional cost from the head of its response. The
    /// charge is stored even if it exceeds the limit, so it affects the client's next requests.
    ///
    /// If there is no response, because the client left or the service failed, the closure gets an
    /// empty response with status 499, and the charge is made when the request is dropped. If the
    /// engine is not in memory, this needs the feature `tokio` and a tokio runtime.
    ///
    /// ```
    /// use earrrl::Cost;
    /// use earrrl_tower::{ClientAddress, RequestRule};
    /// let limit = "token-bucket 1000 refill=10/s".parse()?;
    /// // Failed logins cost 100, and so do those that the client did not wait for.
    /// let rule = RequestRule::new("login", limit, ClientAddress::default())
    ///     .cost_after(|response| match response.status.as_u16() {
    ///         200..=299 => Cost::ZERO,
    ///         _ => Cost::from_units(100),
    ///     });
    /// # let _ = rule;
    /// # Ok::<(), earrrl::RuleError>(())
    /// ```
    #[must_use]
    pub fn cost_after(
        self,
        cost: impl Fn(&response::Parts) -> Cost + Send + Sync + 'static,
    ) -> Self {
        Self {
            cost_after: Some(Box::new(cost)),
            ..self
        }
    }

    /// Adds a [`Settlement`](crate::Settlement) to the request's extensions, by which a handler or
    /// a body charges costs that are known only later.
    #[must_use]
    pub fn settled(self) -> Self {
        Self {
            settled: true,
            ..self
        }
    }

    /// Makes the request's cost an estimate: it is reserved before the service is called, and
    /// corrected to the actual cost when the response's body has ended. A handler reports the actual
    /// cost by the [`RequestHold`](crate::RequestHold) in the request's extensions. All rules that
    /// apply to the request are charged or none, so concurrent requests never overshoot a limit by
    /// more than their costs are above their estimates.
    ///
    /// The engine must keep reservations, as a [`MemoryEngine`](earrrl::MemoryEngine) does. With
    /// another one, a request that is still waiting for the decision when its client leaves keeps
    /// its reservation until this expires.
    #[must_use]
    pub fn reserved(self) -> Self {
        Self {
            reserved: true,
            ..self
        }
    }

    /// Sets a condition for requests to which the rule does not apply. A later call replaces the
    /// condition of an earlier one.
    ///
    /// ```
    /// use earrrl_tower::{ClientAddress, RequestRule};
    /// let rule = RequestRule::new("api", "gcra 5/s burst=20".parse()?, ClientAddress::default())
    ///     .exempt(|request| request.uri.path() == "/healthz");
    /// # let _ = rule;
    /// # Ok::<(), earrrl::RuleError>(())
    /// ```
    #[must_use]
    pub fn exempt(self, exempt: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Self {
        Self {
            exempt: Some(Box::new(exempt)),
            ..self
        }
    }

    /// Adds another rule for requests that match a condition, such as those of paying customers.
    /// The first plan that matches is applied in place of the rule. A plan's name must differ from
    /// all other names of the layer, and its clients are counted separately from the rule's.
    #[must_use]
    pub fn plan(
        mut self,
        name: impl Into<String>,
        rule: Rule,
        applies: impl Fn(&Parts) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.plans.push(Plan {
            name: name.into(),
            rule,
            applies: Box::new(applies),
        });
        self
    }

    /// Sets a closure that returns the limit of a request's client, such as one that the application keeps with its
    /// users; `None` for the rule's own. Headers show it under the rule's name. A plan that applies comes before it.
    ///
    /// ```
    /// use std::collections::HashMap;
    /// use earrrl::Rule;
    /// use earrrl_tower::{RequestRule, key};
    /// use http::HeaderName;
    /// let limits = HashMap::from([("acme".to_owned(), "gcra 100/s burst=500".parse::<Rule>()?)]);
    /// let tenant = key::header(HeaderName::from_static("x-tenant"));
    /// let rule = RequestRule::new("api", "gcra 5/s burst=20".parse()?, tenant).limit_by(move |request| {
    ///     let tenant = request.headers.get("x-tenant")?.to_str().ok()?;
    ///     limits.get(tenant).cloned()
    /// });
    /// # let _ = rule;
    /// # Ok::<(), earrrl::RuleError>(())
    /// ```
    ///
    /// A client has one state under all limits of the rule: it keeps its state when it gets another limit with the
    /// same algorithm and the same half-life, period or window, and begins afresh otherwise; see
    /// [`Engine::prepare_in`](earrrl::Engine::prepare_in).
    ///
    /// A limit is prepared when the first request has it. The rule's own limit applies if the engine refuses one, if
    /// it is of concurrent and the rule is not [`reserved`](Self::reserved), and if the layer has had 1000 different
    /// limits before. A warning is logged then, once for each rule.
    #[must_use]
    pub fn limit_by(self, limit: impl Fn(&Parts) -> Option<Rule> + Send + Sync + 'static) -> Self {
        Self {
            limit_by: Some(Box::new(limit)),
            ..self
        }
    }

    /// Returns the names and rules of this rule and its plans.
    pub(crate) fn named_rules(&self) -> impl Iterator<Item = (&str, &Rule)> {
        let plans = self.plans.iter().map(|plan| (&*plan.name, &plan.rule));
        std::iter::once((&*self.name, &self.rule)).chain(plans)
    }
}
