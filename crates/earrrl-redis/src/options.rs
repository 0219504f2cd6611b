//! The options of an engine.

use std::time::Duration;

use earrrl::{Rule, RuleError};
use redis::io::tcp::TcpSettings;
use redis::{ConnectionAddr, IntoConnectionInfo};

use crate::algorithm;
#[cfg(feature = "tls")]
use crate::certificates::Certificates;
use crate::key::ClientKeys;

/// The longest prefix of keys, and the longest name of a node, in bytes.
const MAX_PREFIX_LEN: usize = 64;
/// The longest deadline of a decision.
const MAX_DEADLINE: Duration = Duration::from_secs(60);
/// The longest time for which records are kept without a use.
const MAX_LINGER: Duration = Duration::from_secs(5 * 86_400);

/// The policy for requests that Redis does not answer in time.
///
/// ```
/// use earrrl_redis::{Options, WhenGone};
///
/// let mut options = Options::new("redis://127.0.0.1:6379");
/// assert_eq!(options.when_gone, WhenGone::Local);
/// options.when_gone = WhenGone::Deny;
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum WhenGone {
    /// This node's own table decides. Its charges are delivered to Redis after the outage if the
    /// algorithm's counts can be added up.
    #[default]
    Local,
    /// Every request is allowed.
    Allow,
    /// Every request is denied.
    Deny,
}

impl WhenGone {
    /// Returns the policy's name in `/readyz`, metrics and logs.
    ///
    /// ```
    /// assert_eq!(earrrl_redis::WhenGone::Deny.name(), "deny");
    /// ```
    pub const fn name(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Allow => "allow",
            Self::Deny => "deny",
        }
    }
}

/// The place where a rule's requests are decided.
///
/// ```
/// use earrrl_redis::Consistency;
///
/// assert_eq!(Consistency::default(), Consistency::Exact);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Consistency {
    /// Redis decides, in one round trip per decision.
    #[default]
    Exact,
    /// Redis grants several units at once, which this node spends without a round trip. Not supported for
    /// exponential and for the action delay; see [`check_near`](crate::check_near).
    Near,
}

/// The addresses of Redis, and the settings for its use.
///
/// ```
/// use earrrl_redis::{ClientKeys, Options};
/// use std::time::Duration;
///
/// let mut options = Options::new("redis://127.0.0.1:6379");
/// options.deadline = Duration::from_millis(2);
/// options.clients = ClientKeys::Hashed(b"a secret of all servers".to_vec());
/// assert!(options.check().is_ok());
/// ```
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Options {
    /// The addresses: one, or those of some nodes of a Cluster.
    /// `redis://[user:password@]host:port/db`, `rediss://…` for TLS, or
    /// `redis+unix:///path?db=…&user=…&pass=…` for a socket.
    pub urls: Vec<String>,
    /// True if the addresses are of a Cluster.
    pub cluster: bool,
    /// The name of the master if Sentinels are used. The addresses are then those of the Sentinels,
    /// which are asked for the master at every connection. User, password and database of the first
    /// address apply to the master only.
    pub sentinel: Option<String>,
    /// The user at the Sentinels; `None` for their default user.
    pub sentinel_user: Option<String>,
    /// The password at the Sentinels; `None` if they require none.
    pub sentinel_password: Option<String>,
    /// The certificates for `rediss://`; `None` for the platform's authorities and no certificate
    /// of this client.
    #[cfg(feature = "tls")]
    pub certificates: Option<Certificates>,
    /// The start of every key, without braces. The version of the record format follows it.
    pub prefix: String,
    /// The form of clients' names in keys.
    pub clients: ClientKeys,
    /// The longest time for which a decision waits for Redis.
    pub deadline: Duration,
    /// The policy for requests that Redis does not answer within the deadline.
    pub when_gone: WhenGone,
    /// The time for which a record is kept after it can no longer affect a decision.
    pub linger: Duration,
    /// The most clients of each rule in this node's own table, and the most clients whose charges
    /// are kept for Redis during an outage.
    pub local_capacity: usize,
    /// The number of failed decisions in a row after which Redis is not asked until a probe
    /// succeeds.
    pub failures: u32,
    /// The longest time between two attempts to reach Redis again.
    pub longest_backoff: Duration,
    /// The name of this node, which no other running process may have; `None` for a random name. A
    /// node with a name uses its keys in Redis again after a restart.
    pub node: Option<String>,
}

impl Options {
    /// Returns the default options for Redis or Valkey at one address, or for a Cluster if `url`
    /// has several addresses separated by commas.
    ///
    /// ```
    /// use earrrl_redis::Options;
    ///
    /// assert!(!Options::new("redis://127.0.0.1:6379").cluster);
    /// assert!(Options::new("redis://10.0.0.5:6379, redis://10.0.0.6:6379").cluster);
    /// ```
    pub fn new(url: &str) -> Self {
        let urls: Vec<String> = url.split(',').map(|url| url.trim().to_owned()).collect();
        Self {
            cluster: urls.len() > 1,
            urls,
            sentinel: None,
            sentinel_user: None,
            sentinel_password: None,
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
            node: None,
        }
    }

    /// Returns the default options for a Cluster, given some of its nodes.
    ///
    /// ```
    /// use earrrl_redis::Options;
    ///
    /// let options = Options::cluster(["redis://10.0.0.5:6379", "redis://10.0.0.6:6379"]);
    /// assert!(options.cluster && options.check().is_ok());
    /// ```
    pub fn cluster<'a>(urls: impl IntoIterator<Item = &'a str>) -> Self {
        let urls = urls.into_iter().map(str::to_owned).collect();
        Self {
            urls,
            cluster: true,
            ..Self::new("")
        }
    }

    /// Returns the default options for the master called `name`, given some of the Sentinels that
    /// watch it.
    ///
    /// ```
    /// use earrrl_redis::Options;
    ///
    /// let options = Options::sentinel("limits", ["redis://10.0.0.5:26379", "redis://10.0.0.6:26379"]);
    /// assert_eq!(options.sentinel.as_deref(), Some("limits"));
    /// ```
    pub fn sentinel<'a>(name: &str, urls: impl IntoIterator<Item = &'a str>) -> Self {
        let urls = urls.into_iter().map(str::to_owned).collect();
        Self {
            urls,
            sentinel: Some(name.to_owned()),
            ..Self::new("")
        }
    }

    /// Checks the options without connecting.
    ///
    /// ```
    /// use earrrl_redis::Options;
    /// use std::time::Duration;
    ///
    /// let mut options = Options::new("redis://127.0.0.1:6379");
    /// options.deadline = Duration::ZERO;
    /// let error = options.check().unwrap_err();
    /// assert_eq!(error.to_string(), "deadline: 0ns is not above 0 and at most 60s");
    /// ```
    ///
    /// # Errors
    /// Returns an error about the first invalid option.
    pub fn check(&self) -> Result<(), RuleError> {
        self.urls.iter().try_for_each(|url| check_url(url))?;
        self.check_sentinel_login()?;
        #[cfg(feature = "tls")]
        self.check_certificates()?;
        check_prefix(&self.prefix)?;
        self.node.as_deref().map_or(Ok(()), check_node)?;
        let Self {
            deadline, linger, ..
        } = self;
        if self.urls.is_empty() {
            return wrong("urls", "none is given; expected redis://host:port");
        }
        if self.cluster && self.sentinel.is_some() {
            return wrong("sentinel", "a Cluster has none; expected one or the other");
        }
        if deadline.is_zero() || *deadline > MAX_DEADLINE {
            let problem = format!("{deadline:?} is not above 0 and at most 60s");
            return wrong("deadline", &problem);
        }
        if *linger > MAX_LINGER {
            return wrong("linger", &format!("{linger:?} is not at most five days"));
        }
        if self.longest_backoff.is_zero() {
            return wrong("longest_backoff", "0s is not above 0");
        }
        if self.local_capacity == 0 {
            return wrong("local_capacity", "0 is not above 0");
        }
        Ok(())
    }

    #[cfg(feature = "tls")]
    fn check_certificates(&self) -> Result<(), RuleError> {
        let Some(certificates) = &self.certificates else {
            return Ok(());
        };
        if let Some(url) = self.urls.iter().find(|url| !uses_tls(url)) {
            let shown = without_credentials(url);
            let problem = format!("of no use for {shown}; expected rediss://host:port");
            return wrong("certificates", &problem);
        }
        certificates
            .check_authority()
            .map_err(|error| error.of("certificates.authority"))?;
        certificates
            .check_client()
            .map_err(|error| error.of("certificates.client"))
    }

    fn check_sentinel_login(&self) -> Result<(), RuleError> {
        match (&self.sentinel, &self.sentinel_user, &self.sentinel_password) {
            (None, Some(_), _) => wrong("sentinel_user", "only with sentinel"),
            (None, _, Some(_)) => wrong("sentinel_password", "only with sentinel"),
            (Some(_), Some(_), None) => wrong("sentinel_user", "only with sentinel_password"),
            _ => Ok(()),
        }
    }
}

impl std::fmt::Debug for Options {
    /// Omits passwords, which the addresses may contain.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options")
            .field(
                "urls",
                &self
                    .urls
                    .iter()
                    .map(|url| without_credentials(url))
                    .collect::<Vec<_>>(),
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

/// Returns the settings of every connection to Redis. Nagle's algorithm is off: calls are small, and with
/// it a call would wait for the acknowledgement of the call before it, up to a round trip.
pub(crate) fn tcp_settings() -> TcpSettings {
    TcpSettings::default().set_nodelay(true)
}

/// Returns an address without its user and password, so that it can be shown.
///
/// ```
/// let shown = earrrl_redis::without_credentials("redis://limits:secret@10.0.0.5:6379/1");
/// assert_eq!(shown, "redis://10.0.0.5:6379/1");
/// ```
pub fn without_credentials(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else {
        return "…".to_owned();
    };
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let rest = rest.rsplit_once('@').map_or(rest, |(_, rest)| rest);
    let secret = |pair: &&str| pair.starts_with("user=") || pair.starts_with("pass=");
    let kept: Vec<&str> = query
        .split('&')
        .filter(|pair| !secret(pair) && !pair.is_empty())
        .collect();
    let mark = if kept.is_empty() { "" } else { "?" };
    format!("{scheme}://{rest}{mark}{}", kept.join("&"))
}

/// Checks the syntax of an address.
///
/// ```
/// assert!(earrrl_redis::check_url("redis://10.0.0.5:6379").is_ok());
/// assert!(earrrl_redis::check_url("10.0.0.5:6379").is_err());
/// ```
///
/// # Errors
/// Returns an error if the address is invalid. The error does not repeat the address, which may
/// contain a password.
pub fn check_url(url: &str) -> Result<(), RuleError> {
    let info = url.into_connection_info().map_err(|error| {
        let want = "expected redis://[user:password@]host:port/db, rediss://… for TLS, or redis+unix:///path";
        RuleError::new(format!("{want} ({error})"))
    })?;
    let database = info.redis_settings().db();
    if database < 0 {
        let want = "expected 0 or more, as redis://host:port/1";
        return Err(RuleError::new(format!("database {database}: {want}")));
    }
    if matches!(info.addr(), ConnectionAddr::TcpTls { insecure: true, .. }) {
        let want = "expected rediss:// without it; a certificate's authority can be given";
        return Err(RuleError::new(format!(
            "#insecure: certificates are always verified; {want}"
        )));
    }
    Ok(())
}

/// Returns true if connections to an address use TLS.
///
/// ```
/// assert!(earrrl_redis::uses_tls("rediss://10.0.0.5:6380"));
/// assert!(!earrrl_redis::uses_tls("redis://10.0.0.5:6379"));
/// ```
#[cfg(feature = "tls")]
pub fn uses_tls(url: &str) -> bool {
    let info = url.into_connection_info();
    info.is_ok_and(|info| matches!(info.addr(), ConnectionAddr::TcpTls { .. }))
}

/// Checks a prefix of keys.
///
/// ```
/// assert!(earrrl_redis::check_prefix("shop-limits").is_ok());
/// assert!(earrrl_redis::check_prefix("{shop}").is_err());
/// ```
///
/// # Errors
/// Returns an error if the prefix is too long, or contains braces or characters that do not print.
pub fn check_prefix(prefix: &str) -> Result<(), RuleError> {
    check_plain("prefix", prefix, 0)
}

/// Checks the name of a node: 1 to 64 printing ASCII characters without braces.
///
/// ```
/// assert!(earrrl_redis::check_node("web-1").is_ok());
/// assert!(earrrl_redis::check_node("").is_err());
/// ```
///
/// # Errors
/// Returns an error if the name is another.
pub fn check_node(node: &str) -> Result<(), RuleError> {
    check_plain("node", node, 1)
}

fn check_plain(field: &str, text: &str, least: usize) -> Result<(), RuleError> {
    let plain = |b: u8| b.is_ascii_graphic() && b != b'{' && b != b'}';
    if (least..=MAX_PREFIX_LEN).contains(&text.len()) && text.bytes().all(plain) {
        return Ok(());
    }
    let shown: String = text.escape_debug().take(70).collect();
    let problem =
        format!("`{shown}` is not {least} to {MAX_PREFIX_LEN} printing characters without braces");
    wrong(field, &problem)
}

fn wrong(field: &str, problem: &str) -> Result<(), RuleError> {
    Err(RuleError::new(problem.to_owned()).of(field))
}

/// Checks that Redis can count a rule exactly.
///
/// ```
/// assert!(earrrl_redis::check_rule(&"fixed-window 60/1m".parse()?).is_ok());
/// # Ok::<(), earrrl::RuleError>(())
/// ```
///
/// # Errors
/// Returns an error if a window, or a part of it, is not a whole number of microseconds, or if a
/// bucket takes more than a hundred years to fill.
pub fn check_rule(rule: &Rule) -> Result<(), RuleError> {
    algorithm::check(rule)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_not_shown() {
        for (url, shown) in [
            ("redis://u:p@10.0.0.5:6379/1", "redis://10.0.0.5:6379/1"),
            ("rediss://:p@h", "rediss://h"),
            (
                "redis+unix:///run/r.sock?db=1&user=u&pass=p",
                "redis+unix:///run/r.sock?db=1",
            ),
            (
                "redis+unix:///run/r.sock?pass=p",
                "redis+unix:///run/r.sock",
            ),
            ("secret", "…"),
        ] {
            assert_eq!(without_credentials(url), shown);
        }
        assert!(!format!("{:?}", Options::new("redis://u:secret@h")).contains("secret"));
    }

    #[test]
    fn what_can_not_be_is_refused() {
        for url in [
            "",
            "10.0.0.5:6379",
            "http://h",
            "redis://h:99999",
            "redis://h/x",
        ] {
            assert!(check_url(url).is_err(), "{url}");
        }
        for url in [
            "redis://h/-1",
            "redis+unix:///run/r.sock?db=-1",
            "rediss://h/#insecure",
        ] {
            assert!(check_url(url).is_err(), "{url}");
        }
        for url in ["redis://h", "redis://u:p@h:1/2", "redis+unix:///run/r.sock"] {
            assert_eq!(check_url(url), Ok(()), "{url}");
        }
        assert!(check_prefix("a{b").is_err() && check_prefix(&"a".repeat(65)).is_err());
    }
}
