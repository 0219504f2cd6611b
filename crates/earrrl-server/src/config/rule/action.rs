//! The fields of a rule that select one of a few treatments: `action` with `max_delay`, `on_error`,
//! `on_expiry`, `missing` and `consistency`.

use std::time::Duration;

use earrrl::{Action, OnExpiry};
use earrrl_redis::Consistency;

use crate::config::table::Table;

/// The treatments of a rule's reservations that expire.
pub(super) const ON_EXPIRY: [(&str, OnExpiry); 2] =
    [("keep", OnExpiry::Keep), ("release", OnExpiry::Release)];
/// The consistencies of a rule's decisions.
pub(super) const CONSISTENCY: [(&str, Consistency); 2] =
    [("exact", Consistency::Exact), ("near", Consistency::Near)];

/// The verdict of a rule when the engine fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnError {
    /// The rule does not deny the request, so the other rules decide.
    Allow,
    /// The rule denies the request.
    Deny,
}

impl OnError {
    /// The names of the verdicts.
    pub(super) const NAMED: [(&str, Self); 2] = [("allow", Self::Allow), ("deny", Self::Deny)];
}

/// The treatment of a request that lacks an attribute of a rule's key, or whose value of it is
/// empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnMissing {
    /// All such requests count as one client, so that no client evades the limit by leaving the
    /// attribute out.
    #[default]
    Share,
    /// The rule does not apply to such requests.
    Skip,
    /// Such requests are denied.
    Deny,
}

impl OnMissing {
    /// The names of the treatments.
    pub(super) const NAMED: [(&str, Self); 3] = [
        ("share", Self::Share),
        ("skip", Self::Skip),
        ("deny", Self::Deny),
    ];
}

/// Reads the fields `action` and `max_delay`.
pub(super) fn action(table: &Table<'_>) -> Action {
    let above_zero = |duration: &Duration| !duration.is_zero();
    let want = "a duration above 0, as \"250ms\" or \"2s\"";
    let max = table
        .duration("max_delay", want, above_zero)
        .unwrap_or_default();
    let actions = [
        Action::Deny,
        Action::ShadowBan,
        Action::Quarantine,
        Action::Delay { max },
        Action::Observe,
    ];
    let named = actions.map(|action| (action_name(action), action));
    let action = table.choice("action", &named).unwrap_or(Action::Deny);
    let delays = matches!(action, Action::Delay { .. });
    table.only_if(delays, "action = \"delay\"", &["max_delay"]);
    if let Some(field) = table.field("action")
        && delays
        && !table.has("max_delay")
    {
        field.mistake("delay needs max_delay, the longest delay of a request");
    }
    action
}

/// Returns the name of an action, as the rule grammar has it.
pub fn action_name(action: Action) -> &'static str {
    match action {
        Action::ShadowBan => "shadow-ban",
        Action::Quarantine => "quarantine",
        Action::Delay { .. } => "delay",
        Action::Observe => "observe",
        _ => "deny",
    }
}
