//! A prepared rate limit that descriptors of Envoy's requests match.

use std::sync::Arc;

use earrrl::{Rule, RuleId};

use super::counts::DescriptorCounts;
use crate::config::envoy::unit::Unit;

/// The hash of a limit's path in the tree of descriptors.
pub type PathHash = [u8; 16];

/// A prepared rate limit that descriptors match.
#[derive(Debug)]
pub struct DescriptorLimit {
    /// The way in which requests are decided under the limit.
    pub kind: LimitKind,
    /// The number of remaining requests below which a client is named.
    pub named_below: u64,
    /// The start of the keys of the limit's clients, if the limit shares its store with others.
    pub path: Option<PathHash>,
    /// The limit in the form in which responses report it.
    pub current: Current,
    /// True if requests over the limit are counted but never denied.
    pub shadow_mode: bool,
    /// True if requests over the limit are denied only when every such limit that they match is
    /// exceeded.
    pub quota_mode: bool,
    /// The counters of the limit's results; `None` if metrics are off, or if the counters' names
    /// would contain values that requests choose.
    pub counts: Option<Arc<DescriptorCounts>>,
}

/// The way in which requests are decided under a limit.
#[derive(Clone, Debug)]
pub enum LimitKind {
    /// The limit allows every request, and nothing is counted.
    Unlimited,
    /// The limit allows no request. The response reports the end of the current window of this
    /// unit.
    Zero(Unit),
    /// The engine counts requests under this rule.
    Counted(RuleId, Arc<Rule>),
}

/// A limit in the form in which responses report it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Current {
    /// The name of the limit.
    pub name: String,
    /// The number of requests that the limit allows in each unit of time.
    pub requests: u32,
    /// The unit of time, by its number in Envoy's protocol.
    pub unit: i32,
}
