//! Addresses, limits and tokens, and how a client's address is told.

use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;
use toml::Spanned;

use super::access::Tokens;
use super::listen::{Address, Protocol};
use super::problem::Problems;
use super::tls::TlsConfig;
use super::value::{number, seconds};
use super::{file, listen};
use earrrl_tower::{ClientAddress, Prefixes};

/// The `[server]` table.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerConfig {
    /// Where HTTP is served; `None` for nowhere.
    pub http: Option<Address>,
    /// Where RESP is served; `None` for nowhere.
    pub resp: Option<Address>,
    /// Where health and metrics are served apart from HTTP's clients; `None` for nowhere.
    pub admin: Option<Address>,
    /// Where gRPC is served; `None` for nowhere.
    pub grpc: Option<Address>,
    /// The mode of Unix sockets: which users may open them.
    pub socket_mode: u32,
    /// Certificates, where TLS is spoken.
    pub tls: Option<TlsConfig>,
    /// Seconds after which an HTTP/2 connection is asked to come again; `None` for never.
    pub max_connection_age: Option<u32>,
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

/// What connections may use. Times are whole seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections in all.
    pub connections: usize,
    /// Connections from one address.
    pub connections_by_address: usize,
    /// Requests under way on one connection over HTTP/2.
    pub streams: u32,
    /// How long a connection may be silent between requests.
    pub idle: u32,
    /// How long a request may take to arrive, and its answer to be fetched.
    pub request: u32,
    /// Bytes held for connections that sent half a request or don't read their answers.
    pub held_bytes: usize,
}

impl Limits {
    /// The share of all connections that one address may have, unless it is said: it leaves room for
    /// others.
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
        let local = |port| Some(Address::Tcp((Ipv4Addr::LOCALHOST, port).into()));
        Self {
            http: local(8080),
            resp: local(6380),
            admin: None,
            grpc: None,
            socket_mode: 0o660,
            tls: None,
            max_connection_age: None,
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
    pub(super) fn validate(file: &file::ServerTable, problems: &mut Problems) -> Self {
        let default = Self::default();
        collisions(file, problems);
        let mut address =
            |name, field: &file::Placed<String>, default| address(name, field, default, problems);
        let (http, resp) =
            (address("http", &file.http, default.http), address("resp", &file.resp, default.resp));
        let (admin, grpc) = (
            address("admin", &file.admin, default.admin),
            address("grpc", &file.grpc, default.grpc),
        );
        let mut time = |name, field: &file::Placed<String>, default, bounds| {
            seconds(name, field.as_ref(), default, bounds, problems)
        };
        let age = &file.max_connection_age;
        let max_connection_age =
            age.is_some().then(|| time("max_connection_age", age, 1, 1..=86_400));
        let delay = time("shutdown_delay", &file.shutdown_delay, default.shutdown_delay, 0..=3600);
        let stop =
            time("shutdown_timeout", &file.shutdown_timeout, default.shutdown_timeout, 0..=3600);
        Self {
            http,
            resp,
            admin,
            grpc,
            socket_mode: socket_mode(file.socket_mode.as_ref(), default.socket_mode, problems),
            tls: file.tls.as_ref().map(|tls| TlsConfig::validate(tls, problems)),
            max_connection_age,
            allow_remote: file.allow_remote,
            threads: threads(file.threads.as_ref(), problems),
            limits: limits(file, default.limits, problems),
            max_body: max_body(file.max_body.as_ref(), default.max_body, problems),
            shutdown_delay: delay,
            shutdown_timeout: stop,
            tokens: Tokens::validate(file, problems),
            allow_inline_rules: file.allow_inline_rules,
            x_ratelimit_headers: file.x_ratelimit_headers,
        }
    }

    /// Where a protocol is served; `None` for nowhere.
    pub fn address(&self, protocol: Protocol) -> Option<&Address> {
        match protocol {
            Protocol::Http => self.http.as_ref(),
            Protocol::Resp => self.resp.as_ref(),
            Protocol::Admin => self.admin.as_ref(),
            Protocol::Grpc => self.grpc.as_ref(),
        }
    }

    /// Why these addresses can't be served, if they can't: other machines are served only with a
    /// token or a certificate of theirs, or when that was explicitly allowed.
    pub fn exposed(&self) -> Option<String> {
        if self.allow_remote || self.tokens.any() {
            return None;
        }
        let known = self.tls.as_ref().filter(|tls| tls.client_ca.is_some());
        let open = |protocol: &Protocol| !known.is_some_and(|tls| tls.covers(*protocol));
        let addresses =
            Protocol::ALL.into_iter().filter(open).filter_map(|protocol| self.address(protocol));
        let remote = addresses.into_iter().find(|address| address.is_remote())?;
        Some(format!(
            "{remote} can be reached by other machines: set check_token and admin_token, \
             or allow it with --allow-remote"
        ))
    }
}

/// Two listeners can't have one address, nor one of them a port of all addresses that the other has of
/// one.
fn collisions(file: &file::ServerTable, problems: &mut Problems) {
    let default = ServerConfig::default();
    let fields = [&file.http, &file.resp, &file.admin, &file.grpc];
    let fields = Protocol::ALL.into_iter().zip(fields);
    // Those that the file does not say come first: a problem is told where something is said.
    let unsaid = fields.clone().filter(|(_, field)| field.is_none());
    let mut taken: Vec<(Protocol, Address)> = unsaid
        .filter_map(|(protocol, _)| Some((protocol, default.address(protocol)?.clone())))
        .collect();
    for (protocol, field) in fields {
        let Some(field) = field else { continue };
        let Ok(address) = listen::parse(field.get_ref()) else { continue };
        match taken.iter().find(|(_, known)| known.overlaps(&address)) {
            Some((other, _)) => {
                let (name, other) = (protocol.name(), other.name());
                problems
                    .add(field.span(), format!("{name}: {other} has this address; want another"));
            }
            None => taken.push((protocol, address)),
        }
    }
}

fn limits(file: &file::ServerTable, default: Limits, problems: &mut Problems) -> Limits {
    let mut count = |name, field: &file::Placed<u64>, default: usize, least| {
        number(name, field.as_ref(), default as u64, least..=u64::from(u32::MAX), problems) as usize
    };
    let connections = count("max_connections", &file.max_connections, default.connections, 1);
    let connections_by_address = count(
        "max_connections_per_address",
        &file.max_connections_per_address,
        Limits::of_one_address(connections),
        1,
    );
    let held_bytes =
        count("max_held_memory", &file.max_held_memory, default.held_bytes, 1024 * 1024);
    let streams = count("max_streams", &file.max_streams, default.streams as usize, 1) as u32;
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

fn threads(field: Option<&Spanned<u64>>, problems: &mut Problems) -> Option<usize> {
    field.map(|_| number("threads", field, 1, 1..=1024, problems) as usize)
}

fn max_body(field: Option<&Spanned<u64>>, default: usize, problems: &mut Problems) -> usize {
    number("max_body", field, default as u64, 1024..=16 * 1024 * 1024, problems) as usize
}

fn address(
    name: &str,
    field: &file::Placed<String>,
    default: Option<Address>,
    problems: &mut Problems,
) -> Option<Address> {
    let Some(field) = field else { return default };
    if field.get_ref() == "off" {
        return None;
    }
    let parsed = listen::parse(field.get_ref());
    if let Err(expected) = &parsed {
        problems.add(field.span(), format!("{name}: {expected}, or \"off\""));
    }
    parsed.ok()
}

/// The mode of Unix sockets, in octal.
fn socket_mode(field: Option<&Spanned<String>>, default: u32, problems: &mut Problems) -> u32 {
    let Some(field) = field else { return default };
    let parsed = u32::from_str_radix(field.get_ref(), 8).ok().filter(|mode| *mode <= 0o777);
    parsed.unwrap_or_else(|| {
        problems.add(field.span(), "socket_mode: expected a file's mode in octal, as \"660\"");
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
            None => problems.add(
                proxy.span(),
                "trusted_proxies: expected an address or a network, as \"10.0.0.0/8\"",
            ),
        }
    }
    if let (Some(hops), false) = (&file.hops, file.trusted_proxies.is_empty()) {
        problems.add(hops.span(), "hops: trusted_proxies is set already; want one of them");
    }
    let mut bounded = |name, field: &file::Placed<u64>, default: u8, most| {
        number(name, field.as_ref(), default.into(), 0..=most, problems)
    };
    // As [`Prefixes::default`].
    let ipv4 = bounded("ipv4_prefix", &file.ipv4_prefix, 32, 32) as u8;
    let ipv6 = bounded("ipv6_prefix", &file.ipv6_prefix, 64, 128) as u8;
    let hops = bounded("hops", &file.hops, 0, 16) as usize;
    address.hops(hops).prefixes(Prefixes::new(ipv4, ipv6))
}

/// A network, or a single address; an IPv4 address written as IPv6 is taken as IPv4.
pub(super) fn network(text: &str) -> Option<IpNet> {
    let address = || text.parse::<IpAddr>().ok().map(|address| address.to_canonical().into());
    text.parse().ok().or_else(address)
}
