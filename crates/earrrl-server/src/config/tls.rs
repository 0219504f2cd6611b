//! The `[server.tls]` table, which configures TLS for the server's listeners.

use std::ops::Range;
use std::path::PathBuf;

use super::listen::Protocol;
use super::table::{Field, Table};
use super::value::path_of;

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
pub(super) fn places(table: &Table<'_>) -> Vec<(PathBuf, Range<usize>)> {
    let fields = ["cert", "key", "client_ca"].map(|name| table.field(name));
    let place = |field: Field<'_>| Some((path_of(field.text()?).ok()?, field.span()));
    let named = fields.into_iter().flatten().filter(|field| field.is_text());
    named.filter_map(place).collect()
}
