//! The fields of the configuration file, as they are written there.

use std::collections::BTreeMap;

use serde::Deserialize;
use toml::Spanned;

/// The value of a field with its place in the file; `None` if the field is not set.
pub(super) type Placed<T> = Option<Spanned<T>>;
/// Attributes of requests by their names, each with one value or a list of values.
pub(super) type AttributeValues = BTreeMap<Spanned<String>, Spanned<OneOrMany>>;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
pub(super) struct File {
    pub(super) version: Placed<u64>,
    pub(super) server: ServerTable,
    pub(super) engine: EngineTable,
    pub(super) client_address: ClientAddressTable,
    pub(super) attributes: AttributesTable,
    pub(super) authz: AuthzTable,
    pub(super) rules: Placed<String>,
    pub(super) shadow_mode: bool,
    pub(super) envoy: EnvoyTable,
    pub(super) metrics: MetricsTable,
    pub(super) rule: Vec<Spanned<RuleTable>>,
}

impl File {
    /// Returns the configuration without the server's own settings, and without the files of
    /// secrets and certificates. If the address of Redis is in such a file, a placeholder replaces
    /// it, since some rules are valid only with Redis.
    pub(super) fn without_secrets(self) -> Self {
        let Self {
            mut engine,
            mut envoy,
            ..
        } = self;
        if let Some(path) = engine.redis_file.take() {
            let any = OneOrMany::One("redis://localhost".to_owned());
            engine.redis.get_or_insert(Spanned::new(path.span(), any));
        }
        engine.hmac_key_file = None;
        (engine.sentinel_user, engine.sentinel_password_file) = (None, None);
        (engine.ca_file, engine.cert_file, engine.key_file) = (None, None, None);
        (envoy.xds, envoy.node) = (None, None);
        (envoy.xds_ca, envoy.xds_cert, envoy.xds_key) = (None, None, None);
        Self {
            server: ServerTable::default(),
            engine,
            envoy,
            ..self
        }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
pub(super) struct AuthzTable {
    pub(super) deny_status: Placed<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
pub(super) struct ServerTable {
    pub(super) http: Placed<String>,
    pub(super) resp: Placed<String>,
    pub(super) admin: Placed<String>,
    pub(super) grpc: Placed<String>,
    pub(super) max_connection_age: Placed<String>,
    pub(super) hosts: Vec<Spanned<String>>,
    pub(super) allow_remote: bool,
    pub(super) threads: Placed<u64>,
    pub(super) max_connections: Placed<u64>,
    pub(super) max_connections_per_address: Placed<u64>,
    pub(super) max_streams: Placed<u64>,
    pub(super) max_body: Placed<u64>,
    pub(super) max_held_memory: Placed<u64>,
    pub(super) idle_timeout: Placed<String>,
    pub(super) request_timeout: Placed<String>,
    pub(super) shutdown_delay: Placed<String>,
    pub(super) shutdown_timeout: Placed<String>,
    pub(super) check_token: Placed<String>,
    pub(super) check_token_file: Placed<String>,
    pub(super) admin_token: Placed<String>,
    pub(super) admin_token_file: Placed<String>,
    pub(super) token: Vec<Spanned<TokenTable>>,
    pub(super) allow_inline_rules: bool,
    pub(super) x_ratelimit_headers: bool,
    pub(super) socket_mode: Placed<String>,
    pub(super) proxy_protocol: Vec<Spanned<String>>,
    pub(super) tls: Option<TlsTable>,
    pub(super) names: NamesTable,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
pub(super) struct NamesTable {
    pub(super) from: Placed<f64>,
    pub(super) capacity: Placed<u64>,
    pub(super) max_bytes: Placed<u64>,
    pub(super) hmac_key: Placed<String>,
    pub(super) hmac_key_file: Placed<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(super) struct TokenTable {
    pub(super) name: Spanned<String>,
    pub(super) token: Placed<String>,
    pub(super) token_file: Placed<String>,
    pub(super) scopes: Spanned<Vec<Spanned<String>>>,
    pub(super) rules: Placed<Vec<Spanned<String>>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(super) struct TlsTable {
    pub(super) cert: Spanned<String>,
    pub(super) key: Spanned<String>,
    pub(super) client_ca: Placed<String>,
    #[serde(default)]
    pub(super) client_names: Vec<Spanned<String>>,
    pub(super) listeners: Option<Vec<Spanned<String>>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
pub(super) struct EnvoyTable {
    pub(super) files: Placed<OneOrMany>,
    pub(super) merge_domains: bool,
    pub(super) algorithm: Placed<String>,
    pub(super) drain_denied: bool,
    pub(super) headers: Placed<String>,
    pub(super) problem_body: bool,
    pub(super) dynamic_metadata: bool,
    pub(super) xds: Placed<String>,
    pub(super) xds_ca: Placed<String>,
    pub(super) xds_cert: Placed<String>,
    pub(super) xds_key: Placed<String>,
    pub(super) node: Placed<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
pub(super) struct MetricsTable {
    pub(super) envoy: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
pub(super) struct EngineTable {
    pub(super) capacity: Placed<u64>,
    pub(super) max_reservations: Placed<u64>,
    pub(super) state: Placed<String>,
    pub(super) not_persisted: Placed<String>,
    pub(super) redis: Placed<OneOrMany>,
    pub(super) redis_file: Placed<String>,
    pub(super) cluster: Placed<bool>,
    pub(super) sentinel: Placed<String>,
    pub(super) sentinel_user: Placed<String>,
    pub(super) sentinel_password: Placed<String>,
    pub(super) sentinel_password_file: Placed<String>,
    pub(super) node: Placed<String>,
    pub(super) prefix: Placed<String>,
    pub(super) policy: Placed<String>,
    pub(super) deadline: Placed<String>,
    pub(super) hmac_key: Placed<String>,
    pub(super) hmac_key_file: Placed<String>,
    pub(super) ca_file: Placed<String>,
    pub(super) cert_file: Placed<String>,
    pub(super) key_file: Placed<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
pub(super) struct ClientAddressTable {
    pub(super) trusted_proxies: Vec<Spanned<String>>,
    pub(super) hops: Placed<u64>,
    pub(super) header: Placed<String>,
    pub(super) ipv4_prefix: Placed<u64>,
    pub(super) ipv6_prefix: Placed<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
pub(super) struct AttributesTable {
    pub(super) path_matching: Placed<String>,
    pub(super) path_case: Placed<String>,
    pub(super) trailing_slash: Placed<String>,
    pub(super) path_parameters: Placed<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(super) struct RuleTable {
    pub(super) name: Spanned<String>,
    pub(super) limit: Spanned<String>,
    #[serde(default)]
    pub(super) key: Placed<OneOrMany>,
    #[serde(default, rename = "match")]
    pub(super) matching: AttributeValues,
    pub(super) cost: Placed<toml::Value>,
    pub(super) min_cost: Placed<toml::Value>,
    pub(super) max_cost: Placed<toml::Value>,
    pub(super) action: Placed<String>,
    pub(super) max_delay: Placed<String>,
    pub(super) capacity: Placed<u64>,
    pub(super) max_bytes: Placed<u64>,
    pub(super) consistency: Placed<String>,
    pub(super) on_error: Placed<String>,
    pub(super) missing: Placed<String>,
    pub(super) on_expiry: Placed<String>,
    #[serde(default)]
    pub(super) exempt: AttributeValues,
    #[serde(default, rename = "override")]
    pub(super) overrides: Vec<OverrideTable>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(super) struct OverrideTable {
    pub(super) key: Spanned<AttributeValues>,
    pub(super) limit: Spanned<String>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "expected a string or a list of strings")]
pub(super) enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

impl OneOrMany {
    pub(super) fn as_slice(&self) -> &[String] {
        match self {
            Self::One(one) => std::slice::from_ref(one),
            Self::Many(many) => many,
        }
    }
}
