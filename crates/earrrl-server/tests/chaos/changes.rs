//! Reloads valid and invalid configurations, and replaces tokens and certificates.

use std::cell::Cell;
use std::fmt::Write as _;
use std::path::PathBuf;

use rustix::process::Signal;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use serde_json::Value;

use super::clients::get;
use super::generation::Generation;
use super::{Chaos, HELD, client, replace};
use crate::support::certificates::{Authority, shake};
use crate::support::until;

/// Configurations that the server must reject.
const BAD: [&str; 5] = [
    "",
    "[[rule]]\nname = \"bucket\"\nlimt = \"",
    "[[rule]]\nname = \"bucket\"\nlimit = \"gcra 1/s burst=0\"\n",
    "[[rule]]\nname = \"bucket\"\nlimit = \"gcra 1/s burst=3\"\ncapacity = 10_000_000_000\n",
    "\u{0}\u{1}",
];

pub(super) struct Changes<'a> {
    pub(super) file: PathBuf,
    chaos: &'a Chaos,
    authority: Authority,
    folder: tempfile::TempDir,
    nth: Cell<u32>,
    bad: Cell<u32>,
}

impl<'a> Changes<'a> {
    pub(super) fn new(chaos: &'a Chaos, authority: Authority) -> Self {
        authority.issue("server", &["localhost"]);
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("limits.toml");
        let changes = Self {
            file,
            chaos,
            authority,
            folder,
            nth: Cell::new(1),
            bad: Cell::new(0),
        };
        changes.write_tokens(1);
        chaos.use_token(token(1));
        std::fs::write(&changes.file, changes.config(1)).unwrap();
        changes
    }

    /// Returns the numbers of valid and of invalid reloads so far.
    pub(super) fn counts(&self) -> (u32, u32) {
        (self.nth.get(), self.bad.get())
    }

    /// Makes a valid reload with new tokens, then an invalid one, and replaces the certificate.
    pub(super) fn next(&self, generation: &Generation) {
        self.authority.issue("server", &["localhost"]);
        let nth = self.nth.replace(self.nth.get() + 1) + 1;
        self.write_tokens(nth);
        replace(&self.file, &self.config(nth));
        until("the rules are other ones", || {
            generation.signal(Signal::HUP);
            self.burst() == u64::from(nth)
        });
        self.chaos.use_token(token(nth));

        let bad = self.bad.replace(self.bad.get() + 1) as usize;
        replace(&self.file, BAD[bad % BAD.len()]);
        until("it is refused", || {
            generation.signal(Signal::HUP);
            let ready: Value = serde_json::from_str(&get(self.chaos, "/readyz")).unwrap();
            ready["status"] == "ready" && ready["reload_error"].is_string()
        });
        assert_eq!(
            self.burst(),
            u64::from(nth),
            "the rules before are in force"
        );
        // Restores a valid file, so that the server can be started again.
        replace(&self.file, &self.config(nth));
        self.until_certified();
    }

    /// Waits until new connections are shown the certificate in the file.
    fn until_certified(&self) {
        let issued = CertificateDer::from_pem_file(self.authority.path("server.pem")).unwrap();
        until("the certificate is the new one", || {
            // A new client has no session tickets, so the handshake shows the certificate.
            let shaken = shake(&client(&self.authority), self.chaos.http);
            shaken.is_ok_and(|tls| tls.conn.peer_certificates().unwrap()[0] == issued)
        });
    }

    /// Returns the burst of the rule `bucket` that is in force.
    fn burst(&self) -> u64 {
        let rules: Value = serde_json::from_str(&get(self.chaos, "/v1/rules")).unwrap();
        let rules = rules["rules"].as_array().unwrap();
        rules.iter().find(|rule| rule["name"] == "bucket").unwrap()["quota"]
            .as_u64()
            .unwrap()
    }

    /// Returns a configuration whose limit, half-life, window and capacity differ each time, with a
    /// rule added or removed.
    fn config(&self, nth: u32) -> String {
        let tokens = self.tokens();
        let half_life = 1 + nth % 7;
        let window = 1 + nth % 3;
        let capacity = 10_000 * (1 + nth % 2);
        let mut text = format!(
            "[server]\nmax_held_memory = {HELD}\ncheck_token_file = \"{}\"\nrequest_timeout = \"5s\"\n\
             [engine]\ncapacity = 20_000\n\
             [[rule]]\nname = \"bucket\"\nlimit = \"gcra 1/s burst={nth}\"\ncapacity = {capacity}\n\
             [[rule]]\nname = \"average\"\nlimit = \"recent-average 1/s half-life={half_life}s\"\n\
             [[rule]]\nname = \"window\"\nlimit = \"fixed-window 10/{window}m\"\ncapacity = 1000\n{}",
            tokens.display(),
            self.authority.table("listeners = [\"http\"]")
        );
        if nth.is_multiple_of(2) {
            let _ = write!(
                text,
                "[[rule]]\nname = \"r{nth}\"\nlimit = \"gcra 1/s burst=9\"\n"
            );
        }
        text
    }

    fn tokens(&self) -> PathBuf {
        self.folder.path().join("tokens")
    }

    /// Writes the present token and the next one; both are valid, so that no client is refused
    /// during the exchange.
    fn write_tokens(&self, nth: u32) {
        let mut text = String::new();
        for token in [token(nth), token(nth - 1)] {
            let _ = writeln!(text, "{token}");
        }
        std::fs::write(self.tokens(), text).unwrap();
    }
}

fn token(nth: u32) -> String {
    format!("token-of-the-reload-{nth:08}")
}
