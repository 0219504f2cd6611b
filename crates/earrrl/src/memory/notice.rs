//! The consequences of preparing a rule that its users should know.

use core::fmt;
use std::string::String;
use std::vec::Vec;

/// A consequence of preparing a rule that its users should know.
///
/// ```
/// use earrrl::{Engine, MemoryEngine};
///
/// let engine = MemoryEngine::new(1000)?;
/// engine.prepare("login", &"recent-average 1/s half-life=10s".parse()?)?;
/// engine.prepare("login", &"recent-average 2/s half-life=10s".parse()?)?;
/// assert!(engine.notices().is_empty()); // another rate applies to the states
/// engine.prepare("login", &"recent-average 2/s half-life=1m".parse()?)?;
/// let notice = engine.notices()[0].to_string();
/// assert!(notice.starts_with("login: begins afresh, since `recent-average 2/s half-life=10s"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Notice {
    /// The clients of the rule begin afresh, since the limit gives states another meaning.
    Afresh {
        /// The rule's name.
        rule: String,
        /// The former limit.
        before: String,
    },
    /// The rule keeps its capacity. The wanted one takes effect at the next start, once no other process uses
    /// the rule's file.
    Capacity {
        /// The rule's name.
        rule: String,
        /// The capacity that stays.
        capacity: usize,
        /// The other processes that used the rule's file when it was opened, as `pid (command)`.
        holders: Vec<String>,
    },
}

impl Notice {
    /// Returns the rule's name.
    pub fn rule(&self) -> &str {
        match self {
            Self::Afresh { rule, .. } | Self::Capacity { rule, .. } => rule,
        }
    }
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Afresh { rule, before } => write!(
                f,
                "{rule}: begins afresh, since `{before}` had other states"
            ),
            Self::Capacity {
                rule,
                capacity,
                holders,
            } => {
                let when = "another capacity takes effect at the next start";
                write!(f, "{rule}: keeps its capacity of {capacity}: {when}")?;
                if !holders.is_empty() {
                    write!(f, " without other users; in use by {}", holders.join(", "))?;
                }
                Ok(())
            }
        }
    }
}
