//! The fields of a rule that select one of a few treatments: `action` with `max_delay`, `on_error`,
//! `on_expiry`, `missing` and `consistency`.

use earrrl::{Action, OnExpiry};
use earrrl_redis::Consistency;

use crate::config::problem::Problems;
use crate::config::suggest::nearest;
use crate::config::{file, value};

const ACTIONS: [&str; 5] = ["deny", "shadow-ban", "quarantine", "delay", "observe"];

/// The verdict of a rule when the engine fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnError {
    /// The rule does not deny the request, so the other rules decide.
    Allow,
    /// The rule denies the request.
    Deny,
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

pub(super) fn on_error(file: &file::RuleTable, problems: &mut Problems) -> Option<OnError> {
    let field = file.on_error.as_ref()?;
    match field.get_ref().as_str() {
        "allow" => Some(OnError::Allow),
        "deny" => Some(OnError::Deny),
        other => {
            let shown = other.escape_debug();
            problems.add(
                field.span(),
                format!("on_error: `{shown}` is none of allow, deny"),
            );
            None
        }
    }
}

pub(super) fn missing(file: &file::RuleTable, problems: &mut Problems) -> OnMissing {
    let Some(field) = &file.missing else {
        return OnMissing::default();
    };
    match field.get_ref().as_str() {
        "share" => OnMissing::Share,
        "skip" => OnMissing::Skip,
        "deny" => OnMissing::Deny,
        other => {
            let shown = other.escape_debug();
            problems.add(
                field.span(),
                format!("missing: `{shown}` is none of share, skip, deny"),
            );
            OnMissing::default()
        }
    }
}

/// Returns the share of the clients that a suggested limit may touch.
pub(super) fn suggest(file: &file::RuleTable, problems: &mut Problems) -> Option<f64> {
    const USUAL: f64 = 0.01;
    let field = file.suggest.as_ref()?;
    let share = match field.get_ref() {
        toml::Value::Boolean(suggests) => return suggests.then_some(USUAL),
        toml::Value::Float(share) => *share,
        toml::Value::Integer(share) => *share as f64,
        _ => f64::NAN,
    };
    if !(0.0..1.0).contains(&share) {
        let expected = "true, false or the share of the clients to touch, from 0 to below 1";
        problems.add(field.span(), format!("suggest: expected {expected}"));
        return None;
    }
    Some(share)
}

pub(super) fn on_expiry(file: &file::RuleTable, problems: &mut Problems) -> OnExpiry {
    let Some(field) = &file.on_expiry else {
        return OnExpiry::Keep;
    };
    match field.get_ref().as_str() {
        "keep" => OnExpiry::Keep,
        "release" => OnExpiry::Release,
        other => {
            let shown = other.escape_debug();
            problems.add(
                field.span(),
                format!("on_expiry: `{shown}` is none of keep, release"),
            );
            OnExpiry::Keep
        }
    }
}

pub(super) fn consistency(file: &file::RuleTable, problems: &mut Problems) -> Consistency {
    let Some(field) = &file.consistency else {
        return Consistency::Exact;
    };
    match field.get_ref().as_str() {
        "exact" => Consistency::Exact,
        "near" => Consistency::Near,
        other => {
            let suggestion = nearest(other, ["exact", "near"]);
            let suggestion = suggestion.map(|name| format!("; did you mean `{name}`?"));
            let shown = other.escape_debug();
            let suggestion = suggestion.unwrap_or_default();
            let problem = format!("consistency: `{shown}` is none of exact, near{suggestion}");
            problems.add(field.span(), problem);
            Consistency::Exact
        }
    }
}

pub(super) fn action(file: &file::RuleTable, problems: &mut Problems) -> Action {
    let name = file.action.as_ref().map_or("deny", |field| field.get_ref());
    if let (Some(max_delay), false) = (&file.max_delay, name == "delay") {
        problems.add(max_delay.span(), "max_delay: only for action = \"delay\"");
    }
    match name {
        "deny" => Action::Deny,
        "shadow-ban" => Action::ShadowBan,
        "quarantine" => Action::Quarantine,
        "observe" => Action::Observe,
        "delay" => {
            let max = file.max_delay.as_ref();
            let max = max.and_then(|field| value::duration("max_delay", field, problems));
            if let (None, Some(action)) = (&file.max_delay, &file.action) {
                problems.add(
                    action.span(),
                    "action: delay needs max_delay, the longest delay of a request",
                );
            }
            Action::Delay {
                max: max.unwrap_or_default(),
            }
        }
        _ => {
            if let Some(field) = &file.action {
                problems.add(field.span(), unknown_action(name));
            }
            Action::Deny
        }
    }
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

fn unknown_action(name: &str) -> String {
    let suggestion = nearest(name, ACTIONS).map(|name| format!("; did you mean `{name}`?"));
    format!(
        "action: `{}` is none of {}{}",
        name.escape_debug(),
        ACTIONS.join(", "),
        suggestion.unwrap_or_default()
    )
}
