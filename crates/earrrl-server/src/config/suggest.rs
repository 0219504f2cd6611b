//! Suggestions: "did you mean …?"

pub use earrrl::internal::nearest;

/// Returns the known field that is nearest to an unknown one, from serde's error: it has the unknown
/// name in back quotes, then each known one.
pub(super) fn did_you_mean(message: &str) -> Option<&str> {
    let named =
        message.strip_prefix("unknown field `").or(message.strip_prefix("unknown variant `"))?;
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
