//! The status of an engine, for `/readyz`, metrics and logs.

use std::sync::atomic::{AtomicU64, Ordering};

/// The place where decisions are made at present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EngineMode {
    /// Redis has not been reached yet, so the policy for outages decides.
    Connecting,
    /// Redis decides.
    Shared,
    /// Redis decides, but some shards of the Cluster cannot be reached: the policy for outages
    /// decides about their clients.
    Partly,
    /// Redis is not used, so the policy for outages decides.
    Alone,
}

impl EngineMode {
    /// Returns the mode's name in `/readyz` and metrics.
    ///
    /// ```
    /// assert_eq!(earrrl_redis::EngineMode::Alone.name(), "alone");
    /// ```
    pub const fn name(self) -> &'static str {
        match self {
            Self::Connecting => "connecting",
            Self::Shared => "shared",
            Self::Partly => "partly",
            Self::Alone => "alone",
        }
    }
}

/// The status of an engine, with counts since the engine was made.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Status {
    /// The place where decisions are made at present.
    pub mode: EngineMode,
    /// The last failure in words, if there was one.
    pub last_failure: Option<String>,
    /// The number of clients with pending changes for Redis.
    pub owed: usize,
    /// The number of calls without an answer that Redis may or may not have executed.
    pub unsettled: usize,
    /// The counts of events.
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
            ///
            /// ```
            /// let counts = earrrl_redis::Counts::default();
            /// assert!(counts.each().any(|count| count == ("late", 0)));
            /// ```
            pub fn each(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name)),*].into_iter()
            }
        }
    };
}

counters! {
    /// The decisions for which Redis was asked.
    shared,
    /// The decisions that this node made under near rules without a round trip.
    near,
    /// The decisions that the policy for outages made without Redis.
    alone,
    /// Requests that passed without Redis and without a count, by [`WhenGone::Allow`](crate::WhenGone::Allow) or the
    /// verdict of a rule.
    unjudged,
    /// The calls whose answers came after the deadline, or not at all.
    late,
    /// The connections that were lost.
    lost,
    /// The calls that Redis rejected, for example because it was out of memory, read-only or
    /// loading, or the password was wrong.
    refused,
    /// The records that could not be used.
    unusable,
    /// The times that a breaker was opened. Redis is not used while its breaker is open.
    opened,
    /// The times that a breaker was closed.
    closed,
    /// The connections that were established.
    connected,
    /// The clients whose pending changes were delivered after an outage.
    handed_over,
    /// The deliveries of take-backs that failed. They are repeated unless the client's record cannot
    /// be used.
    take_backs_failed,
    /// The calls without a receipt, since too many calls had one or their slot was moving. Such a
    /// call counts twice if it is executed and its answer is lost.
    without_receipt,
    /// The clients whose charges could not be delivered after an outage, since there were too many
    /// or the algorithm's counts cannot be added up.
    not_handed_over,
}

/// Adds one to a counter.
pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
