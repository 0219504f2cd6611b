//! The rules and plans of a layer as its engine knows them.

use std::sync::Arc;

use bytes::Bytes;
use earrrl::{Decision, Engine, EngineError, Quota, Rule, RuleId};
use http::{HeaderValue, StatusCode};

use crate::headers::{self, Available};
use crate::problem::{self, Kind};

/// A rule that the engine has prepared.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    pub(crate) name: Arc<str>,
    pub(crate) id: RuleId,
    pub(crate) rule: Rule,
    pub(crate) quota: Quota,
    /// What an item of `RateLimit` begins with.
    pub(crate) label: Box<[u8]>,
    /// `RateLimit-Policy` where this rule alone is charged.
    pub(crate) policy: Option<HeaderValue>,
    /// The problem of a request that this rule alone denied.
    pub(crate) problem: Bytes,
}

impl Known {
    /// `status` is that of a denial.
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
        Ok(Self { name: name.into(), id, rule, quota, label, policy, problem })
    }

    /// What a decision under this rule alone tells.
    pub(crate) fn available(&self, decision: &Decision) -> Available {
        Available::of(&self.rule, self.quota, decision)
    }

    /// Whether headers tell of it.
    pub(crate) fn is_shown(&self) -> bool {
        headers::is_shown(self.rule.action())
    }
}
