//! EARRRL, the estimated average recent request rate limiter.
#![cfg_attr(not(feature = "std"), no_std)]

extern crate alloc;

pub mod algorithm;
mod arithmetic;
#[cfg(feature = "testing")]
pub mod conformance;
#[cfg(feature = "std")]
mod clock;
mod cost;
mod decimal;
mod decision;
mod duration;
mod engine;
mod error;
mod grammar;
mod parameter;
mod quota;
#[cfg(feature = "testing")]
pub mod random;
#[cfg(feature = "testing")]
mod reference;
mod rule;
pub mod rules;
#[cfg(feature = "std")]
pub mod table;
mod time;

pub use algorithm::{
    Algorithm, Exponential, FixedWindow, Limit, Moment, Policy, RecentAverage, SlidingCounter,
    SlidingLog, SlidingWindow, State, Store, TokenBucket,
};
pub use cost::Cost;
pub use decision::{Action, Decision, Outcome, Report, Wait};
pub use duration::parse_duration;
pub use engine::{
    Charge, Engine, EngineError, MAX_CHARGES, RuleId, check_name, merge_charges, restore_places,
};
pub use error::RuleError;
pub use parameter::Rate;
pub use quota::Quota;
#[cfg(feature = "testing")]
pub use reference::ReferenceEngine;
pub use rule::Rule;
#[cfg(feature = "std")]
pub use clock::{SystemClock, TickingClock};
pub use time::{Clock, ManualClock, Nanos};
