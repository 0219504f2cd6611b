//! Tokens, and the access that each kind of token gives to a client.

use std::fmt;

use super::file;
use super::problem::Problems;
use super::value::secret;

/// The access of a client to the server's operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Access {
    /// No access: the client has to send a token first.
    Nothing,
    /// Access to checks and peeks.
    Ask,
    /// Access to checks, peeks, refunds and resets.
    Change,
}

/// The configured tokens. Once any is set, checks need a token of either kind, and changes need an
/// admin token.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tokens {
    /// The tokens that give access to checks and peeks.
    pub check: Vec<Token>,
    /// The tokens that give access to all operations.
    pub admin: Vec<Token>,
}

/// The secret text of a token, which is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

/// The largest number of tokens of each kind.
const MAX_TOKENS: usize = 2;
/// The length of the shortest token, in bytes.
const MIN_TOKEN_LEN: usize = 16;
/// The length of the longest token, in bytes.
const MAX_TOKEN_LEN: usize = 4096;

impl Tokens {
    /// Returns true if a token of either kind is configured.
    pub fn any(&self) -> bool {
        !self.check.is_empty() || !self.admin.is_empty()
    }

    pub(super) fn validate(file: &file::ServerTable, problems: &mut Problems) -> Self {
        Self {
            check: token("check_token", &file.check_token, &file.check_token_file, problems),
            admin: token("admin_token", &file.admin_token, &file.admin_token_file, problems),
        }
    }

    /// Returns the access of a client that sends no token.
    pub fn without(&self) -> Access {
        if self.any() { Access::Nothing } else { Access::Change }
    }

    /// Returns the access of a client that sends the token `given`.
    pub fn with(&self, given: &[u8]) -> Access {
        // Every token is compared, so that the time of the comparison does not reveal which one
        // matched.
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

/// Reads the tokens of one kind: one token, or two on a line each while a new one replaces an old
/// one.
fn token(
    name: &str,
    inline: &file::Placed<String>,
    from_file: &file::Placed<String>,
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
    /// Creates a token from a text of visible ASCII characters.
    ///
    /// # Errors
    /// Returns the reason if the text is too short, too long, or has other characters.
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

    /// Returns true if `given` is equal to the token, in a time that does not depend on how many
    /// bytes are equal.
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
