//! Suggestions in errors about unknown fields: "did you mean …?"

pub use earrrl::internal::nearest;

/// Returns the known field whose name is nearest to an unknown one. Both come from serde's error,
/// which has the unknown name in back quotes first, and then each known name.
pub(super) fn did_you_mean(message: &str) -> Option<&str> {
    let named = message
        .strip_prefix("unknown field `")
        .or(message.strip_prefix("unknown variant `"))?;
    let mut quoted = named.split('`').step_by(2);
    let wrong = quoted.next()?;
    nearest(wrong, quoted.filter(|name| !name.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn serdes_words_are_understood() {
        use serde::de::{Error, value};
        let words = value::Error::unknown_field("limt", &["name", "limit"]).to_string();
        assert_eq!(did_you_mean(&words), Some("limit"));
        assert_eq!(did_you_mean("missing field `name`"), None);
    }
}
