//! Suggests a limit for a log: measures every client's peak rate, finds those that stand out, and
//! counts the clients that a limit would affect.

mod agents;
mod callers;
mod candidates;
mod cohorts;
mod crowds;
mod group;
mod habits;
mod judge;
mod networks;
mod parts;
mod peaks;
mod profile;
mod report;
mod rows;
mod suspects;
mod terms;
mod toml;
mod toml_rule;

pub use candidates::{ClientShare, JudgedLimit, most_touched};
pub use group::{Group, Suspected};
pub use judge::{JudgedAdvice, SeenClient, judge};
pub(crate) use networks::network_of;
pub use parts::{FoundParts, PartRules, PathRule};
pub use peaks::Peaks;
pub use peaks::{Gap, HALF_LIVES, Sweep};
pub use profile::Profiles;
pub use report::{Advice, figure, write_json, write_table};
pub use rows::{Mark, Rows, profile_texts};
pub use terms::RuleTerms;
pub use toml::write_toml;
pub use toml_rule::{rule_toml, toml_text};
