//! The status of an engine, for `/readyz`, metrics and logs.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The place where decisions are made at present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EngineMode {
    /// Redis has not been reached yet.
    Connecting,
    /// Redis decides.
    Shared,
    /// Some shards of the Cluster are not used.
    Partly,
    /// Redis is not used: the policy for an outage decides.
    Alone,
}

impl EngineMode {
    /// Returns its name in `/readyz` and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Connecting => "connecting",
            Self::Shared => "shared",
            Self::Partly => "partly",
            Self::Alone => "alone",
        }
    }
}

/// The status of an engine. Counts are since it was made.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Status {
    /// The place where decisions are made at present.
    pub mode: EngineMode,
    /// The last failure, if there was one, for people to read.
    pub last_failure: Option<String>,
    /// The number of clients whose counts wait to be handed over.
    pub owed: usize,
    /// The number of calls without an answer of which it is not known yet whether Redis has executed them.
    pub unsettled: usize,
    /// The number of clients of near rules with charges that Redis lacks.
    pub unsent: usize,
    /// The time since all clients of near rules were last exchanged, if they ever were.
    pub base_age: Option<Duration>,
    /// The number of nodes that are alive, as far as is known.
    pub nodes: u32,
    /// The counts.
    pub counts: Counts,
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// The counts of an engine's events.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Counts {
            $($(#[$doc])* pub $name: u64,)*
        }

        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $(pub(crate) $name: AtomicU64,)*
        }

        impl Counters {
            pub(crate) fn read(&self) -> Counts {
                Counts { $($name: self.$name.load(Ordering::Relaxed),)* }
            }
        }

        impl Counts {
            /// Returns the names and values of the counts, for metrics.
            pub fn each(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name)),*].into_iter()
            }
        }
    };
}

counters! {
    /// Decisions for which Redis was asked.
    shared,
    /// Decisions made here without a round trip, under near rules.
    near,
    /// Decisions made without Redis, by the policy for that.
    alone,
    /// Requests that passed without Redis and without a count, by [`WhenGone::Allow`](crate::WhenGone::Allow) or the
    /// verdict of a rule.
    unjudged,
    /// Answers that came after the deadline, or not at all.
    late,
    /// Connections lost.
    lost,
    /// Refusals: out of memory, read-only, loading, a wrong password.
    refused,
    /// Records that could not be used.
    unusable,
    /// Breakers opened: Redis is not used until they close.
    opened,
    /// Breakers closed.
    closed,
    /// Connections made.
    connected,
    /// Records converted after a rule's parameters had changed.
    converted,
    /// Clients whose counts were handed over when Redis was back.
    handed_over,
    /// Clients of near rules exchanged in the background.
    exchanged,
    /// Clients of near rules that an exchange found over the limit.
    crossings,
    /// Clients whose counts could not be handed over: too many, or of an algorithm that does not add.
    not_handed_over,
}

/// Adds one to a counter.
pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
