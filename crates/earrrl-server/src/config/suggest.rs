//! "Did you mean …?"

/// The known name that is nearest to a misspelt one, if any is near.
pub fn nearest<'a>(wrong: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let distance = |name: &str| strsim::damerau_levenshtein(wrong, name);
    let (distance, name) = known.into_iter().map(|name| (distance(name), name)).min()?;
    (distance <= 1 + name.len() / 4).then_some(name)
}

/// The field that is nearest to the one in serde's words for an unknown field: the wrong name in
/// back quotes, then each known one in back quotes.
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
    fn only_near_names_are_suggested() {
        let known = ["limit", "name", "capacity"];
        assert_eq!(nearest("limitt", known), Some("limit"));
        assert_eq!(nearest("nmae", known), Some("name"));
        assert_eq!(nearest("frobnicate", known), None);
        assert_eq!(nearest("x", []), None);
    }

    #[test]
    fn serdes_words_are_understood() {
        use serde::de::{Error, value};
        let words = value::Error::unknown_field("limt", &["name", "limit"]).to_string();
        assert_eq!(did_you_mean(&words), Some("limit"));
        assert_eq!(did_you_mean("missing field `name`"), None);
    }
}
