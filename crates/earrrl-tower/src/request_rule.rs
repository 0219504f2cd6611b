//! A rule, and what it reads from a request: whose it is, what it costs, whether it applies.

use earrrl::{Cost, Rule};
use http::StatusCode;
use http::request::Parts;
use http::response;

use crate::key::Key;

type OfRequest<T> = Box<dyn Fn(&Parts) -> T + Send + Sync>;
type OfResponse<T> = Box<dyn Fn(&response::Parts) -> T + Send + Sync>;

/// A rule that requests are charged to.
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
    pub(crate) missing: Missing,
    pub(crate) cost: RequestCost,
    pub(crate) cost_after: Option<OfResponse<Cost>>,
    pub(crate) settled: bool,
    pub(crate) exempt: Option<OfRequest<bool>>,
    pub(crate) plans: Vec<Plan>,
}

/// Another limit, for requests that a closure tells.
pub(crate) struct Plan {
    pub(crate) name: String,
    pub(crate) rule: Rule,
    pub(crate) applies: OfRequest<bool>,
}

pub(crate) enum RequestCost {
    Fixed(Cost),
    By(OfRequest<Cost>),
}

/// What becomes of a request that has no key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Missing {
    /// All of them are one client: leaving the key out is no way round the limit.
    #[default]
    Shared,
    /// The rule does not apply.
    Skip,
    /// It is refused with this status.
    Deny(StatusCode),
}

impl RequestRule {
    /// A rule under a name (`[a-z0-9][a-z0-9_-]{0,63}`), which the headers tell, and the key by which
    /// it tells clients apart. A request costs 1.
    pub fn new(name: impl Into<String>, rule: Rule, key: impl Key) -> Self {
        Self {
            name: name.into(),
            rule,
            key: Box::new(key),
            missing: Missing::default(),
            cost: RequestCost::Fixed(Cost::ONE),
            cost_after: None,
            settled: false,
            exempt: None,
            plans: Vec::new(),
        }
    }

    /// What becomes of a request that has no key.
    #[must_use]
    pub fn missing(self, missing: Missing) -> Self {
        Self { missing, ..self }
    }

    /// What every request costs. Zero is judged, and stores nothing: for costs that are known only
    /// afterwards.
    #[must_use]
    pub fn cost(self, cost: Cost) -> Self {
        Self { cost: RequestCost::Fixed(cost), ..self }
    }

    /// What a request costs; see [`crate::cost`]. Above the rule's `max_cost` it is denied.
    #[must_use]
    pub fn cost_by(self, cost: impl Fn(&Parts) -> Cost + Send + Sync + 'static) -> Self {
        Self { cost: RequestCost::By(Box::new(cost)), ..self }
    }

    /// What a request costs in addition once its response is there. That is charged even where it
    /// goes over the limit; the client's next request is judged with it.
    #[must_use]
    pub fn cost_after(
        self,
        cost: impl Fn(&response::Parts) -> Cost + Send + Sync + 'static,
    ) -> Self {
        Self { cost_after: Some(Box::new(cost)), ..self }
    }

    /// Puts a [`crate::Settlement`] into the request's extensions, by which a handler or a body
    /// charges what turns out only later.
    #[must_use]
    pub fn settled(self) -> Self {
        Self { settled: true, ..self }
    }

    /// Requests that the rule does not apply to. A later call replaces an earlier one.
    #[must_use]
    pub fn exempt(self, exempt: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Self {
        Self { exempt: Some(Box::new(exempt)), ..self }
    }

    /// Another rule for requests that `applies` tells: a customer's plan, say. The first plan that
    /// applies counts. Its name must be unlike all others of the layer; its clients are its own.
    #[must_use]
    pub fn plan(
        mut self,
        name: impl Into<String>,
        rule: Rule,
        applies: impl Fn(&Parts) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.plans.push(Plan { name: name.into(), rule, applies: Box::new(applies) });
        self
    }
}
