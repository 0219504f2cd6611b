//! The clients and counters at one instant, and their form as a table and as JSON.

use std::fmt::Write as _;
use std::time::Duration;

use earrrl::{Name, Nanos, TopClient, Wait};
use earrrl_logs::line::Escaped;
use earrrl_server::protocol::http::insert_key;
use serde_json::{Value, json};

/// The number of characters of a name that are shown at most.
const SHOWN: usize = 60;

/// The state of a source at one instant.
#[derive(Clone, Debug, Default)]
pub(super) struct TopSnapshot {
    /// The rule whose clients are listed.
    pub(super) rule: String,
    pub(super) rules: Vec<RuleCounts>,
    pub(super) clients: Vec<TopRow>,
    /// False if the source replaces keys by their HMACs.
    pub(super) names_are_keys: bool,
    /// The state of the source: the engine's mode and its memory, or the progress in the log.
    pub(super) status: String,
}

/// The requests of one rule so far.
#[derive(Clone, Debug, Default)]
pub(super) struct RuleCounts {
    pub(super) name: String,
    pub(super) limit: String,
    /// The numbers of allowed and of denied requests; `None` if the source does not know them.
    pub(super) requests: Option<(f64, f64)>,
}

/// A client with the highest rates.
#[derive(Clone, Debug, Default)]
pub(super) struct TopRow {
    /// The key; `None` if only the fingerprint is known.
    pub(super) key: Option<Vec<u8>>,
    /// True if the key is longer than what is known of it.
    pub(super) key_is_cut: bool,
    pub(super) fingerprint: String,
    pub(super) rate: Option<f64>,
    pub(super) usage: f64,
    pub(super) limit: f64,
    pub(super) remaining: u64,
    /// The wait until the client is allowed again, in seconds; `None` for never.
    pub(super) retry_after: Option<f64>,
    pub(super) allowed: u64,
    pub(super) denied: u64,
    /// The instant at which the client was named, in seconds since the Unix epoch.
    pub(super) first_seen: Option<f64>,
    pub(super) first_denied: Option<f64>,
    pub(super) last_denied: Option<f64>,
}

impl RuleCounts {
    /// Returns the rule's name without characters that could harm a terminal.
    pub(super) fn shown_name(&self) -> String {
        Escaped(self.name.as_bytes()).to_string()
    }
}

impl TopRow {
    /// Makes a client of its figures, and of its name if that is known.
    pub(super) fn of(figures: TopClient, name: Option<Name>) -> Self {
        let (allowed, denied) = name
            .as_ref()
            .map_or((0, 0), |name| (name.allowed, name.denied));
        let seconds = |at: Nanos| Duration::from_nanos(at.get()).as_secs_f64();
        Self {
            key_is_cut: name.as_ref().is_some_and(|name| name.is_cut),
            first_seen: name.as_ref().map(|name| seconds(name.first_seen)),
            first_denied: name
                .as_ref()
                .and_then(|name| name.first_denied)
                .map(seconds),
            last_denied: name.as_ref().and_then(|name| name.last_denied).map(seconds),
            key: name.map(|name| name.name.into_vec()),
            fingerprint: format!("{:010x}", figures.fingerprint),
            rate: figures.rate,
            usage: figures.usage,
            limit: figures.limit,
            remaining: figures.remaining,
            retry_after: match figures.retry_after {
                Wait::For(wait) => Some(wait.as_secs_f64()),
                Wait::Never => None,
            },
            allowed,
            denied,
        }
    }

    /// Returns the client's name without characters that could harm a terminal, shortened if it is
    /// long.
    pub(super) fn name(&self) -> String {
        let Some(key) = &self.key else {
            return format!("#{}", self.fingerprint);
        };
        let mut name = Escaped(key).to_string();
        if let Some((end, _)) = name.char_indices().nth(SHOWN) {
            name.truncate(end);
            name.push('…');
        }
        name
    }

    /// Returns the wait until the client is allowed again; empty if it is allowed now.
    pub(super) fn wait(&self) -> String {
        match self.retry_after {
            None => "never".to_owned(),
            Some(seconds) if seconds <= 0.0 => String::new(),
            Some(seconds) if seconds < 100.0 => format!("{seconds:.1}s"),
            Some(seconds) if seconds < 6000.0 => format!("{:.0}m", seconds / 60.0),
            Some(seconds) => format!("{:.1}h", seconds / 3600.0),
        }
    }

    /// Returns the measured rate; a bucket measures none.
    pub(super) fn rate(&self) -> String {
        self.rate.map_or_else(|| "-".to_owned(), figure)
    }
}

/// Returns a number with three significant digits.
pub(super) fn figure(value: f64) -> String {
    match value {
        value if value >= 1000.0 => format!("{value:.0}"),
        value if value >= 10.0 => format!("{value:.1}"),
        value => format!("{value:.3}"),
    }
}

impl TopSnapshot {
    /// Returns the snapshot as a table with a header.
    pub(super) fn table(&self) -> String {
        let mut out = String::new();
        for rule in &self.rules {
            let name = rule.shown_name();
            let RuleCounts {
                limit, requests, ..
            } = rule;
            let (allowed, denied) = requests.map_or(("?".to_owned(), "?".to_owned()), |requests| {
                (requests.0.to_string(), requests.1.to_string())
            });
            // Writing to a string does not fail.
            let _ = writeln!(out, "{name}  {limit}  {allowed} allowed, {denied} denied");
        }
        if self.rules.iter().any(|rule| rule.requests.is_none()) {
            let _ = writeln!(out, "{}", self.status);
        }
        let _ = writeln!(
            out,
            "\n{:>9} {:>7} {:>7} {:>9} {:>9}  CLIENT",
            "RATE", "USAGE", "WAIT", "ALLOWED", "DENIED"
        );
        for client in &self.clients {
            let usage = format!("{:.0}%", 100.0 * client.usage);
            let _ = writeln!(
                out,
                "{:>9} {usage:>7} {:>7} {:>9} {:>9}  {}",
                client.rate(),
                client.wait(),
                client.allowed,
                client.denied,
                client.name()
            );
        }
        out
    }

    /// Returns the snapshot as a JSON object. As over HTTP, a key that is not UTF-8 is in `key_b64`.
    pub(super) fn json(&self) -> Value {
        let rule = |rule: &RuleCounts| {
            json!({ "name": rule.name, "limit": rule.limit,
                    "allowed": rule.requests.map(|requests| requests.0),
                    "denied": rule.requests.map(|requests| requests.1) })
        };
        let client = |one: &TopRow| {
            let mut shown = json!({ "key": null, "key_is_cut": one.key_is_cut, "fingerprint": one.fingerprint,
                    "rate": one.rate, "usage": one.usage, "limit": one.limit,
                    "remaining": one.remaining, "retry_after": one.retry_after,
                    "allowed": one.allowed, "denied": one.denied, "first_seen": one.first_seen,
                    "first_denied": one.first_denied, "last_denied": one.last_denied });
            if let Some(key) = &one.key {
                insert_key(&mut shown, key);
            }
            shown
        };
        json!({
            "rule": self.rule,
            "status": self.status,
            "names_are_keys": self.names_are_keys,
            "rules": self.rules.iter().map(rule).collect::<Vec<_>>(),
            "clients": self.clients.iter().map(client).collect::<Vec<_>>(),
        })
    }
}
