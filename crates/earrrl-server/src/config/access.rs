//! Who may ask and who may change: tokens, and what they open.

use std::fmt;

use super::file;
use super::problem::Problems;
use super::value::secret;

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

/// The tokens. Once one is set, asking needs either and changing needs the admin token.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tokens {
    /// Let their bearers ask.
    pub check: Vec<Token>,
    /// Let their bearers ask and change.
    pub admin: Vec<Token>,
}

/// A secret. It is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

/// Most tokens of a kind.
const MAX_TOKENS: usize = 2;
/// Shortest token, in bytes.
const MIN_TOKEN_LEN: usize = 16;
/// Longest token, in bytes.
const MAX_TOKEN_LEN: usize = 4096;

impl Tokens {
    /// Whether one is set.
    pub fn any(&self) -> bool {
        !self.check.is_empty() || !self.admin.is_empty()
    }

    pub(super) fn validate(file: &file::ServerTable, problems: &mut Problems) -> Self {
        Self {
            check: token("check_token", &file.check_token, &file.check_token_file, problems),
            admin: token("admin_token", &file.admin_token, &file.admin_token_file, problems),
        }
    }

    /// What a client may do that has shown no token.
    pub fn without(&self) -> Access {
        if self.any() { Access::Nothing } else { Access::Change }
    }

    /// What the bearer of a token may do.
    pub fn with(&self, given: &[u8]) -> Access {
        // All are compared always, so that the time taken does not tell which one it was not.
        let among =
            |tokens: &[Token]| tokens.iter().fold(false, |found, token| found | token.is(given));
        let (admin, check) = (among(&self.admin), among(&self.check));
        match (admin, check) {
            (true, _) => Access::Change,
            (false, true) => Access::Ask,
            (false, false) => self.without(),
        }
    }
}

/// One token, or two while one takes the other's place: each on its line.
fn token(
    name: &str,
    inline: &file::Field<String>,
    from_file: &file::Field<String>,
    problems: &mut Problems,
) -> Vec<Token> {
    let Some((span, text)) = secret(name, inline.as_ref(), from_file.as_ref(), problems) else {
        return Vec::new();
    };
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    if !(1..=MAX_TOKENS).contains(&lines.len()) {
        let count = lines.len();
        problems.add(span, format!("{name}: {count} tokens; expected one, or two on a line each"));
        return Vec::new();
    }
    let mut tokens = Vec::with_capacity(lines.len());
    for line in lines {
        match Token::new(line.to_owned()) {
            Ok(token) => tokens.push(token),
            Err(why) => problems.add(span.clone(), format!("{name}: {why}")),
        }
    }
    tokens
}

impl Token {
    /// A token of visible ASCII characters.
    ///
    /// # Errors
    /// When it is too short, too long, or holds something else.
    pub fn new(text: String) -> Result<Self, String> {
        if !(MIN_TOKEN_LEN..=MAX_TOKEN_LEN).contains(&text.len()) {
            return Err(format!(
                "{} bytes; expected {MIN_TOKEN_LEN} to {MAX_TOKEN_LEN}",
                text.len()
            ));
        }
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err("expected visible ASCII characters, no spaces".to_owned());
        }
        Ok(Self(text))
    }

    /// Whether `given` is the token, in a time that does not tell how much of it is right.
    pub fn is(&self, given: &[u8]) -> bool {
        subtle::ConstantTimeEq::ct_eq(self.0.as_bytes(), given).into()
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_open_what_they_are_for() {
        let token = |text: &str| vec![Token::new(text.repeat(16)).unwrap()];
        let both = Tokens { check: token("c"), admin: token("a") };
        assert_eq!(both.without(), Access::Nothing);
        assert_eq!(both.with(&[b'c'; 16]), Access::Ask);
        assert_eq!(both.with(&[b'a'; 16]), Access::Change);
        assert_eq!(both.with(&[b'c'; 15]), Access::Nothing);
        assert_eq!(Tokens::default().without(), Access::Change);
        let only_check = Tokens { check: token("c"), admin: Vec::new() };
        assert_eq!(only_check.with(&[b'c'; 16]), Access::Ask);
    }
}
