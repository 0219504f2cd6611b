//! Patterns for the values of descriptors, in which `*` stands for any text.

/// A pattern in which each `*` stands for zero or more characters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wildcard {
    text: Box<str>,
    pieces: Box<[Box<str>]>,
}

impl Wildcard {
    /// Creates the pattern of a text; `None` if the text contains no `*`.
    pub fn new(text: &str) -> Option<Self> {
        let pieces = text
            .contains('*')
            .then(|| text.split('*').map(Into::into).collect())?;
        Some(Self {
            text: text.into(),
            pieces,
        })
    }

    /// Returns the pattern as it was written.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns true if `value` matches: it begins with the text before the first `*`, ends with the
    /// text after the last one, and contains the texts between in order.
    pub fn matches(&self, value: &str) -> bool {
        let [first, middle @ .., last] = &*self.pieces else {
            return false;
        };
        let rest = value
            .strip_prefix(&**first)
            .and_then(|rest| rest.strip_suffix(&**last));
        let after =
            |rest: &'_ str, piece: &str| rest.find(piece).map(|at| rest.len() - at - piece.len());
        let Some(mut rest) = rest else { return false };
        for piece in middle {
            match after(rest, piece) {
                Some(left) => rest = &rest[rest.len() - left..],
                None => return false,
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_anchored_and_in_order() {
        for (pattern, value, expected) in [
            ("foo*", "foo", true),
            ("foo*", "foobar", true),
            ("foo*", "fo", false),
            ("*", "", true),
            ("*", "anything", true),
            ("*.com", "a.com", true),
            ("*.com", "a.com.org", false),
            ("a*b", "ab", true),
            ("a*a", "a", false),
            ("a*b*c", "a-b-c", true),
            ("a*b*c", "a-c-b", false),
            ("a*bc*c", "abc", false),
            ("/v*/u/*/x", "/v2/u/7/x", true),
            ("/v*/u/*/x", "/v2/u/x", false),
            ("**", "", true),
            ("é*", "éa", true),
        ] {
            let wildcard = Wildcard::new(pattern).unwrap();
            assert_eq!(wildcard.matches(value), expected, "{pattern} {value}");
        }
        assert_eq!(Wildcard::new("plain"), None);
    }
}
