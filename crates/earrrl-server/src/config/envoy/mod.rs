//! The `[envoy]` table, and the configuration files of envoyproxy/ratelimit.
//!
//! The module `file` reads the files; `tree` finds the limit of a request's descriptor.

pub mod algorithm;
pub mod explain;
pub mod file;
pub mod load;
pub mod tree;

use std::path::PathBuf;
use std::sync::Arc;

pub use self::algorithm::EnvoyAlgorithm;
use self::tree::Tree;
pub use self::tree::Wildcard;
use super::ConfigError;
use super::table::Table;
pub use super::yaml::Position;

/// The largest number of files and folders that the field `files` may list.
const MAX_FILES: usize = 10_000;

/// The `[envoy]` table, and the descriptors of the files that it names.
#[derive(Clone, Debug, Default)]
pub struct EnvoyConfig {
    /// The YAML files of envoyproxy/ratelimit, and folders of such files.
    pub files: Vec<PathBuf>,
    /// True if the descriptors of one domain may be in several files.
    pub merge_domains: bool,
    /// The algorithm of limits that do not name one.
    pub algorithm: EnvoyAlgorithm,
    /// True if every answer is OK, whatever its descriptors' statuses are.
    pub shadow_mode: bool,
    /// True if a request that one descriptor denies is still counted under the others, as in
    /// envoyproxy/ratelimit.
    pub drain_denied: bool,
    /// The rate limit headers that clients receive.
    pub headers: Headers,
    /// True if the response to a denied client has a body of type `application/problem+json`.
    pub problem_body: bool,
    /// True if responses to Envoy contain dynamic metadata.
    pub dynamic_metadata: bool,
    /// The control plane that sends the descriptors, if they do not come from files.
    pub control_plane: Option<ControlPlane>,
    /// True if there are also metrics with the names of envoyproxy/ratelimit.
    pub metrics: bool,
    /// The tree of all descriptors; `None` before they are loaded.
    pub tree: Option<Arc<Tree>>,
}

/// The address of a control plane, and the name by which this server identifies itself to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlPlane {
    /// The host and port, as `host:port`.
    pub address: String,
    /// The node id that this server sends to the control plane.
    pub node: String,
    /// The TLS files of the connection; `None` for an unencrypted connection.
    pub tls: Option<PlaneTls>,
}

/// The TLS files for connections to a control plane. They are read again for each connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlaneTls {
    /// The file of CA certificates that verify the control plane; `None` for the system's
    /// certificates.
    pub ca: Option<PathBuf>,
    /// The files of this server's certificate and of its private key.
    pub cert: Option<(PathBuf, PathBuf)>,
}

impl ControlPlane {
    /// Creates a control plane from `host:port`, `http://host:port` or, for TLS,
    /// `https://host:port`.
    ///
    /// # Errors
    /// Returns the forms that an address may have if `address` has none of them.
    pub fn new(address: &str, node: &str) -> Result<Self, String> {
        let encrypted = address.strip_prefix("https://");
        let bare = encrypted
            .or(address.strip_prefix("http://"))
            .unwrap_or(address);
        let parts = bare.rsplit_once(':').filter(|(host, port)| {
            !host.is_empty() && !host.contains('/') && port.parse::<u16>().is_ok()
        });
        if parts.is_none() {
            return Err("expected host:port, http://host:port or https://host:port".to_owned());
        }
        let node = if node.is_empty() { "ratelimit" } else { node };
        Ok(Self {
            address: bare.to_owned(),
            node: node.to_owned(),
            tls: encrypted.map(|_| PlaneTls::default()),
        })
    }

    /// Reads the fields of a control plane; `None` if there is none.
    fn read(table: &Table<'_>) -> Option<Self> {
        let field = table.field("xds");
        let files = ["xds_ca", "xds_cert", "xds_key"];
        for names in [&files[..], &["node"]] {
            table.only_if(field.is_some(), "xds = \"host:port\"", names);
        }
        let field = field?;
        if table.has("files") {
            field.mistake("files is set already; want one of them");
        }
        let node = table.text("node").unwrap_or_default();
        let mut plane = field.checked(|address| Self::new(address, node))?;
        match &mut plane.tls {
            None => table.only_if(false, "xds = \"https://host:port\"", &files),
            Some(tls) => {
                let [ca, cert, key] = files.map(|name| table.text(name).map(PathBuf::from));
                if cert.is_some() != key.is_some() {
                    field.mistake("xds_cert and xds_key: expected both or none");
                }
                tls.ca = ca;
                tls.cert = cert.zip(key);
            }
        }
        Some(plane)
    }
}

/// The rate limit headers that clients receive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Headers {
    /// The headers `RateLimit` and `RateLimit-Policy` of draft-ietf-httpapi-ratelimit-headers-11.
    #[default]
    Draft11,
    /// The headers `RateLimit-Limit`, `RateLimit-Remaining` and `RateLimit-Reset`, as in
    /// envoyproxy/ratelimit.
    Peer,
    /// No rate limit headers.
    Off,
}

impl EnvoyConfig {
    /// Returns true if there are descriptors, or a control plane will send them.
    pub fn has_descriptors(&self) -> bool {
        !self.files.is_empty() || self.control_plane.is_some()
    }

    /// Reads the table.
    pub(super) fn read(table: &Table<'_>) -> Self {
        let files = table
            .field("files")
            .and_then(|field| field.texts(MAX_FILES));
        let files = files.unwrap_or_default().into_iter();
        let algorithms = EnvoyAlgorithm::ALL.map(|known| (known.name(), known));
        let headers = [
            ("draft-11", Headers::Draft11),
            ("envoyproxy-ratelimit", Headers::Peer),
            ("off", Headers::Off),
        ];
        Self {
            files: files.map(|(_, path)| path.into()).collect(),
            merge_domains: table.is_on("merge_domains"),
            algorithm: table.choice("algorithm", &algorithms).unwrap_or_default(),
            drain_denied: table.is_on("drain_denied"),
            headers: table.choice("headers", &headers).unwrap_or_default(),
            problem_body: table.is_on("problem_body"),
            dynamic_metadata: table.is_on("dynamic_metadata"),
            control_plane: ControlPlane::read(table),
            ..Self::default()
        }
    }

    /// Loads the descriptors of all files and returns the warnings. On an error the previous
    /// descriptors stay.
    ///
    /// # Errors
    /// Returns the mistakes of the first invalid file.
    pub fn load(&mut self) -> Result<Vec<String>, ConfigError> {
        if self.files.is_empty() {
            return Ok(Vec::new());
        }
        let loaded = load::load(&self.files, self.merge_domains)?;
        loaded.tree.check(self.algorithm)?;
        self.tree = Some(Arc::new(loaded.tree));
        Ok(loaded.warnings)
    }
}
