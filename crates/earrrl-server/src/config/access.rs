//! Tokens: the operations and rules that each permits, and the access of a client.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use earrrl::Mode;
use subtle::ConstantTimeEq as _;

use super::table::{Field, Secret, Table};

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
    /// Overrides that are set, read and removed at run time.
    Overrides,
    /// All operations.
    Admin,
}

impl Scope {
    const ALL: [Self; 8] = [
        Self::Check,
        Self::Peek,
        Self::Charge,
        Self::Refund,
        Self::Reset,
        Self::Top,
        Self::Overrides,
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
            Self::Overrides => "overrides",
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

impl Access {
    /// Returns the name of the client's token; `None` if it has none.
    pub fn name(&self) -> Option<&str> {
        match self {
            Self::Granted(grant) => Some(&grant.name),
            Self::Nothing | Self::Everything => None,
        }
    }

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
    secrets: Vec<Secret>,
    grant: Arc<Grant>,
}

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

    /// Reads the tokens of the `[server]` table; `rules` has the names of all rules.
    pub(super) fn read(server: &Table<'_>, rules: &BTreeSet<String>) -> Self {
        let mut tokens = Self::default();
        let alone = |name: &str, scopes: &[Scope]| Grant {
            name: name.to_owned(),
            scopes: scopes.iter().copied().collect(),
            rules: None,
        };
        let check = secrets(server, "check_token", "check_token_file");
        tokens.add(check, alone("check_token", &CHECKS));
        let admin = secrets(server, "admin_token", "admin_token_file");
        tokens.add(admin, alone("admin_token", &[Scope::Admin]));
        let tables = server.tables("token");
        if let Some(last) = tables.get(MAX_NAMED) {
            last.mistake(format!("token: more than {MAX_NAMED} tables"));
        }
        for table in tables.into_iter().take(MAX_NAMED) {
            let grant = tokens.named(&table, rules);
            let secrets = secrets(&table, "token", "token_file");
            if !table.has("token") && !table.has("token_file") {
                table.mistake("token: expected token or token_file");
            }
            tokens.add(secrets, grant);
        }
        tokens
    }

    /// Adds a token, unless it has no secret. Reports a secret that another token has.
    fn add(&mut self, found: Option<(Field<'_>, Vec<Secret>)>, grant: Grant) {
        let Some((field, secrets)) = found else {
            return;
        };
        let shares = |token: &&NamedToken| token.secrets.iter().any(|one| secrets.contains(one));
        if let Some(NamedToken { grant: other, .. }) = self.0.iter().find(shares) {
            let why = format!(
                "the secret of {:?} is that of {:?}, too",
                grant.name, other.name
            );
            field.mistake(why);
        }
        let grant = Arc::new(grant);
        self.0.push(NamedToken { secrets, grant });
    }

    /// Reads what the token of a `[[server.token]]` table permits.
    fn named(&self, table: &Table<'_>, rules: &BTreeSet<String>) -> Grant {
        let name = table.required("name").and_then(|field| {
            let want = format!("1 to {MAX_NAME_LEN} letters, digits, dots, hyphens or underscores");
            let name = field.parsed(want, |text| Some(text).filter(|text| is_name(text)))?;
            if self.grants().any(|grant| grant.name == name) {
                field.mistake(format!("another token is called {name:?}"));
            }
            Some(name)
        });
        let scopes = table.required("scopes").and_then(|field| {
            let known = Scope::ALL.map(|scope| (scope.name(), scope));
            let items = field.items()?;
            if items.is_empty() {
                let names = known.map(|(name, _)| name).join(", ");
                field.mistake(format!("expected at least one of {names}"));
            }
            Some(
                items
                    .into_iter()
                    .filter_map(|item| item.choice(&known))
                    .collect(),
            )
        });
        Grant {
            name: name.unwrap_or_default().to_owned(),
            scopes: scopes.unwrap_or_default(),
            rules: table
                .field("rules")
                .and_then(|field| permitted_rules(field, rules)),
        }
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
        // Every secret is compared, and in a time that does not depend on how many bytes are equal, so that the time
        // does not reveal which one matched.
        for token in &self.0 {
            for secret in &token.secrets {
                if secret.0.as_bytes().ct_eq(given).into() {
                    found = Some(&token.grant);
                }
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

/// Returns the names of the rules that a token permits, each of which must be that of a rule.
fn permitted_rules(field: Field<'_>, rules: &BTreeSet<String>) -> Option<BTreeSet<String>> {
    let items = field.items()?;
    if items.is_empty() {
        field.mistake("expected the names of rules; without it, all rules");
    }
    let known = |name: &str| {
        let rule = rules.get(name).cloned();
        rule.ok_or_else(|| format!("no rule is called {name:?}"))
    };
    let names = items.into_iter().filter_map(|item| item.checked(known));
    Some(names.collect())
}

/// Reads the secrets of one token and returns them with their place: one, or two on a line each while a new one
/// replaces an old one.
fn secrets<'t>(
    table: &Table<'t>,
    name: &'static str,
    name_of_file: &'static str,
) -> Option<(Field<'t>, Vec<Secret>)> {
    let (field, text) = table.secret(name, name_of_file)?;
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let count = lines.clone().count();
    if !(1..=MAX_SECRETS).contains(&count) {
        return field.refuse(format!(
            "{count} tokens; expected one, or two on a line each"
        ));
    }
    let tokens = lines.map(check_secret);
    let tokens = tokens.collect::<Result<Vec<_>, _>>();
    tokens.map_or_else(|why| field.refuse(why), |tokens| Some((field, tokens)))
}

/// Returns the secret of a token, a text of visible ASCII characters.
///
/// # Errors
/// Returns the reason if the text is too short, too long, or has other characters.
fn check_secret(text: &str) -> Result<Secret, String> {
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
    Ok(Secret(text.to_owned()))
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
            (
                "admin",
                "check peek charge refund reset top overrides admin",
                true,
            ),
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
