//! What can be chosen when an engine is made.

use std::time::Duration;

use earrrl::{Rule, RuleError};
use redis::IntoConnectionInfo;

use crate::algorithm;
use crate::key::ClientKeys;

/// Longest prefix of keys, in bytes.
const MAX_PREFIX_LEN: usize = 64;
/// Longest time that a decision may wait.
const MAX_DEADLINE: Duration = Duration::from_secs(60);

/// What is decided when Redis does not answer in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum WhenGone {
    /// By this node's own table; what it counted is handed over when Redis is back, for the
    /// algorithms whose states add.
    #[default]
    Local,
    /// Every request is allowed.
    Allow,
    /// Every request is denied.
    Deny,
}

impl WhenGone {
    /// Its name in `/readyz`, on metrics and in logs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Allow => "allow",
            Self::Deny => "deny",
        }
    }
}

/// Who decides under a rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Consistency {
    /// Redis, in one round trip a decision.
    #[default]
    Exact,
    /// This node, by what it knows of the client, as long as that will do; what it has counted is sent in the
    /// background. Not for exponential, nor for the action delay: see [`check_near`](crate::check_near).
    Near,
}

/// Certificates for TLS, in PEM.
#[cfg(feature = "tls")]
#[derive(Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Certificates {
    /// The authority that signed Redis's certificate; the platform's authorities where it is `None`.
    pub authority: Option<Vec<u8>>,
    /// This client's own certificate and key, where Redis asks for them.
    pub client: Option<(Vec<u8>, Vec<u8>)>,
}

#[cfg(feature = "tls")]
impl Certificates {
    /// Trust in one authority, and no certificate of this client's own.
    pub fn trusting(authority: Vec<u8>) -> Self {
        Self { authority: Some(authority), client: None }
    }

    pub(crate) fn to_redis(&self) -> redis::TlsCertificates {
        let client = self.client.clone();
        redis::TlsCertificates {
            client_tls: client.map(|(client_cert, client_key)| redis::ClientTlsConfig {
                client_cert,
                client_key,
            }),
            root_cert: self.authority.clone(),
        }
    }
}

#[cfg(feature = "tls")]
impl std::fmt::Debug for Certificates {
    /// Without the key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Certificates(…)")
    }
}

/// Where Redis is, and how it is used.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Options {
    /// Addresses: one, or several nodes of a Cluster to begin with. `redis://[user:password@]host:port/db`,
    /// `rediss://…` for TLS, `redis+unix:///path?db=…&user=…&pass=…` for a socket.
    pub urls: Vec<String>,
    /// Whether the addresses are of a Cluster.
    pub cluster: bool,
    /// The name of a master that Sentinels look after: the addresses are theirs, and are asked for it
    /// whenever a connection is made. User, password and database are the master's; Sentinels are
    /// asked without.
    pub sentinel: Option<String>,
    /// Certificates for `rediss://`, where the platform's are not the ones to trust.
    #[cfg(feature = "tls")]
    pub certificates: Option<Certificates>,
    /// What every key starts with; without braces. The version of the records follows it.
    pub prefix: String,
    /// How clients are written in keys.
    pub clients: ClientKeys,
    /// How long a decision waits for Redis.
    pub deadline: Duration,
    /// What is decided when it does not answer in that time.
    pub when_gone: WhenGone,
    /// How long a record is kept after nothing that could change a decision is left in it.
    pub linger: Duration,
    /// Clients that this node's own table keeps of each rule, and that it hands over in all, at most.
    pub local_capacity: usize,
    /// Decisions in a row that must fail before Redis is left alone for a while.
    pub failures: u32,
    /// The longest time between attempts to reach it again.
    pub longest_backoff: Duration,
    /// How often the clients of rules that are near are exchanged.
    pub sync: Duration,
    /// How many nodes there are; by their heartbeats where it is `None`.
    pub nodes: Option<u32>,
}

impl Options {
    /// Redis, or Valkey, at one address, or nodes of a Cluster at several with commas between them, and
    /// everything else as is usual.
    pub fn new(url: &str) -> Self {
        let urls: Vec<String> = url.split(',').map(|url| url.trim().to_owned()).collect();
        Self {
            cluster: urls.len() > 1,
            urls,
            sentinel: None,
            #[cfg(feature = "tls")]
            certificates: None,
            prefix: "earrrl".to_owned(),
            clients: ClientKeys::Escaped,
            deadline: Duration::from_millis(5),
            when_gone: WhenGone::Local,
            linger: Duration::from_secs(1),
            local_capacity: 100_000,
            failures: 3,
            longest_backoff: Duration::from_secs(1),
            sync: Duration::from_millis(100),
            nodes: None,
        }
    }

    /// A Cluster, from some of its nodes.
    pub fn cluster<'a>(urls: impl IntoIterator<Item = &'a str>) -> Self {
        let urls = urls.into_iter().map(str::to_owned).collect();
        Self { urls, cluster: true, ..Self::new("") }
    }

    /// A master, from some of the Sentinels that look after it under this name.
    pub fn sentinel<'a>(name: &str, urls: impl IntoIterator<Item = &'a str>) -> Self {
        let urls = urls.into_iter().map(str::to_owned).collect();
        Self { urls, cluster: false, sentinel: Some(name.to_owned()), ..Self::new("") }
    }

    /// Checks what can be checked without a connection.
    ///
    /// # Errors
    /// The first invalid option.
    pub fn check(&self) -> Result<(), RuleError> {
        let wrong = |field: &str, problem: String| Err(RuleError::new(problem).of(field));
        if self.urls.is_empty() {
            return wrong("urls", "none is given; expected redis://host:port".to_owned());
        }
        self.urls.iter().try_for_each(|url| check_url(url))?;
        if self.cluster && self.sentinel.is_some() {
            return wrong("sentinel", "a Cluster has none; expected one or the other".to_owned());
        }
        check_prefix(&self.prefix)?;
        if self.deadline.is_zero() || self.deadline > MAX_DEADLINE {
            return wrong(
                "deadline",
                format!("{:?} is not above 0 and at most 60s", self.deadline),
            );
        }
        if self.linger > Duration::from_secs(5 * 86_400) {
            return wrong("linger", format!("{:?} is not at most five days", self.linger));
        }
        if self.longest_backoff.is_zero() {
            return wrong("longest_backoff", "0s is not above 0".to_owned());
        }
        check_sync(self.sync)?;
        if self.nodes == Some(0) {
            return wrong("nodes", "0 is not above 0".to_owned());
        }
        if self.local_capacity == 0 {
            return wrong("local_capacity", "0 is not above 0".to_owned());
        }
        Ok(())
    }
}

impl std::fmt::Debug for Options {
    /// Without passwords.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options")
            .field(
                "urls",
                &self.urls.iter().map(|url| without_credentials(url)).collect::<Vec<_>>(),
            )
            .field("cluster", &self.cluster)
            .field("sentinel", &self.sentinel)
            .field("prefix", &self.prefix)
            .field("clients", &self.clients)
            .field("deadline", &self.deadline)
            .field("when_gone", &self.when_gone)
            .finish_non_exhaustive()
    }
}

/// An address without its user and password, fit to be shown.
pub fn without_credentials(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return "…".to_owned() };
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let rest = rest.rsplit_once('@').map_or(rest, |(_, rest)| rest);
    let secret = |pair: &&str| pair.starts_with("user=") || pair.starts_with("pass=");
    let kept: Vec<&str> =
        query.split('&').filter(|pair| !secret(pair) && !pair.is_empty()).collect();
    let mark = if kept.is_empty() { "" } else { "?" };
    format!("{scheme}://{rest}{mark}{}", kept.join("&"))
}

/// Checks an address.
///
/// # Errors
/// When it is invalid. The address is not repeated, since it may hold a password.
pub fn check_url(url: &str) -> Result<(), RuleError> {
    url.into_connection_info().map(drop).map_err(|error| {
        let want = "expected redis://[user:password@]host:port/db, rediss://… for TLS, or redis+unix:///path";
        RuleError::new(format!("{want} ({error})"))
    })
}

/// Checks how often clients are exchanged: 1 ms to 1 h.
///
/// # Errors
/// When it is something else.
pub fn check_sync(sync: Duration) -> Result<(), RuleError> {
    if (Duration::from_millis(1)..=Duration::from_secs(3600)).contains(&sync) {
        return Ok(());
    }
    Err(RuleError::new(format!("{sync:?} is not 1ms to 1h")).of("sync"))
}

/// Checks a prefix of keys.
///
/// # Errors
/// When it is too long, or holds something that would be misread in a key.
pub fn check_prefix(prefix: &str) -> Result<(), RuleError> {
    let plain = |b: u8| b.is_ascii_graphic() && b != b'{' && b != b'}';
    if prefix.len() <= MAX_PREFIX_LEN && prefix.bytes().all(plain) {
        return Ok(());
    }
    let shown: String = prefix.chars().take(70).flat_map(char::escape_debug).collect();
    let problem =
        format!("`{shown}` is not at most {MAX_PREFIX_LEN} printing characters without braces");
    Err(RuleError::new(problem).of("prefix"))
}

/// Checks that a rule's clients can be kept exactly on Redis.
///
/// # Errors
/// When a window, or a part of it, is not whole microseconds.
pub fn check_rule(rule: &Rule) -> Result<(), RuleError> {
    algorithm::of(rule.limit()).check()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_not_shown() {
        for (url, shown) in [
            ("redis://u:p@10.0.0.5:6379/1", "redis://10.0.0.5:6379/1"),
            ("rediss://:p@h", "rediss://h"),
            ("redis+unix:///run/r.sock?db=1&user=u&pass=p", "redis+unix:///run/r.sock?db=1"),
            ("redis+unix:///run/r.sock?pass=p", "redis+unix:///run/r.sock"),
            ("secret", "…"),
        ] {
            assert_eq!(without_credentials(url), shown);
        }
        assert!(!format!("{:?}", Options::new("redis://u:secret@h")).contains("secret"));
    }

    #[test]
    fn what_can_not_be_is_refused() {
        for url in ["", "10.0.0.5:6379", "http://h", "redis://h:99999", "redis://h/x"] {
            assert!(check_url(url).is_err(), "{url}");
        }
        for url in ["redis://h", "redis://u:p@h:1/2", "redis+unix:///run/r.sock"] {
            assert_eq!(check_url(url), Ok(()), "{url}");
        }
        assert!(check_prefix("a{b").is_err() && check_prefix(&"a".repeat(65)).is_err());
    }
}
