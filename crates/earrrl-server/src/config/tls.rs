//! The `[server.tls]` table, which configures TLS for the server's listeners.

use std::ops::Range;
use std::path::PathBuf;

use super::file;
use super::listen::Protocol;
use super::problem::Problems;
use super::value::{listeners, path_of};

/// The validated `[server.tls]` table. Its files are read when the server starts and whenever they
/// change.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
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
    pub(super) fn validate(file: &file::TlsTable, problems: &mut Problems) -> Self {
        let path = |field: &toml::Spanned<String>, problems: &mut Problems| {
            if field.get_ref().is_empty() {
                problems.add(field.span(), "expected the path of a PEM file");
            }
            path_of(field.get_ref()).unwrap_or_else(|error| {
                problems.add(field.span(), error);
                PathBuf::new()
            })
        };
        let client_ca = file.client_ca.as_ref().map(|field| path(field, problems));
        if let (None, Some(name)) = (&client_ca, file.client_names.first()) {
            problems.add(
                name.span(),
                "client_names: only with client_ca, without which clients show no certificate",
            );
        }
        for name in file
            .client_names
            .iter()
            .filter(|name| name.get_ref().is_empty())
        {
            problems.add(name.span(), "client_names: expected a DNS name or a URI");
        }
        Self {
            cert: path(&file.cert, problems),
            key: path(&file.key, problems),
            client_ca,
            client_names: file
                .client_names
                .iter()
                .map(|name| name.get_ref().clone())
                .collect(),
            // The default leaves out `admin`, since health probes have no certificates.
            listeners: match &file.listeners {
                None => vec![Protocol::Http, Protocol::Resp, Protocol::Grpc],
                Some(names) => listeners("listeners", names, problems),
            },
        }
    }

    /// Returns true if the listener of this protocol uses TLS.
    pub fn covers(&self, protocol: Protocol) -> bool {
        self.listeners.contains(&protocol)
    }
}

/// Returns the paths of the configured TLS files, with their places in the text.
pub(super) fn places(file: &file::TlsTable) -> Vec<(PathBuf, Range<usize>)> {
    let fields = [Some(&file.cert), Some(&file.key), file.client_ca.as_ref()];
    let place =
        |field: &toml::Spanned<String>| Some((path_of(field.get_ref()).ok()?, field.span()));
    fields.into_iter().flatten().filter_map(place).collect()
}
