//! What an engine tells of itself, for `/readyz`, metrics and logs.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How decisions are made at present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EngineMode {
    /// Redis has not been reached yet.
    Connecting,
    /// Redis decides.
    Shared,
    /// Some shards of the Cluster are left alone.
    Partly,
    /// Redis is left alone: the policy for that decides.
    Alone,
}

impl EngineMode {
    /// Its name in `/readyz` and on metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Connecting => "connecting",
            Self::Shared => "shared",
            Self::Partly => "partly",
            Self::Alone => "alone",
        }
    }
}

/// A look at an engine. Counts are since it was made.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Status {
    /// How decisions are made at present.
    pub mode: EngineMode,
    /// The last failure, if there was one: for people.
    pub last_failure: Option<String>,
    /// Clients whose counts wait to be handed over.
    pub owed: usize,
    /// Calls without an answer, of which it is not known yet whether Redis has executed them.
    pub unsettled: usize,
    /// Clients of rules that are near of whom Redis lacks something.
    pub unsent: usize,
    /// How long ago all clients of rules that are near were last exchanged, if they ever were.
    pub base_age: Option<Duration>,
    /// How many nodes are alive, as far as is known.
    pub nodes: u32,
    /// The counts.
    pub counts: Counts,
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Counts of what an engine did.
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
            /// Names and values, for metrics.
            pub fn each(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name)),*].into_iter()
            }
        }
    };
}

counters! {
    /// Decisions for which Redis was asked.
    shared,
    /// Decisions made here without a trip, under rules that are near.
    near,
    /// Decisions made without it, by the policy for that.
    alone,
    /// Answers that came after the deadline, or not at all.
    late,
    /// Connections lost.
    lost,
    /// Refusals: out of memory, read-only, loading, a wrong password.
    refused,
    /// Records that could not be used.
    unusable,
    /// Times that Redis began to be left alone.
    opened,
    /// Times that it was let back in.
    closed,
    /// Connections made.
    connected,
    /// Records converted after a rule's parameters had changed.
    converted,
    /// Clients whose counts were handed over when Redis was back.
    handed_over,
    /// Clients of rules that are near exchanged in the background.
    exchanged,
    /// Clients of rules that are near that an exchange found over the limit.
    crossings,
    /// Clients whose counts could not be: too many, or of an algorithm that does not add.
    not_handed_over,
}

/// One more of a counter.
pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
