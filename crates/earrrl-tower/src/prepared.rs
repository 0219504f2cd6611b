//! The rules and plans of a layer as its engine has prepared them.

use std::sync::Arc;

use bytes::Bytes;
use earrrl::{Decision, Engine, EngineError, Quota, Rule, RuleId};
use http::{HeaderValue, StatusCode};

use crate::headers::{self, Available};
use crate::problem::{self, Kind};

/// A prepared rule, with the parts of its responses that are the same for every request.
#[derive(Clone, Debug)]
pub(crate) struct LayerRule {
    pub(crate) name: Arc<str>,
    pub(crate) id: RuleId,
    pub(crate) rule: Rule,
    pub(crate) quota: Quota,
    /// The rule's name as it begins an item of `RateLimit`.
    pub(crate) label: Box<[u8]>,
    /// The value of `RateLimit-Policy` for a request that is charged to this rule alone.
    pub(crate) policy: Option<HeaderValue>,
    /// The problem details of a request that this rule alone denied.
    pub(crate) problem: Bytes,
}

impl LayerRule {
    /// Prepares a rule in the engine. `status` is the status of denials.
    pub(crate) fn new(
        engine: &impl Engine,
        name: &str,
        rule: Rule,
        status: StatusCode,
    ) -> Result<Self, EngineError> {
        let id = engine.prepare(name, &rule)?;
        let quota = Quota::of(rule.limit());
        let policy = headers::current::policies([(name, quota)].into_iter());
        let label = headers::current::label(name);
        let problem = problem::body(Kind::of(rule.limit()), status, [name]);
        Ok(Self {
            name: name.into(),
            id,
            rule,
            quota,
            label,
            policy,
            problem,
        })
    }

    /// Returns the quota that is available after a decision under this rule alone.
    pub(crate) fn available(&self, decision: &Decision) -> Available {
        Available::of(&self.rule, self.quota, decision)
    }

    /// Returns true if headers report this rule.
    pub(crate) fn is_shown(&self) -> bool {
        headers::is_shown(self.rule.action())
    }
}
