//! Addresses, limits and tokens, and how a client's address is told.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use ipnet::IpNet;
use toml::Spanned;

use super::file;
use super::problem::Problems;
use super::value::{number, seconds, secret};
use crate::serve::connections::Limits;

/// The `[server]` table.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerConfig {
    /// Where HTTP is served; `None` for nowhere.
    pub http: Option<SocketAddr>,
    /// Where RESP is served; `None` for nowhere.
    pub resp: Option<SocketAddr>,
    /// Whether other machines may be served without a token.
    pub allow_remote: bool,
    /// Serving threads; `None` for one for each core.
    pub threads: Option<usize>,
    /// Limits on connections.
    pub limits: Limits,
    /// Largest body of an HTTP request, in bytes.
    pub max_body: usize,
    /// Seconds from `/readyz` turning until accepting stops.
    pub shutdown_delay: u32,
    /// Seconds that connections then have to finish.
    pub shutdown_timeout: u32,
    /// Who may ask and who may change.
    pub tokens: Tokens,
    /// Whether a check may bring its rule's text.
    pub allow_inline_rules: bool,
    /// Whether HTTP answers carry the `X-RateLimit-*` headers too.
    pub x_ratelimit_headers: bool,
}

/// The tokens. Once one is set, asking needs either and changing needs the admin token.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tokens {
    /// Lets its bearer ask.
    pub check: Option<Token>,
    /// Lets its bearer ask and change.
    pub admin: Option<Token>,
}

/// A secret. It is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

/// How a client's address is told from the one that connected and from what proxies add.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClientAddress {
    /// Proxies that are believed.
    pub trusted_proxies: Vec<IpNet>,
    /// Or how many proxies there are, whoever they be.
    pub hops: usize,
    /// Bits of an IPv4 address that tell clients apart.
    pub ipv4_prefix: u8,
    /// Bits of an IPv6 address that tell clients apart.
    pub ipv6_prefix: u8,
}

/// Shortest token, in bytes.
const MIN_TOKEN_LEN: usize = 16;
/// Longest token, in bytes.
const MAX_TOKEN_LEN: usize = 4096;

impl Default for ServerConfig {
    fn default() -> Self {
        let local = |port| Some(SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
        Self {
            http: local(8080),
            resp: local(6380),
            allow_remote: false,
            threads: None,
            limits: Limits::default(),
            max_body: 256 * 1024,
            shutdown_delay: 0,
            shutdown_timeout: 10,
            tokens: Tokens::default(),
            allow_inline_rules: false,
            x_ratelimit_headers: false,
        }
    }
}

impl ServerConfig {
    pub(super) fn validate(file: &file::Server, problems: &mut Problems) -> Option<Self> {
        let default = Self::default();
        Some(Self {
            http: address("http", file.http.as_ref(), default.http, problems),
            resp: address("resp", file.resp.as_ref(), default.resp, problems),
            allow_remote: file.allow_remote,
            threads: file
                .threads
                .as_ref()
                .map(|threads| number("threads", Some(threads), 1, 1..=1024, problems) as usize),
            limits: limits(file, default.limits, problems),
            max_body: number(
                "max_body",
                file.max_body.as_ref(),
                default.max_body as u64,
                1024..=16 * 1024 * 1024,
                problems,
            ) as usize,
            shutdown_delay: seconds(
                "shutdown_delay",
                file.shutdown_delay.as_ref(),
                default.shutdown_delay,
                0..=3600,
                problems,
            ),
            shutdown_timeout: seconds(
                "shutdown_timeout",
                file.shutdown_timeout.as_ref(),
                default.shutdown_timeout,
                0..=3600,
                problems,
            ),
            tokens: Tokens::validate(file, problems),
            allow_inline_rules: file.allow_inline_rules,
            x_ratelimit_headers: file.x_ratelimit_headers,
        })
    }

    /// Why these addresses can't be served, if they can't: other machines are served only with a
    /// token, or when that was allowed in so many words.
    pub fn exposed(&self) -> Option<String> {
        if self.allow_remote || self.tokens.any() {
            return None;
        }
        let remote =
            [self.http, self.resp].into_iter().flatten().find(|a| !a.ip().is_loopback())?;
        Some(format!(
            "{remote} can be reached by other machines: set check_token and admin_token, \
             or allow it with --allow-remote"
        ))
    }
}

fn limits(file: &file::Server, default: Limits, problems: &mut Problems) -> Limits {
    let mut count = |name, field: &file::Field<u64>, default: usize, least| {
        number(name, field.as_ref(), default as u64, least..=u64::from(u32::MAX), problems) as usize
    };
    let connections = count("max_connections", &file.max_connections, default.connections, 1);
    let connections_by_address = count(
        "max_connections_per_address",
        &file.max_connections_per_address,
        default.connections_by_address,
        1,
    );
    let held_bytes =
        count("max_held_memory", &file.max_held_memory, default.held_bytes, 1024 * 1024);
    let mut time = |name, field: &file::Field<String>, default| {
        seconds(name, field.as_ref(), default, 1..=86_400, problems)
    };
    Limits {
        connections,
        connections_by_address,
        held_bytes,
        idle: time("idle_timeout", &file.idle_timeout, default.idle),
        request: time("request_timeout", &file.request_timeout, default.request),
    }
}

fn address(
    name: &str,
    field: Option<&Spanned<String>>,
    default: Option<SocketAddr>,
    problems: &mut Problems,
) -> Option<SocketAddr> {
    let Some(field) = field else { return default };
    if field.get_ref() == "off" {
        return None;
    }
    let parsed = field.get_ref().parse();
    if parsed.is_err() {
        let want =
            "expected an address and port, as \"127.0.0.1:8080\" or \"[::1]:8080\", or \"off\"";
        problems.add(field.span(), format!("{name}: {want}"));
    }
    parsed.ok()
}

impl Tokens {
    /// Whether one is set.
    pub fn any(&self) -> bool {
        self.check.is_some() || self.admin.is_some()
    }

    fn validate(file: &file::Server, problems: &mut Problems) -> Self {
        Self {
            check: token("check_token", &file.check_token, &file.check_token_file, problems),
            admin: token("admin_token", &file.admin_token, &file.admin_token_file, problems),
        }
    }
}

fn token(
    name: &str,
    inline: &file::Field<String>,
    from_file: &file::Field<String>,
    problems: &mut Problems,
) -> Option<Token> {
    let (span, text) = secret(name, inline.as_ref(), from_file.as_ref(), problems)?;
    match Token::new(text) {
        Ok(token) => Some(token),
        Err(why) => {
            problems.add(span, format!("{name}: {why}"));
            None
        }
    }
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

impl Default for ClientAddress {
    fn default() -> Self {
        Self { trusted_proxies: Vec::new(), hops: 0, ipv4_prefix: 32, ipv6_prefix: 64 }
    }
}

impl ClientAddress {
    pub(super) fn validate(file: &file::ClientAddress, problems: &mut Problems) -> Option<Self> {
        let default = Self::default();
        let mut trusted_proxies = Vec::with_capacity(file.trusted_proxies.len());
        for proxy in &file.trusted_proxies {
            match network(proxy.get_ref()) {
                Some(network) => trusted_proxies.push(network),
                None => problems.add(
                    proxy.span(),
                    "trusted_proxies: expected an address or a network, as \"10.0.0.0/8\"",
                ),
            }
        }
        if let (Some(hops), false) = (&file.hops, file.trusted_proxies.is_empty()) {
            problems.add(hops.span(), "hops: trusted_proxies is set already; want one of them");
        }
        let mut bounded = |name, field: &file::Field<u64>, default: u64, most| {
            number(name, field.as_ref(), default, 0..=most, problems)
        };
        Some(Self {
            trusted_proxies,
            hops: bounded("hops", &file.hops, 0, 16) as usize,
            ipv4_prefix: bounded("ipv4_prefix", &file.ipv4_prefix, default.ipv4_prefix.into(), 32)
                as u8,
            ipv6_prefix: bounded("ipv6_prefix", &file.ipv6_prefix, default.ipv6_prefix.into(), 128)
                as u8,
        })
    }
}

/// A network, or a single address.
pub(super) fn network(text: &str) -> Option<IpNet> {
    text.parse().ok().or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from))
}
