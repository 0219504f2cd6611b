//! The configuration as it is written.

use std::collections::BTreeMap;

use serde::Deserialize;
use toml::Spanned;

/// A field with its place in the file.
pub(super) type Field<T> = Option<Spanned<T>>;
/// Attributes, each with one value or a list.
pub(super) type AttributeValues = BTreeMap<Spanned<String>, Spanned<OneOrMany>>;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
pub(super) struct File {
    pub(super) version: Field<u64>,
    pub(super) server: ServerTable,
    pub(super) engine: EngineTable,
    pub(super) client_address: ClientAddressTable,
    pub(super) attributes: AttributesTable,
    pub(super) authz: AuthzTable,
    pub(super) rules: Field<String>,
    pub(super) envoy: EnvoyTable,
    pub(super) metrics: MetricsTable,
    pub(super) rule: Vec<Spanned<RuleTable>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
pub(super) struct AuthzTable {
    pub(super) deny_status: Field<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
pub(super) struct ServerTable {
    pub(super) http: Field<String>,
    pub(super) resp: Field<String>,
    pub(super) admin: Field<String>,
    pub(super) grpc: Field<String>,
    pub(super) max_connection_age: Field<String>,
    pub(super) allow_remote: bool,
    pub(super) threads: Field<u64>,
    pub(super) max_connections: Field<u64>,
    pub(super) max_connections_per_address: Field<u64>,
    pub(super) max_body: Field<u64>,
    pub(super) max_held_memory: Field<u64>,
    pub(super) idle_timeout: Field<String>,
    pub(super) request_timeout: Field<String>,
    pub(super) shutdown_delay: Field<String>,
    pub(super) shutdown_timeout: Field<String>,
    pub(super) check_token: Field<String>,
    pub(super) check_token_file: Field<String>,
    pub(super) admin_token: Field<String>,
    pub(super) admin_token_file: Field<String>,
    pub(super) allow_inline_rules: bool,
    pub(super) x_ratelimit_headers: bool,
    pub(super) socket_mode: Field<String>,
    pub(super) tls: Option<TlsTable>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(super) struct TlsTable {
    pub(super) cert: Spanned<String>,
    pub(super) key: Spanned<String>,
    pub(super) client_ca: Field<String>,
    #[serde(default)]
    pub(super) client_names: Vec<Spanned<String>>,
    pub(super) listeners: Option<Vec<Spanned<String>>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
pub(super) struct EnvoyTable {
    pub(super) files: Field<OneOrMany>,
    pub(super) merge_domains: bool,
    pub(super) algorithm: Field<String>,
    pub(super) drain_denied: bool,
    pub(super) headers: Field<String>,
    pub(super) problem_body: bool,
    pub(super) dynamic_metadata: bool,
    pub(super) xds: Field<String>,
    pub(super) xds_ca: Option<String>,
    pub(super) xds_cert: Option<String>,
    pub(super) xds_key: Option<String>,
    pub(super) node: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
pub(super) struct MetricsTable {
    pub(super) envoy: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
pub(super) struct EngineTable {
    pub(super) capacity: Field<u64>,
    pub(super) redis: Field<OneOrMany>,
    pub(super) redis_file: Field<String>,
    pub(super) cluster: Field<bool>,
    pub(super) sentinel: Field<String>,
    pub(super) sync: Field<String>,
    pub(super) nodes: Field<u64>,
    pub(super) prefix: Field<String>,
    pub(super) policy: Field<String>,
    pub(super) deadline: Field<String>,
    pub(super) hmac_key: Field<String>,
    pub(super) hmac_key_file: Field<String>,
    pub(super) ca_file: Field<String>,
    pub(super) cert_file: Field<String>,
    pub(super) key_file: Field<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
pub(super) struct ClientAddressTable {
    pub(super) trusted_proxies: Vec<Spanned<String>>,
    pub(super) hops: Field<u64>,
    pub(super) ipv4_prefix: Field<u64>,
    pub(super) ipv6_prefix: Field<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
pub(super) struct AttributesTable {
    pub(super) path_case: Field<String>,
    pub(super) trailing_slash: Field<String>,
    pub(super) path_parameters: Field<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(super) struct RuleTable {
    pub(super) name: Spanned<String>,
    pub(super) limit: Spanned<String>,
    #[serde(default)]
    pub(super) key: Field<OneOrMany>,
    #[serde(default, rename = "match")]
    pub(super) matching: AttributeValues,
    pub(super) cost: Field<toml::Value>,
    pub(super) max_cost: Field<toml::Value>,
    pub(super) action: Field<String>,
    pub(super) max_delay: Field<String>,
    pub(super) capacity: Field<u64>,
    pub(super) consistency: Field<String>,
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
