//! The rules and plans of a layer as its engine knows them.

use std::sync::Arc;

use earrrl::{Engine, EngineError, Quota, Rule, RuleId};
use http::HeaderValue;

use crate::headers;

/// A rule that the engine has prepared.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    pub(crate) name: Arc<str>,
    pub(crate) id: RuleId,
    pub(crate) rule: Rule,
    pub(crate) quota: Quota,
    /// `RateLimit-Policy` where this rule alone is charged.
    pub(crate) policy: Option<HeaderValue>,
}

impl Known {
    pub(crate) fn new(engine: &impl Engine, name: &str, rule: Rule) -> Result<Self, EngineError> {
        let id = engine.prepare(name, &rule)?;
        let quota = Quota::of(rule.limit());
        let policy = headers::current::policies([(name, quota)].into_iter());
        Ok(Self { name: name.into(), id, rule, quota, policy })
    }

    /// Whether headers tell of it.
    pub(crate) fn is_shown(&self) -> bool {
        headers::is_shown(self.rule.action())
    }
}
