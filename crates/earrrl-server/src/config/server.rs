//! The `[server]` and `[client_address]` tables of the configuration, and the tables in them but for the tokens.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::ops::Range;
use std::path::PathBuf;

use axum::http::HeaderName;
use earrrl::internal::NameOptions;

use super::access::Tokens;
use super::attribute::{Condition, network};
use super::files::path_of;
use super::listen::{ListenAddress, Protocol};
use super::problem::shown;
use super::table::{Field, Secret, Table, defaults};

use earrrl_tower::path::Paths;
use earrrl_tower::{AddressSource, ClientAddress, Prefixes};

/// The validated `[server]` table.
#[derive(Clone, Debug, PartialEq)]
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
    fn read(table: &Table<'_>) -> Self {
        let count = |name, least| table.number(name, least..=u64::from(u32::MAX));
        let connections = count("max_connections", 1).unwrap_or(16_384);
        let by_address = count("max_connections_per_address", 1);
        let time = |name| table.seconds(name, 1..=86_400);
        Self {
            connections: connections as usize,
            // The default is a fraction, so that one client cannot use up every place.
            connections_by_address: by_address.unwrap_or((connections / 4 * 3).max(1)) as usize,
            streams: count("max_streams", 1).unwrap_or(128) as u32,
            idle: time("idle_timeout").unwrap_or(300),
            request: time("request_timeout").unwrap_or(10),
            held_bytes: count("max_held_memory", 1024 * 1024).unwrap_or(64 * 1024 * 1024) as usize,
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        defaults(Self::read)
    }
}

impl Default for ServerConfig {
    fn default() -> Self {
        defaults(|table| Self::read(table, &BTreeSet::new()))
    }
}

impl ServerConfig {
    /// Reads the table but for its table `tls`; `rules` has the names of all rules.
    pub(super) fn read(table: &Table<'_>, rules: &BTreeSet<String>) -> Self {
        let local = |port| Some(ListenAddress::Tcp((Ipv4Addr::LOCALHOST, port).into()));
        let time = |name| table.seconds(name, 0..=3600);
        let threads = table.number("threads", 1..=1024);
        let max_body = table.number("max_body", 1024..=16 * 1024 * 1024);
        let hosts = table.items("hosts").into_iter();
        let mode = table.field("socket_mode");
        let config = Self {
            http: address(table, "http", local(8080)),
            resp: address(table, "resp", local(6380)),
            admin: address(table, "admin", None),
            grpc: address(table, "grpc", None),
            socket_mode: mode.and_then(file_mode).unwrap_or(0o660),
            proxy_protocol: Protocol::list(table, "proxy_protocol").unwrap_or_default(),
            tls: None,
            max_connection_age: table.seconds("max_connection_age", 1..=86_400),
            hosts: hosts.filter_map(host).collect(),
            allow_remote: table.is_on("allow_remote"),
            threads: threads.map(|threads| threads as usize),
            limits: Limits::read(table),
            max_body: max_body.unwrap_or(256 * 1024) as usize,
            shutdown_delay: time("shutdown_delay").unwrap_or(0),
            shutdown_timeout: time("shutdown_timeout").unwrap_or(10),
            tokens: Tokens::read(table, rules),
            allow_inline_rules: table.is_on("allow_inline_rules"),
            x_ratelimit_headers: table.is_on("x_ratelimit_headers"),
            names: NamesConfig::read(&table.table("names")),
        };
        config.check_addresses(table);
        config
    }

    /// Reports listeners with the same address, or with the same port where one of them listens on all addresses. The
    /// place is that of the later address in the table, since a default has none.
    fn check_addresses(&self, table: &Table<'_>) {
        for (nth, protocol) in Protocol::ALL.into_iter().enumerate() {
            let Some(field) = table.field(protocol.name()) else {
                continue;
            };
            let has_it = |(at, other): &(usize, Protocol)| {
                let is_before = *at < nth || !table.has(other.name());
                let pair = self.address(protocol).zip(self.address(*other));
                is_before && pair.is_some_and(|(own, other)| own.overlaps(other))
            };
            if let Some((_, other)) = Protocol::ALL.into_iter().enumerate().find(has_it) {
                field.mistake(format!("{} has this address; want another", other.name()));
            }
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

/// Returns the address in a field, which may also be `off`.
fn address(
    table: &Table<'_>,
    name: &'static str,
    usual: Option<ListenAddress>,
) -> Option<ListenAddress> {
    let Some(field) = table.field(name) else {
        return usual;
    };
    match field.text()?.trim() {
        "off" => None,
        text => match text.parse() {
            Ok(address) => Some(address),
            Err(why) => field.refuse(format!("`{}`: {why}, or \"off\"", shown(text))),
        },
    }
}

/// Returns the file mode in a field, which is written in octal.
fn file_mode(field: Field<'_>) -> Option<u32> {
    let mode = |text| u32::from_str_radix(text, 8).ok();
    let parse = |text| mode(text).filter(|mode| *mode <= 0o777);
    field.parsed("a file's mode in octal, as \"660\"", parse)
}

/// Returns the name of a host of the server.
fn host(field: Field<'_>) -> Option<String> {
    let is_host = |text: &&str| {
        let condition = Condition::new("host", text, Paths::TOLERANT);
        condition.is_ok() && !text.is_empty() && !text.contains('*')
    };
    let want = "a host, as \"limits.example\", without scheme and port";
    field.parsed(want, |text| Some(text).filter(is_host).map(str::to_owned))
}

/// Reads the `[client_address]` table.
pub(super) fn client_address(table: &Table<'_>) -> ClientAddress {
    let mut address = ClientAddress::default();
    for field in table.items("trusted_proxies") {
        let want = "an address or a network, as \"10.0.0.0/8\"";
        match field.parsed(want, network) {
            Some(network) if network.prefix_len() == 0 => {
                field.mistake("that is everybody; name the proxies' networks, or set hops")
            }
            Some(network) => address = address.trust(network),
            None => {}
        }
    }
    if let Some(field) = table.field("hops").filter(|_| address.believes_proxies()) {
        field.mistake("trusted_proxies is set already; want one of them");
    }
    address = address.hops(table.number("hops", 0..=16).unwrap_or(0) as usize);
    if let Some(field) = table.field("header") {
        let want = "the name of a header, as \"forwarded\" or \"x-real-ip\"";
        match field.parsed(want, source) {
            Some(_) if !address.believes_proxies() => {
                field.mistake("only with trusted_proxies or hops, the proxies that set it");
            }
            Some(source) => address = address.source(source),
            None => {}
        }
    }
    let length = |name, most: u8| Some(table.number(name, 0..=most.into())? as u8);
    // The default lengths are those of [`Prefixes::default`].
    let ipv4 = length("ipv4_prefix", 32).unwrap_or(32);
    let ipv6 = length("ipv6_prefix", 128).unwrap_or(64);
    address.prefixes(Prefixes::new(ipv4, ipv6))
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

/// The validated `[server.tls]` table. Its files are read when the server starts and whenever they
/// change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsConfig {
    /// The PEM file of the server's certificate and its chain.
    pub cert: PathBuf,
    /// The PEM file of the server's private key.
    pub key: PathBuf,
    /// The PEM file of the CA certificates that verify clients; `None` if clients need no
    /// certificate.
    pub client_ca: Option<PathBuf>,
    /// The names that are accepted in clients' certificates, which need one of them; empty for any
    /// name.
    pub client_names: Vec<String>,
    /// The protocols whose listeners use TLS.
    pub listeners: Vec<Protocol>,
}

impl TlsConfig {
    pub(super) fn read(table: &Table<'_>) -> Self {
        let file = |field: Field<'_>| field.path().unwrap_or_default();
        table.only_if(
            table.has("client_ca"),
            "client_ca, without which clients show no certificate",
            &["client_names"],
        );
        let names = table.items("client_names").into_iter();
        let name = |text: &str| Some(text.to_owned()).filter(|name| !name.is_empty());
        // The default leaves out `admin`, since health probes have no certificates.
        let usual = || vec![Protocol::Http, Protocol::Resp, Protocol::Grpc];
        Self {
            cert: table.required("cert").map(file).unwrap_or_default(),
            key: table.required("key").map(file).unwrap_or_default(),
            client_ca: table.field("client_ca").map(file),
            client_names: names
                .filter_map(|field| field.parsed("a DNS name or a URI", name))
                .collect(),
            listeners: Protocol::list(table, "listeners").unwrap_or_else(usual),
        }
    }

    /// Returns true if the listener of this protocol uses TLS.
    pub fn covers(&self, protocol: Protocol) -> bool {
        self.listeners.contains(&protocol)
    }
}

/// Returns the paths of the configured TLS files, with their places in the text.
pub(super) fn tls_places(table: &Table<'_>) -> Vec<(PathBuf, Range<usize>)> {
    let fields = ["cert", "key", "client_ca"].map(|name| table.field(name));
    let place = |field: Field<'_>| Some((path_of(field.text()?).ok()?, field.span()));
    let named = fields.into_iter().flatten().filter(|field| field.is_text());
    named.filter_map(place).collect()
}

/// The length of the shortest key of the HMAC, in bytes.
const MIN_KEY_LEN: usize = 16;

/// The validated `[server.names]` table.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NamesConfig {
    /// The bounds of each rule's directory of names. With a capacity of 0, no names are kept.
    pub options: NameOptions,
    /// The key of the HMAC that replaces names; `None` if names are kept as they are.
    pub hmac_key: Option<Secret>,
}

impl NamesConfig {
    pub(super) fn read(table: &Table<'_>) -> Self {
        let mut options = NameOptions::default();
        let count = |name, bounds, usual: usize| {
            table
                .number(name, bounds)
                .map_or(usual, |count| count as usize)
        };
        options.from = table
            .field("from")
            .and_then(fraction)
            .unwrap_or(options.from);
        options.capacity = count("capacity", 0..=1_000_000, options.capacity);
        options.max_bytes = count("max_bytes", 16..=4096, options.max_bytes);
        Self {
            options,
            hmac_key: hmac_key(table).map(Secret),
        }
    }
}

/// Returns the number from 0 to 1 in a field.
fn fraction(field: Field<'_>) -> Option<f64> {
    let number = field.digits()?.parse();
    let number = number.ok().filter(|number| (0.0..=1.0).contains(number));
    number.or_else(|| field.expected("a number from 0 to 1"))
}

/// Returns the secret key of an HMAC, from the field `hmac_key` or its file.
pub(super) fn hmac_key(table: &Table<'_>) -> Option<String> {
    let (field, key) = table.secret("hmac_key", "hmac_key_file")?;
    if key.len() < MIN_KEY_LEN {
        return field.refuse(format!(
            "{} bytes; expected {MIN_KEY_LEN} or more",
            key.len()
        ));
    }
    Some(key)
}
