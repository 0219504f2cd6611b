//! What can be chosen when an engine is made.

use std::time::Duration;

use earrrl::RuleError;

use crate::key::ClientKeys;

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

/// Certificates for TLS, in PEM.
#[cfg(feature = "tls")]
#[derive(Clone, Default)]
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
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// Addresses: one, or several nodes of a Cluster to begin with. `redis://[user:password@]host:port/db`,
    /// `rediss://…` for TLS, `redis+unix:///path?db=…&user=…&pass=…` for a socket.
    pub urls: Vec<String>,
    /// Whether the addresses are of a Cluster.
    pub cluster: bool,
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
}

impl Options {
    /// Redis, or Valkey, at one address, or nodes of a Cluster at several with commas between them, and
    /// everything else as is usual.
    pub fn new(url: &str) -> Self {
        let urls: Vec<String> = url.split(',').map(|url| url.trim().to_owned()).collect();
        Self {
            cluster: urls.len() > 1,
            urls,
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
        }
    }

    /// A Cluster, from some of its nodes.
    pub fn cluster<'a>(urls: impl IntoIterator<Item = &'a str>) -> Self {
        let urls = urls.into_iter().map(str::to_owned).collect();
        Self { urls, cluster: true, ..Self::new("") }
    }

    /// Checks what can be checked without a connection.
    pub(crate) fn check(&self) -> Result<(), RuleError> {
        let wrong = |field: &str, problem: String| Err(RuleError::new(problem).of(field));
        if self.urls.is_empty() {
            return wrong("urls", "none is given; expected redis://host:port".to_owned());
        }
        let plain = |b: u8| b.is_ascii_graphic() && b != b'{' && b != b'}';
        if self.prefix.len() > 64 || !self.prefix.bytes().all(plain) {
            let shown: String = self.prefix.chars().take(70).flat_map(char::escape_debug).collect();
            return wrong(
                "prefix",
                format!("`{shown}` is not at most 64 printing characters without braces"),
            );
        }
        if self.deadline.is_zero() || self.deadline > Duration::from_secs(60) {
            return wrong(
                "deadline",
                format!("{:?} is not above 0 and at most 60s", self.deadline),
            );
        }
        if self.linger > Duration::from_secs(5 * 86_400) {
            return wrong("linger", format!("{:?} is not at most five days", self.linger));
        }
        if self.local_capacity == 0 {
            return wrong("local_capacity", "0 is not above 0".to_owned());
        }
        Ok(())
    }
}
