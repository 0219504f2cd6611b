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
mod lock;
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
#[cfg(feature = "serde")]
mod serial;
#[cfg(feature = "std")]
mod store;
#[cfg(feature = "std")]
mod survey;

pub use algorithm::{Limit, Mode, Policy};
pub use clock::{Clock, ManualClock, Nanos};
pub use cost::Cost;
pub use decision::{Action, Decision, Outcome, Wait};
pub use engine::{Charge, Engine, EngineError, MAX_CHARGES, RuleId};
pub use error::{RuleError, RuleErrorKind};
pub use held::OnExpiry;
pub use hold::{Actual, Committed, HoldTerms, Holding};
pub use hold_id::HoldId;
pub use parameter::Rate;
pub use quota::Quota;
pub use rule::Rule;
#[cfg(feature = "std")]
pub use {
    clock::SystemClock,
    limiter::{
        Builder, Denied, Hold, HoldError, Limiter, Patience, Queue, Turn, TurnError, Verdict,
    },
    memory::MemoryEngine,
    store::{BuildError, StateError},
};

/// Items for the other EARRRL crates only, which may change without notice.
#[doc(hidden)]
pub mod internal {
    pub use crate::algorithm::Tally;
    pub use crate::decision::{Brief, Figures, Places};
    pub use crate::duration::parse_duration;
    pub use crate::engine::{Reserving, check_name, merge_charges, restore_places};
    pub use crate::grammar::{RuleWords, Word};
    pub use crate::held::Held;
    pub use crate::nearest::nearest;
    pub use crate::random::Random;
    pub use crate::rules::{Judgement, Report, combine, grant};
    #[cfg(all(feature = "std", target_os = "linux"))]
    pub use crate::store::StateSummary;
    #[cfg(feature = "std")]
    pub use crate::{
        clock::{Anchor, Sealed},
        holds::{DEFAULT_MAX_HOLDS, Reservations, share_of_client},
        limiter::StableKey,
        lock::lock,
        memory::{Notice, Preparation},
        rules::reserve::crowded,
        store::table::available::total as memory_in_all,
        store::{StateDirectory, table, table_bytes},
        survey::{Above, Name, NameOptions, Names, RateBucket, Rates, Survey, TopClient},
    };

    /// Returns the usual name of every algorithm.
    pub fn algorithms() -> impl Iterator<Item = &'static str> {
        crate::Limit::NAMES
            .iter()
            .filter_map(|names| names.first().copied())
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
