//! A rule for requests, whose functions belong to another language.

use earrrl::{Cost, Rule};
use earrrl_tower::path::PathPattern;
use earrrl_tower::{ClientAddress, Missing};
use http::response;

use crate::answers::{CostsAfter, Limits, answers};
use crate::error::Error;
use crate::key::{KeyPart, layer_key};

/// A rule for requests. Its functions are called by the package, and their results are the answers of the rule.
pub struct RequestRule {
    name: String,
    rule: Rule,
    /// The parts of the key; the address of the client unless others are set.
    pub key: Vec<KeyPart>,
    /// The paths to which the rule applies; all if there are none.
    pub paths: Vec<PathPattern>,
    /// The treatment of requests without a key.
    pub missing: Missing,
    /// The cost of a request, unless a function returns it.
    pub cost: Cost,
    /// True if a function returns the cost that a response adds.
    pub has_cost_after: bool,
    /// True if the handler gets a handle for later costs.
    pub is_settled: bool,
    /// The rules that take its place for some requests.
    pub plans: Vec<Plan>,
    /// True if a function returns the limit of a request.
    pub has_limit_by: bool,
}

/// A rule that takes the place of another for the requests for which a function returns true.
pub struct Plan {
    /// The plan's name.
    pub name: String,
    /// Its rule.
    pub rule: Rule,
}

impl RequestRule {
    /// Returns a rule by the client's address, under which a request costs 1.
    ///
    /// # Errors
    /// Returns an error for an invalid name.
    pub fn new(name: String, rule: Rule) -> Result<Self, Error> {
        earrrl::internal::check_name(&name)?;
        Ok(Self {
            name,
            rule,
            key: vec![KeyPart::client()],
            paths: Vec::new(),
            missing: Missing::Shared,
            cost: Cost::ONE,
            has_cost_after: false,
            is_settled: false,
            plans: Vec::new(),
            has_limit_by: false,
        })
    }

    /// Returns the rule's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the rule's limit.
    pub fn limit(&self) -> &Rule {
        &self.rule
    }

    /// Returns the rule as the layer takes it. `place` is its place among the rules of the layer.
    pub(crate) fn for_layer(
        &self,
        place: usize,
        address: &ClientAddress,
    ) -> earrrl_tower::RequestRule {
        let key = layer_key(&self.key, place, address);
        let fixed = self.cost;
        let mut rule = earrrl_tower::RequestRule::new(self.name.clone(), self.rule.clone(), key)
            .missing(self.missing)
            .paths(self.paths.clone())
            .exempt(move |request| answers(request, place).is_some_and(|own| own.is_exempt))
            .cost_by(move |request| {
                let cost = answers(request, place).and_then(|own| own.cost);
                cost.unwrap_or(fixed)
            });
        if self.has_cost_after {
            rule = rule.cost_after(move |response: &response::Parts| {
                let costs = response.extensions.get::<CostsAfter>();
                let cost = costs.and_then(|costs| costs.0.get(place).copied());
                cost.unwrap_or_default()
            });
        }
        for (nth, plan) in self.plans.iter().enumerate() {
            rule = rule.plan(plan.name.clone(), plan.rule.clone(), move |request| {
                answers(request, place).is_some_and(|own| own.plan == Some(nth))
            });
        }
        if self.has_limit_by {
            rule = rule.limit_by(move |request| {
                let limits = request.extensions.get::<Limits>();
                limits.and_then(|limits| limits.0.get(place)?.clone())
            });
        }
        if self.is_settled {
            rule.settled()
        } else {
            rule
        }
    }
}
