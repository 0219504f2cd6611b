//! Who may ask and who may change.

use crate::config::server::Tokens;

/// What a client may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Access {
    /// Only show a token.
    Nothing,
    /// Check and peek.
    Ask,
    /// Refund and reset, too.
    Change,
}

impl Tokens {
    /// What a client may do that has shown no token.
    pub fn without(&self) -> Access {
        if self.any() { Access::Nothing } else { Access::Change }
    }

    /// What the bearer of a token may do.
    pub fn with(&self, given: &[u8]) -> Access {
        // Both are compared always, so that the time taken does not tell which one it was not.
        let admin = self.admin.as_ref().is_some_and(|token| token.is(given));
        let check = self.check.as_ref().is_some_and(|token| token.is(given));
        match (admin, check) {
            (true, _) => Access::Change,
            (false, true) => Access::Ask,
            (false, false) => self.without(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::server::Token;

    #[test]
    fn tokens_open_what_they_are_for() {
        let token = |text: &str| Some(Token::new(text.repeat(16)).unwrap());
        let both = Tokens { check: token("c"), admin: token("a") };
        assert_eq!(both.without(), Access::Nothing);
        assert_eq!(both.with(&[b'c'; 16]), Access::Ask);
        assert_eq!(both.with(&[b'a'; 16]), Access::Change);
        assert_eq!(both.with(&[b'c'; 15]), Access::Nothing);
        assert_eq!(Tokens::default().without(), Access::Change);
        let only_check = Tokens { check: token("c"), admin: None };
        assert_eq!(only_check.with(&[b'c'; 16]), Access::Ask);
    }
}
