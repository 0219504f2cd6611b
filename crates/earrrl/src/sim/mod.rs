//! A simulator: seeded clients send requests through the production code.
//!
//! A [`Client`] describes when requests are sent and what happens after a denial. [`run`] decides
//! the requests of several clients under one rule, in the order of their times. The same seed gives
//! the same requests on every machine. [`exact_rate`] is the rate that recent-average estimates,
//! computed from the whole history.
//!
//! ```
//! use earrrl::Rule;
//! use earrrl::sim::{Client, run};
//! use std::time::Duration;
//!
//! let rule: Rule = "fixed-window 60/1m".parse()?;
//! let greedy: Client = "greedy steady 2/s".parse()?;
//! let (mut asked, mut permitted) = (0, 0);
//! run(&rule, &[greedy], 1, Duration::from_secs(60), |attempt| {
//!     asked += 1;
//!     permitted += u32::from(attempt.decision.allowed);
//! })?;
//! assert_eq!((asked, permitted), (120, 60));
//! # Ok::<(), earrrl::RuleError>(())
//! ```

mod client;
mod oracle;
mod run;
mod schedule;

pub use client::{Client, Pattern, Reaction};
pub use oracle::exact_rate;
pub use run::{Attempt, MAX_ATTEMPTS, run};
