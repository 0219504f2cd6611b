//! Suggestions in errors about unknown fields: "did you mean …?", and what replaces a field that was removed.

pub use earrrl::internal::nearest;

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

/// Returns the error about a field that was removed, from serde's error about an unknown field.
pub(super) fn removed(message: &str) -> Option<String> {
    let field = unknown(message)?.split('`').next()?;
    let (_, instead) = REMOVED.iter().find(|(name, _)| *name == field)?;
    Some(format!("{field}: removed; {instead}"))
}

/// Returns serde's error about an unknown field from the field's name on.
fn unknown(message: &str) -> Option<&str> {
    message.strip_prefix("unknown field `")
}

/// Returns the known field whose name is nearest to an unknown one. Both come from serde's error,
/// which has the unknown name in back quotes first, and then each known name.
pub(super) fn did_you_mean(message: &str) -> Option<&str> {
    let named = unknown(message).or(message.strip_prefix("unknown variant `"))?;
    let mut quoted = named.split('`').step_by(2);
    let wrong = quoted.next()?;
    nearest(wrong, quoted.filter(|name| !name.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    #[test]
    fn serdes_words_are_understood() {
        use serde::de::{Error, value};
        let words = value::Error::unknown_field("limt", &["name", "limit"]).to_string();
        assert_eq!(did_you_mean(&words), Some("limit"));
        assert_eq!(did_you_mean("missing field `name`"), None);
        assert_eq!(removed(&words), None);
    }

    #[test]
    fn a_removed_field_names_its_successor() {
        let text = "[server]\nhttp = \"off\"\n[server.otlp]\nendpoint = \"localhost:1\"\n";
        let error = Config::parse(text, "limits.toml").unwrap_err().to_string();
        let right =
            "limits.toml:3:9: otlp: removed; a collector reads /metrics, see docs/visibility.md";
        assert_eq!(error, right);
    }
}
