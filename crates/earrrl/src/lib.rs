// The guide is left out without `std`: its examples, and most items that it links to, need `std`.
#![cfg_attr(feature = "std", doc = include_str!("guide.md"))]
#![cfg_attr(
    not(feature = "std"),
    doc = "EARRRL, the estimated average recent request rate limiter."
)]
#![cfg_attr(not(feature = "std"), no_std)]

extern crate alloc;

pub mod algorithm;
mod arithmetic;
mod clock;
mod cost;
mod decimal;
mod decision;
mod duration;
mod engine;
mod error;
mod grammar;
mod held;
mod hold;
mod hold_id;
#[cfg(feature = "std")]
mod holds;
#[cfg(feature = "std")]
mod limiter;
#[cfg(feature = "std")]
mod memory;
mod nearest;
mod parameter;
mod policy;
mod quota;
mod random;
mod rule;
mod rule_id;
mod rules;
#[cfg(feature = "std")]
mod store;
#[cfg(feature = "std")]
mod survey;

pub use algorithm::types::*;
pub use algorithm::{Algorithm, Limit, Mode, Moment, Policy, Replenishment, State};
#[cfg(feature = "std")]
pub use clock::{Anchor, SystemClock, TickingClock};
pub use clock::{Clock, ManualClock, Nanos};
pub use cost::Cost;
pub use decision::{Action, Brief, Decision, Figures, Outcome, Places, Wait};
pub use duration::parse_duration;
pub use engine::{Charge, Engine, EngineError, MAX_CHARGES, Reserving, RuleId, check_name};
pub use error::{RuleError, RuleErrorKind};
pub use held::{Held, OnExpiry};
pub use hold::{Actual, Committed, HoldTerms, Holding};
pub use hold_id::HoldId;
#[cfg(feature = "std")]
pub use holds::{DEFAULT_MAX_HOLDS, Reservations};
#[cfg(feature = "std")]
pub use limiter::{
    Builder, Denied, Hold, HoldError, Limiter, Patience, Queue, StableKey, Turn, TurnError, Verdict,
};
#[cfg(feature = "std")]
pub use memory::{MemoryEngine, Notice, Preparation};
pub use parameter::Rate;
pub use quota::Quota;
pub use rule::Rule;
#[cfg(all(feature = "std", target_os = "linux"))]
pub use store::StateSummary;
#[cfg(feature = "std")]
pub use store::{BuildError, StateDirectory, StateError, table};
#[cfg(feature = "std")]
pub use survey::{Above, Name, NameOptions, Names, RateBucket, Rates, Survey, TopClient};

/// Items for the other EARRRL crates only, which may change without notice.
#[doc(hidden)]
pub mod internal {
    pub use crate::algorithm::Tally;
    pub use crate::engine::{merge_charges, restore_places};
    pub use crate::grammar::{RuleWords, Word};
    pub use crate::nearest::nearest;
    pub use crate::random::Random;
    #[cfg(feature = "std")]
    pub use crate::rules::WordRequest;
    pub use crate::rules::{Judgement, Report, combine, decide_all, grant};
    #[cfg(feature = "std")]
    pub use crate::store::table::{available::total as memory_in_all, lines::room_for};
    #[cfg(feature = "std")]
    pub use crate::store::table_bytes;

    /// Returns the usual name of every algorithm.
    pub fn algorithms() -> impl Iterator<Item = &'static str> {
        crate::Limit::NAMES
            .iter()
            .filter_map(|names| names.first().copied())
    }

    /// Returns the example rules of every algorithm.
    pub fn examples() -> impl Iterator<Item = &'static str> {
        crate::Limit::EXAMPLES.iter().copied().flatten().copied()
    }
}

/// Runs the README's examples as doctests.
#[cfg(all(doctest, feature = "std"))]
#[doc = include_str!("../README.md")]
struct Readme;

/// Runs the formulas of the page "How it works" as doctests.
#[cfg(all(doctest, feature = "std"))]
#[doc = include_str!("../../../docs/how-it-works.md")]
struct HowItWorks;
