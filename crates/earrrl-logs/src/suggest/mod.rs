//! Suggests a limit for a log: measures every client's peak rate, finds those that stand out, and
//! counts the clients that a limit would affect.

mod candidates;
mod judge;
mod parts;
mod peaks;
mod profile;
mod report;
mod terms;
mod toml;

pub use candidates::{ClientShare, JudgedLimit, most_touched};
pub use judge::{JudgedAdvice, SeenClient, judge};
pub use parts::{PartRules, PathRule};
pub use peaks::Peaks;
pub use peaks::{Gap, HALF_LIVES, Sweep};
pub use profile::{Profiles, SecondReading};
pub use report::{Advice, figure, write_json, write_table};
pub use terms::RuleTerms;
pub use toml::{toml_text, write_toml};
