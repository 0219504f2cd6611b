//! The certificates of TLS connections.

use std::sync::Arc;

use earrrl::RuleError;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

/// Certificates for TLS, in PEM.
#[derive(Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Certificates {
    /// The certificate authority that signed Redis's certificate; `None` for the platform's
    /// authorities.
    pub authority: Option<Vec<u8>>,
    /// This client's own certificate and key, if Redis requires them.
    pub client: Option<(Vec<u8>, Vec<u8>)>,
}

impl Certificates {
    /// Returns certificates that trust one authority. This client has no certificate of its own.
    ///
    /// ```
    /// use earrrl_redis::{Certificates, Options};
    ///
    /// let authority = b"-----BEGIN CERTIFICATE-----".to_vec(); // the whole file
    /// let mut options = Options::new("rediss://redis.example:6380");
    /// options.certificates = Some(Certificates::trusting(authority));
    /// ```
    pub fn trusting(authority: Vec<u8>) -> Self {
        Self {
            authority: Some(authority),
            client: None,
        }
    }

    /// Checks that the authority is one or more certificates, if it is given.
    ///
    /// ```
    /// use earrrl_redis::Certificates;
    ///
    /// let error = Certificates::trusting(b"a text".to_vec()).check_authority().unwrap_err();
    /// assert_eq!(error.to_string(), "no certificate; expected those of authorities, in PEM");
    /// ```
    ///
    /// # Errors
    /// Returns an error if there is no certificate, or if one cannot be used.
    pub fn check_authority(&self) -> Result<(), RuleError> {
        let Some(authority) = &self.authority else {
            return Ok(());
        };
        let found = certificates(authority)?;
        if found.is_empty() {
            return Err(wrong(
                "no certificate; expected those of authorities, in PEM",
            ));
        }
        let mut roots = RootCertStore::empty();
        found
            .into_iter()
            .try_for_each(|found| roots.add(found))
            .map_err(|error| {
                wrong(&format!(
                    "unusable: {error}; expected certificates of authorities"
                ))
            })
    }

    /// Checks that this client's certificate and key belong together, if they are given.
    ///
    /// ```
    /// assert!(earrrl_redis::Certificates::default().check_client().is_ok());
    /// ```
    ///
    /// # Errors
    /// Returns an error if there is no certificate or no key, or if the key is another one's.
    pub fn check_client(&self) -> Result<(), RuleError> {
        let Some((certificate, key)) = &self.client else {
            return Ok(());
        };
        let chain = certificates(certificate)?;
        if chain.is_empty() {
            return Err(wrong(
                "no certificate; expected this client's certificate, in PEM",
            ));
        }
        let key = PrivateKeyDer::from_pem_slice(key)
            .map_err(|error| wrong(&format!("no private key: {error}; expected one in PEM")))?;
        let provider = CryptoProvider::get_default().cloned();
        let provider = provider.unwrap_or_else(|| Arc::new(ring::default_provider()));
        let built = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map(|builder| builder.with_root_certificates(RootCertStore::empty()))
            .and_then(|builder| builder.with_client_auth_cert(chain, key));
        let want = "expected a certificate and the key that belongs to it";
        built
            .map(drop)
            .map_err(|error| wrong(&format!("{error}; {want}")))
    }

    pub(crate) fn to_redis(&self) -> redis::TlsCertificates {
        let client = self.client.clone();
        redis::TlsCertificates {
            client_tls: client.map(|(client_cert, client_key)| redis::ClientTlsConfig {
                client_cert,
                client_key,
            }),
            root_cert: self.authority.clone(),
        }
    }
}

impl std::fmt::Debug for Certificates {
    /// Omits the contents, since they include a private key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Certificates(…)")
    }
}

/// Returns the certificates in a text in PEM.
fn certificates(text: &[u8]) -> Result<Vec<CertificateDer<'static>>, RuleError> {
    let found: Result<_, pem::Error> = CertificateDer::pem_slice_iter(text).collect();
    found.map_err(|error| wrong(&format!("unusable: {error}; expected certificates in PEM")))
}

fn wrong(problem: &str) -> RuleError {
    RuleError::new(problem.to_owned())
}
