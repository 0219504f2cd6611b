//! One limit in force on descriptors.

use std::sync::Arc;

use earrrl::{Rule, RuleId};

use super::counts::DescriptorCounts;
use crate::config::envoy::unit::Unit;

/// One limit in force.
#[derive(Debug)]
pub struct DescriptorLimit {
    /// The way in which the limit is decided.
    pub kind: LimitKind,
    /// The limit as answers report it.
    pub current: Current,
    /// Counted, never enforced.
    pub shadow_mode: bool,
    /// Enforced only when all such limits of a request are over.
    pub quota_mode: bool,
    /// The counters of its results; `None` without metrics, or if values of requests name the counters.
    pub counts: Option<Arc<DescriptorCounts>>,
}

/// The way in which a limit is decided.
#[derive(Clone, Debug)]
pub enum LimitKind {
    /// Nothing is counted, everything is allowed.
    Unlimited,
    /// Nothing is allowed; the answer names the end of the window.
    Zero(Unit),
    /// The engine counts.
    Counted(RuleId, Arc<Rule>),
}

/// A limit as answers report it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Current {
    /// The limit's name.
    pub name: String,
    /// This many requests.
    pub requests: u32,
    /// In each of this unit, by its number.
    pub unit: i32,
}
