//! The `[server]` and `[client_address]` tables of the configuration.

use std::net::Ipv4Addr;

use axum::http::HeaderName;
use toml::Spanned;

use super::access::Tokens;
use super::attribute::{Condition, network};
use super::listen::{ListenAddress, Protocol};
use super::names::NamesConfig;
use super::problem::Problems;
use super::tls::TlsConfig;
use super::value::{listeners, number, seconds};
use super::{file, listen};

use earrrl_tower::path::Paths;
use earrrl_tower::{AddressSource, ClientAddress, Prefixes};

/// The validated `[server]` table.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ServerConfig {
    /// The listening address for HTTP; `None` if HTTP is not served.
    pub http: Option<ListenAddress>,
    /// The listening address for RESP; `None` if RESP is not served.
    pub resp: Option<ListenAddress>,
    /// The listening address for health checks and metrics only; `None` if there is none.
    pub admin: Option<ListenAddress>,
    /// The listening address for gRPC; `None` if gRPC is not served.
    pub grpc: Option<ListenAddress>,
    /// The file mode of Unix sockets.
    pub socket_mode: u32,
    /// The protocols whose listeners expect the head of the PROXY protocol from trusted proxies,
    /// and serve no other peers.
    pub proxy_protocol: Vec<Protocol>,
    /// The `[server.tls]` table.
    pub tls: Option<TlsConfig>,
    /// The age in seconds at which HTTP/2 clients are asked to reconnect; `None` for no such age.
    pub max_connection_age: Option<u32>,
    /// The names of hosts, beside this machine's own, under which clients reach the server: without tokens, requests
    /// for other hosts are refused, and pages of other hosts never change anything.
    pub hosts: Vec<String>,
    /// True if clients on other machines are served although no tokens are configured.
    pub allow_remote: bool,
    /// The number of threads that serve requests; `None` for one per core.
    pub threads: Option<usize>,
    /// Limits on connections.
    pub limits: Limits,
    /// The size of the largest body of an HTTP request, in bytes.
    pub max_body: usize,
    /// The number of seconds between the change of `/readyz` to not ready and the closing of the
    /// listeners.
    pub shutdown_delay: u32,
    /// The number of seconds that open connections have to finish after the listeners are closed.
    pub shutdown_timeout: u32,
    /// The tokens that clients must send.
    pub tokens: Tokens,
    /// True if a check request may contain the text of its rule instead of a rule's name.
    pub allow_inline_rules: bool,
    /// True if HTTP responses have the `X-RateLimit-*` headers in addition to the standard ones.
    pub x_ratelimit_headers: bool,
    /// The `[server.names]` table.
    pub names: NamesConfig,
}

/// The limits on connections. Times are whole seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The largest number of open connections.
    pub connections: usize,
    /// The largest number of open connections from one client address.
    pub connections_by_address: usize,
    /// The largest number of requests in flight on one HTTP/2 connection.
    pub streams: u32,
    /// The longest idle time of a connection between requests, in seconds.
    pub idle: u32,
    /// The longest time for a request to arrive, and for its response to be read, in seconds.
    pub request: u32,
    /// The largest number of bytes that incomplete requests and unread responses may occupy.
    pub held_bytes: usize,
}

impl Limits {
    /// Returns the default limit on connections from one address. It is a fraction of the limit on
    /// all connections, so that one client cannot use up every place.
    fn of_one_address(connections: usize) -> usize {
        (connections / 4 * 3).max(1)
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 16_384,
            connections_by_address: Self::of_one_address(16_384),
            streams: 128,
            idle: 300,
            request: 10,
            held_bytes: 64 * 1024 * 1024,
        }
    }
}

impl Default for ServerConfig {
    fn default() -> Self {
        let local = |port| Some(ListenAddress::Tcp((Ipv4Addr::LOCALHOST, port).into()));
        Self {
            http: local(8080),
            resp: local(6380),
            admin: None,
            grpc: None,
            socket_mode: 0o660,
            proxy_protocol: Vec::new(),
            tls: None,
            max_connection_age: None,
            hosts: Vec::new(),
            allow_remote: false,
            threads: None,
            limits: Limits::default(),
            max_body: 256 * 1024,
            shutdown_delay: 0,
            shutdown_timeout: 10,
            tokens: Tokens::default(),
            allow_inline_rules: false,
            x_ratelimit_headers: false,
            names: NamesConfig::default(),
        }
    }
}

impl ServerConfig {
    pub(super) fn validate(whole: &file::File, problems: &mut Problems) -> Self {
        let file = &whole.server;
        let default = Self::default();
        collisions(file, problems);
        let mut address =
            |name, field: &file::Placed<String>, default| address(name, field, default, problems);
        let http = address("http", &file.http, default.http);
        let resp = address("resp", &file.resp, default.resp);
        let admin = address("admin", &file.admin, default.admin);
        let grpc = address("grpc", &file.grpc, default.grpc);
        let mut time = |name, field: &file::Placed<String>, default, bounds| {
            seconds(name, field.as_ref(), default, bounds, problems)
        };
        let age = &file.max_connection_age;
        let max_connection_age = age
            .is_some()
            .then(|| time("max_connection_age", age, 1, 1..=86_400));
        let delay = time(
            "shutdown_delay",
            &file.shutdown_delay,
            default.shutdown_delay,
            0..=3600,
        );
        let stop = time(
            "shutdown_timeout",
            &file.shutdown_timeout,
            default.shutdown_timeout,
            0..=3600,
        );
        Self {
            http,
            resp,
            admin,
            grpc,
            socket_mode: socket_mode(file.socket_mode.as_ref(), default.socket_mode, problems),
            proxy_protocol: listeners("proxy_protocol", &file.proxy_protocol, problems),
            tls: file
                .tls
                .as_ref()
                .map(|tls| TlsConfig::validate(tls, problems)),
            max_connection_age,
            hosts: hosts(&file.hosts, problems),
            allow_remote: file.allow_remote,
            threads: threads(file.threads.as_ref(), problems),
            limits: limits(file, default.limits, problems),
            max_body: max_body(file.max_body.as_ref(), default.max_body, problems),
            shutdown_delay: delay,
            shutdown_timeout: stop,
            tokens: Tokens::validate(whole, problems),
            allow_inline_rules: file.allow_inline_rules,
            x_ratelimit_headers: file.x_ratelimit_headers,
            names: NamesConfig::validate(&file.names, problems),
        }
    }

    /// Returns the listening address of a protocol; `None` if the protocol is not served.
    pub fn address(&self, protocol: Protocol) -> Option<&ListenAddress> {
        match protocol {
            Protocol::Http => self.http.as_ref(),
            Protocol::Resp => self.resp.as_ref(),
            Protocol::Admin => self.admin.as_ref(),
            Protocol::Grpc => self.grpc.as_ref(),
        }
    }

    /// Returns the name of another protocol whose listener has the same address.
    pub fn others_at(&self, protocol: Protocol) -> Option<&'static str> {
        let address = self.address(protocol)?;
        let shares = |other: &Protocol| self.address(*other).is_some_and(|it| it.overlaps(address));
        let mut others = Protocol::ALL.into_iter().filter(|other| *other != protocol);
        others.find(shares).map(Protocol::name)
    }

    /// Returns true if a listener can be reached by other machines.
    pub fn is_remote(&self) -> bool {
        let mut addresses = Protocol::ALL.into_iter().filter_map(|it| self.address(it));
        addresses.any(ListenAddress::is_remote)
    }

    /// Returns an error if clients on other machines could connect without a token or a
    /// certificate, and the configuration does not allow this explicitly.
    pub fn exposed(&self) -> Option<String> {
        if self.allow_remote || self.tokens.any() {
            return None;
        }
        let known = self.tls.as_ref().filter(|tls| tls.client_ca.is_some());
        let open = |protocol: &Protocol| !known.is_some_and(|tls| tls.covers(*protocol));
        let addresses = Protocol::ALL.into_iter().filter(open);
        let mut addresses = addresses.filter_map(|it| Some((it.name(), self.address(it)?)));
        let (name, remote) = addresses.find(|(_, address)| address.is_remote())?;
        Some(format!(
            "{name}: {remote} can be reached by other machines: set check_token, admin_token or \
             [[server.token]], or allow it with allow_remote = true in [server] or `serve --allow-remote`; \
             a port alone, as \"8080\", is for this machine only"
        ))
    }
}

/// Reports listeners with the same address, or with the same port where one of them listens on all
/// addresses.
fn collisions(file: &file::ServerTable, problems: &mut Problems) {
    let default = ServerConfig::default();
    let fields = [&file.http, &file.resp, &file.admin, &file.grpc];
    let fields = Protocol::ALL.into_iter().zip(fields);
    // Addresses that are defaults come first, so that the error is reported at an address that is
    // written in the file.
    let unsaid = fields.clone().filter(|(_, field)| field.is_none());
    let mut taken: Vec<(Protocol, ListenAddress)> = unsaid
        .filter_map(|(protocol, _)| Some((protocol, default.address(protocol)?.clone())))
        .collect();
    for (protocol, field) in fields {
        let Some(field) = field else { continue };
        let Ok(address) = listen::parse(field.get_ref()) else {
            continue;
        };
        match taken.iter().find(|(_, known)| known.overlaps(&address)) {
            Some((other, _)) => {
                let (name, other) = (protocol.name(), other.name());
                problems.add(
                    field.span(),
                    format!("{name}: {other} has this address; want another"),
                );
            }
            None => taken.push((protocol, address)),
        }
    }
}

fn limits(file: &file::ServerTable, default: Limits, problems: &mut Problems) -> Limits {
    let mut count = |name, field: &file::Placed<u64>, default: usize, least| {
        number(
            name,
            field.as_ref(),
            default as u64,
            least..=u64::from(u32::MAX),
            problems,
        ) as usize
    };
    let connections = count(
        "max_connections",
        &file.max_connections,
        default.connections,
        1,
    );
    let connections_by_address = count(
        "max_connections_per_address",
        &file.max_connections_per_address,
        Limits::of_one_address(connections),
        1,
    );
    let held_bytes = count(
        "max_held_memory",
        &file.max_held_memory,
        default.held_bytes,
        1024 * 1024,
    );
    let streams = count(
        "max_streams",
        &file.max_streams,
        default.streams as usize,
        1,
    ) as u32;
    let mut time = |name, field: &file::Placed<String>, default| {
        seconds(name, field.as_ref(), default, 1..=86_400, problems)
    };
    Limits {
        streams,
        connections,
        connections_by_address,
        held_bytes,
        idle: time("idle_timeout", &file.idle_timeout, default.idle),
        request: time("request_timeout", &file.request_timeout, default.request),
    }
}

/// Validates the names of the server's hosts.
fn hosts(names: &[Spanned<String>], problems: &mut Problems) -> Vec<String> {
    for name in names {
        let text = name.get_ref();
        let is_host = !text.is_empty() && Condition::new("host", text, Paths::TOLERANT).is_ok();
        if !is_host || text.contains('*') {
            problems.expected(
                "hosts",
                name,
                "a host, as \"limits.example\", without scheme and port",
            );
        }
    }
    names.iter().map(|name| name.get_ref().clone()).collect()
}

fn threads(field: Option<&Spanned<u64>>, problems: &mut Problems) -> Option<usize> {
    field.map(|_| number("threads", field, 1, 1..=1024, problems) as usize)
}

fn max_body(field: Option<&Spanned<u64>>, default: usize, problems: &mut Problems) -> usize {
    number(
        "max_body",
        field,
        default as u64,
        1024..=16 * 1024 * 1024,
        problems,
    ) as usize
}

fn address(
    name: &str,
    field: &file::Placed<String>,
    default: Option<ListenAddress>,
    problems: &mut Problems,
) -> Option<ListenAddress> {
    let Some(field) = field else { return default };
    if field.get_ref() == "off" {
        return None;
    }
    let parsed = listen::parse(field.get_ref());
    if let Err(expected) = &parsed {
        let want = expected.trim_start_matches("expected ");
        problems.expected(name, field, format!("{want}, or \"off\""));
    }
    parsed.ok()
}

/// Validates the file mode of Unix sockets, which is written in octal.
fn socket_mode(field: Option<&Spanned<String>>, default: u32, problems: &mut Problems) -> u32 {
    let Some(field) = field else { return default };
    let parsed = u32::from_str_radix(field.get_ref(), 8)
        .ok()
        .filter(|mode| *mode <= 0o777);
    parsed.unwrap_or_else(|| {
        problems.expected("socket_mode", field, "a file's mode in octal, as \"660\"");
        default
    })
}

pub(super) fn client_address(
    file: &file::ClientAddressTable,
    problems: &mut Problems,
) -> ClientAddress {
    let mut address = ClientAddress::default();
    for proxy in &file.trusted_proxies {
        match network(proxy.get_ref()) {
            Some(network) if network.prefix_len() == 0 => problems.add(
                proxy.span(),
                "trusted_proxies: that is everybody; name the proxies' networks, or set hops",
            ),
            Some(network) => address = address.trust(network),
            None => {
                let want = "an address or a network, as \"10.0.0.0/8\"";
                problems.expected("trusted_proxies", proxy, want);
            }
        }
    }
    if let (Some(hops), false) = (&file.hops, file.trusted_proxies.is_empty()) {
        problems.add(
            hops.span(),
            "hops: trusted_proxies is set already; want one of them",
        );
    }
    let hops = number("hops", file.hops.as_ref(), 0, 0..=16, problems) as usize;
    if let Some(header) = &file.header {
        match source(header.get_ref()) {
            Some(_) if file.trusted_proxies.is_empty() && hops == 0 => problems.add(
                header.span(),
                "header: only with trusted_proxies or hops, the proxies that set it",
            ),
            Some(source) => address = address.source(source),
            None => {
                let want = "the name of a header, as \"forwarded\" or \"x-real-ip\"";
                problems.expected("header", header, want);
            }
        }
    }
    let mut bounded = |name, field: &file::Placed<u64>, default: u8, most| {
        number(name, field.as_ref(), default.into(), 0..=most, problems)
    };
    // The default prefix lengths are those of [`Prefixes::default`].
    let ipv4 = bounded("ipv4_prefix", &file.ipv4_prefix, 32, 32) as u8;
    let ipv6 = bounded("ipv6_prefix", &file.ipv6_prefix, 64, 128) as u8;
    address.hops(hops).prefixes(Prefixes::new(ipv4, ipv6))
}

/// Reports that listeners expect the PROXY protocol although no address is trusted to use it.
pub(super) fn check_balancers(file: &file::File, problems: &mut Problems) {
    if let Some(first) = file.server.proxy_protocol.first()
        && file.client_address.trusted_proxies.is_empty()
    {
        problems.add(
            first.span(),
            "proxy_protocol: needs [client_address] trusted_proxies, the load balancers' addresses",
        );
    }
}

/// Returns the syntax of the header in which proxies report the client.
fn source(name: &str) -> Option<AddressSource> {
    let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
    Some(match name.as_str() {
        "x-forwarded-for" => AddressSource::XForwardedFor,
        "forwarded" => AddressSource::Forwarded,
        _ => AddressSource::Header(name),
    })
}
