//! Values with `*` in them.

/// A text in which each `*` stands for zero or more characters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wildcard {
    text: Box<str>,
    pieces: Box<[Box<str>]>,
}

impl Wildcard {
    /// Returns the wildcard of a text, if there is a `*` in it.
    pub fn new(text: &str) -> Option<Self> {
        let pieces = text.contains('*').then(|| text.split('*').map(Into::into).collect())?;
        Some(Self { text: text.into(), pieces })
    }

    /// Returns the wildcard as it was written.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns true if `value` begins with the first piece, ends with the last, and contains the
    /// other pieces between them in order.
    pub fn matches(&self, value: &str) -> bool {
        let [first, middle @ .., last] = &*self.pieces else { return false };
        let rest = value.strip_prefix(&**first).and_then(|rest| rest.strip_suffix(&**last));
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
