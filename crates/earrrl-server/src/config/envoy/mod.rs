//! The `[envoy]` table, and the configuration files of envoyproxy/ratelimit.
//!
//! The module `file` reads the files; `tree` finds the limit of a request's descriptor.

pub mod algorithm;
pub mod explain;
pub mod file;
pub mod load;
pub mod tree;
pub mod unit;
mod wildcard;
pub mod xds;

use std::path::PathBuf;
use std::sync::Arc;

use toml::Spanned;

pub use self::algorithm::EnvoyAlgorithm;
use self::tree::Tree;
pub use self::wildcard::Wildcard;
use super::problem::Problems;
use super::suggest::nearest;
pub use super::yaml::Position;
use super::{ConfigError, file as toml_file};

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

/// Returns the address `host:port` of a peer that speaks gRPC, and the TLS settings if its URL begins with `https://`.
///
/// # Errors
/// Returns the forms that the text may have if it has none of them.
pub fn peer(text: &str) -> Result<(String, Option<PlaneTls>), String> {
    let encrypted = text.strip_prefix("https://");
    let bare = encrypted.or(text.strip_prefix("http://")).unwrap_or(text);
    let parts = bare.rsplit_once(':').filter(|(host, port)| {
        !host.is_empty() && !host.contains('/') && port.parse::<u16>().is_ok()
    });
    if parts.is_none() {
        return Err("expected host:port, http://host:port or https://host:port".to_owned());
    }
    Ok((bare.to_owned(), encrypted.map(|_| PlaneTls::default())))
}

impl ControlPlane {
    /// Creates a control plane from `host:port`, `http://host:port` or, for TLS,
    /// `https://host:port`.
    ///
    /// # Errors
    /// Returns the forms that an address may have if `address` has none of them.
    pub fn new(address: &str, node: &str) -> Result<Self, String> {
        let (address, tls) = peer(address)?;
        let node = if node.is_empty() { "ratelimit" } else { node };
        Ok(Self {
            address,
            node: node.to_owned(),
            tls,
        })
    }

    /// Sets the TLS files of the connection to the control plane.
    ///
    /// # Errors
    /// Returns an error if the connection does not use TLS, or if only one of certificate and
    /// private key is set.
    pub fn with_files(mut self, files: PlaneFiles) -> Result<Self, String> {
        let cert = match (files.cert, files.key) {
            (Some(cert), Some(key)) => Some((cert, key)),
            (None, None) => None,
            _ => return Err("a certificate and its key: expected both or none".to_owned()),
        };
        match &mut self.tls {
            Some(tls) => *tls = PlaneTls { ca: files.ca, cert },
            None if files.ca.is_some() || cert.is_some() => {
                return Err("files for TLS: expected an address with https://".to_owned());
            }
            None => {}
        }
        Ok(self)
    }
}

/// The TLS files for a control plane as they are configured, before validation.
#[derive(Clone, Debug, Default)]
pub struct PlaneFiles {
    /// The file of the CA certificates that verify the control plane.
    pub ca: Option<PathBuf>,
    /// The file of this server's certificate.
    pub cert: Option<PathBuf>,
    /// The file of the certificate's private key.
    pub key: Option<PathBuf>,
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

    pub(super) fn validate(file: &toml_file::EnvoyTable, problems: &mut Problems) -> Self {
        let paths = file.files.as_ref().map(|field| field.get_ref().as_slice());
        let algorithms = EnvoyAlgorithm::ALL.map(|known| (known.name(), known));
        let headers = [
            ("draft-11", Headers::Draft11),
            ("envoyproxy-ratelimit", Headers::Peer),
            ("off", Headers::Off),
        ];
        Self {
            files: paths
                .unwrap_or_default()
                .iter()
                .map(PathBuf::from)
                .collect(),
            merge_domains: file.merge_domains,
            algorithm: word("algorithm", file.algorithm.as_ref(), &algorithms, problems),
            shadow_mode: false,
            drain_denied: file.drain_denied,
            headers: word("headers", file.headers.as_ref(), &headers, problems),
            problem_body: file.problem_body,
            dynamic_metadata: file.dynamic_metadata,
            control_plane: control_plane(file, problems),
            metrics: false,
            tree: None,
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

fn control_plane(file: &toml_file::EnvoyTable, problems: &mut Problems) -> Option<ControlPlane> {
    let Some(field) = &file.xds else {
        let ca = &file.xds_ca;
        let cert = &file.xds_cert;
        let key = &file.xds_key;
        let all = [
            ("xds_ca", ca),
            ("xds_cert", cert),
            ("xds_key", key),
            ("node", &file.node),
        ];
        for (name, field) in all
            .into_iter()
            .filter_map(|(name, field)| Some((name, field.as_ref()?)))
        {
            problems.add(
                field.span(),
                format!("{name}: only with xds = \"host:port\""),
            );
        }
        return None;
    };
    if file.files.is_some() {
        problems.add(field.span(), "xds: files is set already; want one of them");
    }
    let path = |name: &toml_file::Placed<String>| name.as_ref().map(|it| it.get_ref().into());
    let files = PlaneFiles {
        ca: path(&file.xds_ca),
        cert: path(&file.xds_cert),
        key: path(&file.xds_key),
    };
    let node = file.node.as_ref().map_or("", |node| node.get_ref());
    let plane = ControlPlane::new(field.get_ref(), node);
    let plane = plane.and_then(|plane| plane.with_files(files));
    plane
        .map_err(|why| problems.add(field.span(), format!("xds: {why}")))
        .ok()
}

/// Validates that a field has one of several allowed words.
fn word<T: Copy + Default>(
    name: &str,
    field: Option<&Spanned<String>>,
    known: &[(&str, T)],
    problems: &mut Problems,
) -> T {
    let Some(field) = field else {
        return T::default();
    };
    let text = field.get_ref().as_str();
    if let Some((_, value)) = known.iter().find(|(word, _)| *word == text) {
        return *value;
    }
    let words: Vec<_> = known.iter().map(|(word, _)| *word).collect();
    let meant = nearest(text, words.iter().copied());
    let meant = meant.map_or_else(String::new, |word| format!("; did you mean `{word}`?"));
    problems.expected(name, field, format!("{}{meant}", words.join(", ")));
    T::default()
}
