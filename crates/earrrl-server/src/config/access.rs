//! Tokens: the operations and rules that each permits, and the access of a client.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use earrrl::Mode;
use toml::Spanned;

use super::file;
use super::problem::Problems;
use super::value::secret;

/// An operation that a token may permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// Requests for verdicts, which charge what they allow; proxies need only this.
    Check,
    /// Requests that charge nothing: verdicts, a client's state, the list of rules.
    Peek,
    /// Charges whatever the verdict.
    Charge,
    /// Refunds of charges.
    Refund,
    /// Deletion of clients' state.
    Reset,
    /// Reports on the clients with the highest rates.
    Top,
    /// All operations.
    Admin,
}

impl Scope {
    const ALL: [Self; 7] = [
        Self::Check,
        Self::Peek,
        Self::Charge,
        Self::Refund,
        Self::Reset,
        Self::Top,
        Self::Admin,
    ];

    /// Returns the scope's name in the configuration and in errors.
    pub fn name(self) -> &'static str {
        match self {
            Self::Check => "check",
            Self::Peek => "peek",
            Self::Charge => "charge",
            Self::Refund => "refund",
            Self::Reset => "reset",
            Self::Top => "top",
            Self::Admin => "admin",
        }
    }
}

impl From<Mode> for Scope {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::Check => Self::Check,
            Mode::Peek => Self::Peek,
            Mode::Charge => Self::Charge,
        }
    }
}

/// The name of a token, and the operations and rules that it permits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The token's name, which errors and `earrrl config check` show.
    pub name: String,
    /// The permitted operations.
    pub scopes: BTreeSet<Scope>,
    /// The names of the permitted rules; `None` for all rules, and for requests that name none.
    pub rules: Option<BTreeSet<String>>,
}

impl fmt::Display for Grant {
    /// Writes a line such as `gateway: check, peek; rules login, api`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scopes: Vec<_> = self.scopes.iter().map(|scope| scope.name()).collect();
        write!(f, "{}: {}; ", self.name, scopes.join(", "))?;
        match &self.rules {
            None => f.write_str("all rules"),
            Some(rules) => {
                let rules: Vec<_> = rules.iter().map(String::as_str).collect();
                write!(f, "rules {}", rules.join(", "))
            }
        }
    }
}

/// The access of a client to the server's operations and rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    /// No access: the client has to send a token first.
    Nothing,
    /// Access to everything, since the server has no tokens.
    Everything,
    /// The access that the client's token grants.
    Granted(Arc<Grant>),
}

/// The reason why a client's token does not permit a request: the token's name, and what it lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forbidden(String);

impl fmt::Display for Forbidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Forbidden {}

impl Access {
    /// Checks that an operation is permitted.
    ///
    /// # Errors
    /// Returns an error that names the token and the missing scope.
    #[inline]
    pub fn permit(&self, scope: Scope) -> Result<(), Forbidden> {
        self.check(
            |grant| grant.scopes.contains(&scope) || grant.scopes.contains(&Scope::Admin),
            || format!("lacks the scope {:?}", scope.name()),
        )
    }

    /// Checks that requests may name this rule.
    ///
    /// # Errors
    /// Returns an error that names the token and the rule.
    #[inline]
    pub fn permit_rule(&self, rule: &str) -> Result<(), Forbidden> {
        self.check(
            |grant| {
                grant
                    .rules
                    .as_ref()
                    .is_none_or(|rules| rules.contains(rule))
            },
            || format!("has no access to the rule {rule:?}"),
        )
    }

    /// Checks that the request may be decided by any rule, or by limits that are no rules.
    ///
    /// # Errors
    /// Returns an error that names the token.
    #[inline]
    pub fn permit_all_rules(&self) -> Result<(), Forbidden> {
        let lacks = || "is limited to some rules, which this request does not name".to_owned();
        self.check(|grant| grant.rules.is_none(), lacks)
    }

    #[inline]
    fn check(
        &self,
        permits: impl FnOnce(&Grant) -> bool,
        lacks: impl FnOnce() -> String,
    ) -> Result<(), Forbidden> {
        match self {
            Self::Everything => Ok(()),
            Self::Granted(grant) if permits(grant) => Ok(()),
            Self::Granted(grant) => {
                Err(Forbidden(format!("the token {:?} {}", grant.name, lacks())))
            }
            Self::Nothing => Err(Forbidden("a token is needed".to_owned())),
        }
    }
}

/// The configured tokens. Once there is any, every request needs one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tokens(Vec<NamedToken>);

/// The secrets that grant an access: one, or two while a new one replaces an old one.
#[derive(Clone, Debug, PartialEq, Eq)]
struct NamedToken {
    secrets: Vec<Token>,
    grant: Arc<Grant>,
}

/// The secret text of a token, which is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

/// The largest number of secrets of one token.
const MAX_SECRETS: usize = 2;
/// The largest number of tokens with names.
const MAX_NAMED: usize = 64;
/// The length of the longest name of a token, in bytes.
const MAX_NAME_LEN: usize = 64;
/// The length of the shortest token, in bytes.
const MIN_TOKEN_LEN: usize = 16;
/// The length of the longest token, in bytes.
const MAX_TOKEN_LEN: usize = 4096;

/// The beginning of the token in the examples of the documentation, which everybody knows.
const EXAMPLE: &str = "replace-me";

/// The scopes of `check_token`.
const CHECKS: [Scope; 3] = [Scope::Check, Scope::Peek, Scope::Charge];

impl Tokens {
    /// Returns true if a token is configured.
    pub fn any(&self) -> bool {
        !self.0.is_empty()
    }

    /// Returns the name and the permissions of each token.
    pub fn grants(&self) -> impl Iterator<Item = &Grant> {
        self.0.iter().map(|token| &*token.grant)
    }

    pub(super) fn validate(file: &file::File, problems: &mut Problems) -> Self {
        let server = &file.server;
        let mut tokens = Self::default();
        let check = secrets(
            "check_token",
            &server.check_token,
            &server.check_token_file,
            problems,
        );
        let admin = secrets(
            "admin_token",
            &server.admin_token,
            &server.admin_token_file,
            problems,
        );
        tokens.add("check_token", check, CHECKS.into(), None, problems);
        tokens.add("admin_token", admin, [Scope::Admin].into(), None, problems);
        if let Some(last) = server.token.get(MAX_NAMED) {
            problems.add(last.span(), format!("token: more than {MAX_NAMED} tables"));
        }
        for table in server.token.iter().take(MAX_NAMED) {
            tokens.add_table(table, &file.rule, problems);
        }
        tokens
    }

    /// Adds a token, unless it has no secret. Reports a secret that another token has.
    fn add(
        &mut self,
        name: &str,
        (place, secrets): (Range<usize>, Vec<Token>),
        scopes: BTreeSet<Scope>,
        rules: Option<BTreeSet<String>>,
        problems: &mut Problems,
    ) {
        let shares = |token: &&NamedToken| token.secrets.iter().any(|one| secrets.contains(one));
        if let Some(other) = self.0.iter().find(shares) {
            let other = &other.grant.name;
            problems.add(
                place,
                format!("token: the secret of {name:?} is that of {other:?}, too"),
            );
        }
        if !secrets.is_empty() {
            let grant = Arc::new(Grant {
                name: name.to_owned(),
                scopes,
                rules,
            });
            self.0.push(NamedToken { secrets, grant });
        }
    }

    /// Validates a `[[server.token]]` table, and adds its token.
    fn add_table(
        &mut self,
        table: &Spanned<file::TokenTable>,
        rules: &[Spanned<file::RuleTable>],
        problems: &mut Problems,
    ) {
        let place = table.span();
        let table = table.get_ref();
        let name = table.name.get_ref();
        if !is_name(name) {
            problems.add(
                table.name.span(),
                format!(
                    "name: expected 1 to {MAX_NAME_LEN} letters, digits, dots, hyphens or underscores"
                ),
            );
        } else if self.grants().any(|grant| grant.name == *name) {
            problems.add(
                table.name.span(),
                format!("name: another token is called {name:?}"),
            );
        }
        if table.token.is_none() && table.token_file.is_none() {
            problems.add(place.clone(), "token: expected token or token_file");
        }
        let (_, secrets) = secrets("token", &table.token, &table.token_file, problems);
        let scopes = scopes(&table.scopes, problems);
        let rules = table
            .rules
            .as_ref()
            .map(|names| permitted_rules(names, rules, problems));
        self.add(name, (place, secrets), scopes, rules, problems);
    }

    /// Returns the access of a client that sends no token.
    pub fn without(&self) -> Access {
        if self.any() {
            Access::Nothing
        } else {
            Access::Everything
        }
    }

    /// Returns the access of a client that sends the token `given`.
    pub fn with(&self, given: &[u8]) -> Access {
        let mut found = None;
        // Every secret is compared, so that the time of the comparison does not reveal which one
        // matched.
        for token in &self.0 {
            if token
                .secrets
                .iter()
                .fold(false, |found, secret| found | secret.is(given))
            {
                found = Some(&token.grant);
            }
        }
        found.map_or_else(
            || self.without(),
            |grant| Access::Granted(Arc::clone(grant)),
        )
    }
}

fn is_name(text: &str) -> bool {
    let known = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
    (1..=MAX_NAME_LEN).contains(&text.len()) && text.bytes().all(known)
}

fn scopes(names: &Spanned<Vec<Spanned<String>>>, problems: &mut Problems) -> BTreeSet<Scope> {
    let known = Scope::ALL.map(Scope::name).join(", ");
    if names.get_ref().is_empty() {
        problems.add(
            names.span(),
            format!("scopes: expected at least one of {known}"),
        );
    }
    let mut scopes = BTreeSet::new();
    for name in names.get_ref() {
        match Scope::ALL
            .into_iter()
            .find(|scope| scope.name() == name.get_ref())
        {
            Some(scope) => drop(scopes.insert(scope)),
            None => problems.add(
                name.span(),
                format!("scopes: {:?} is none of {known}", name.get_ref()),
            ),
        }
    }
    scopes
}

/// Returns the names of the rules that a token permits, each of which must be that of a rule.
fn permitted_rules(
    names: &Spanned<Vec<Spanned<String>>>,
    rules: &[Spanned<file::RuleTable>],
    problems: &mut Problems,
) -> BTreeSet<String> {
    if names.get_ref().is_empty() {
        problems.add(
            names.span(),
            "rules: expected the names of rules; without it, all rules",
        );
    }
    let is_known = |name: &str| {
        rules
            .iter()
            .any(|rule| rule.get_ref().name.get_ref() == name)
    };
    for name in names
        .get_ref()
        .iter()
        .filter(|name| !is_known(name.get_ref()))
    {
        problems.add(
            name.span(),
            format!("rules: no rule is called {:?}", name.get_ref()),
        );
    }
    names
        .get_ref()
        .iter()
        .map(|name| name.get_ref().clone())
        .collect()
}

/// Reads the secrets of one token and returns them with their place: one, or two on a line each while a
/// new one replaces an old one.
fn secrets(
    name: &str,
    inline: &file::Placed<String>,
    from_file: &file::Placed<String>,
    problems: &mut Problems,
) -> (Range<usize>, Vec<Token>) {
    let Some((span, text)) = secret(name, inline.as_ref(), from_file.as_ref(), problems) else {
        return Default::default();
    };
    let lines: Vec<&str> = text
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect();
    if !(1..=MAX_SECRETS).contains(&lines.len()) {
        let count = lines.len();
        problems.add(
            span,
            format!("{name}: {count} tokens; expected one, or two on a line each"),
        );
        return Default::default();
    }
    let mut tokens = Vec::with_capacity(lines.len());
    for line in lines {
        match Token::new(line.to_owned()) {
            Ok(token) => tokens.push(token),
            Err(why) => problems.add(span.clone(), format!("{name}: {why}")),
        }
    }
    (span, tokens)
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
        if text.starts_with(EXAMPLE) {
            return Err(
                "that is the example; want a secret, as `openssl rand -hex 16` prints".to_owned(),
            );
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
    use crate::config::Config;

    const FILE: &str = r#"
        [server]
        check_token = "check-token-0123456789"
        admin_token = "admin-token-0123456789"
        [[server.token]]
        name = "billing"
        token = "billing-token-0123456789"
        scopes = ["refund", "charge"]
        rules = ["login"]
        [[rule]]
        name = "login"
        limit = "gcra 1/s burst=5"
        [[rule]]
        name = "api"
        limit = "gcra 1/s burst=5"
    "#;

    #[test]
    fn tokens_permit_what_they_are_for() {
        let tokens = Config::parse(FILE, "test").unwrap().server.tokens;
        let with = |name: &str| tokens.with(format!("{name}-token-0123456789").as_bytes());
        let permitted = |access: &Access| {
            let scopes = Scope::ALL
                .into_iter()
                .filter(|scope| access.permit(*scope).is_ok());
            scopes.map(Scope::name).collect::<Vec<_>>().join(" ")
        };
        for (name, scopes, all_rules) in [
            ("check", "check peek charge", true),
            ("admin", "check peek charge refund reset top admin", true),
            ("billing", "charge refund", false),
        ] {
            let access = with(name);
            assert_eq!(permitted(&access), scopes, "{name}");
            assert_eq!(access.permit_all_rules().is_ok(), all_rules, "{name}");
            assert_eq!(access.permit_rule("api").is_ok(), all_rules, "{name}");
            assert_eq!(access.permit_rule("login"), Ok(()), "{name}");
        }
        assert_eq!(
            (with("wrong"), tokens.without()),
            (Access::Nothing, Access::Nothing)
        );
        assert_eq!(Tokens::default().without(), Access::Everything);
        let lacks = with("billing")
            .permit(Scope::Check)
            .unwrap_err()
            .to_string();
        assert_eq!(lacks, "the token \"billing\" lacks the scope \"check\"");
        let rule = with("billing").permit_rule("api").unwrap_err().to_string();
        assert_eq!(
            rule,
            "the token \"billing\" has no access to the rule \"api\""
        );
        let shown: Vec<_> = tokens.grants().map(Grant::to_string).collect();
        assert_eq!(shown[2], "billing: charge, refund; rules login");
    }
}
