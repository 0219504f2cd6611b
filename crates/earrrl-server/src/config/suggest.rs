//! Errors about unknown fields: the field that was meant, and what replaces a field that was removed.

pub use earrrl::internal::nearest;

use super::table::shown;

/// The fields of earlier versions, and what to use instead of each.
const REMOVED: [(&str, &str); 4] = [
    (
        "estimate",
        "callers state the cost, such as max_tokens, see docs/llm.md",
    ),
    (
        "events_file",
        "curl writes /v1/events to a file, see docs/visibility.md",
    ),
    ("otlp", "a collector reads /metrics, see docs/visibility.md"),
    (
        "suggest",
        "`earrrl suggest LOG` proposes a limit, and a rule with action = \"observe\" tries it",
    ),
];

/// Returns the error about a field that a table does not have.
pub(super) fn unknown_field(name: &str, known: &[&str]) -> String {
    if let Some((_, instead)) = REMOVED.iter().find(|(removed, _)| *removed == name) {
        return format!("{name}: removed; {instead}");
    }
    let meant = nearest(name, known.iter().copied());
    let meant = meant.map(|meant| format!("; did you mean `{meant}`?"));
    let known = known.join("`, `");
    let meant = meant.unwrap_or_default();
    format!(
        "unknown field `{}`, expected one of `{known}`{meant}",
        shown(name)
    )
}

#[cfg(test)]
mod tests {
    use crate::config::Config;

    #[test]
    fn a_removed_field_names_its_successor() {
        let text = "[server]\nhttp = \"off\"\n[server.otlp]\nendpoint = \"localhost:1\"\n";
        let error = Config::parse(text, "limits.toml").unwrap_err().to_string();
        let right =
            "limits.toml:3:9: otlp: removed; a collector reads /metrics, see docs/visibility.md";
        assert_eq!(error, right);
    }
}
