//! The parts that the Python and Node packages share: rules for requests whose keys, costs and conditions are functions of
//! another language, the judging of a request under them, and the settings of both.
//!
//! A middleware of a package works in this order:
//!
//! ```text
//! RequestRule  (settings of a rule, with a place for each function)
//!      │ RateLimits::new
//! RateLimits ── judge(RequestHead, with the Answers of all functions) ──► Judged
//!                                             refused: a response  │  passed: enter, the handler, leave(costs)
//! ```
//!
//! The functions are called before a request is judged, so that an exception in one of them charges nothing, and no
//! lock of the limiter is held while foreign code runs.

mod answers;
mod clock;
mod error;
mod figures;
mod key;
mod limits;
mod request_rule;
mod settings;

pub use answers::Answers;
pub use clock::{Clock, TestClock, Timed, check_clock, since_epoch, start_of_day};
pub use error::Error;
pub use figures::{limit_header, policy_header};
pub use key::{KeyPart, key_part};
pub use limits::{LimitsOptions, RateLimits, RequestHead, Target, Visit, enter, leave};
pub use request_rule::{Plan, RequestRule};
pub use settings::{Engine, RuleOptions, engine, missing, status};
