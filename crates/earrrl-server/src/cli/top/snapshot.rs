//! The clients and counters at one instant, and their form as a table and as JSON. The clients of several levels are a
//! tree: each is followed by those whose keys begin with its key.

use std::collections::HashMap;
use std::fmt::Write as _;

use earrrl_logs::line::Escaped;
use serde_json::{Value, json};

/// The number of characters of a name that are shown at most.
const SHOWN: usize = 60;

/// The state of a server at one instant.
#[derive(Clone, Debug, Default)]
pub(super) struct TopSnapshot {
    /// The rule whose clients are listed, with those of the levels below it.
    pub(super) rule: String,
    pub(super) rules: Vec<RuleCounts>,
    /// The clients, the one with the highest usage first.
    pub(super) clients: Vec<TopRow>,
    /// False if the server replaces keys by their HMACs.
    pub(super) names_are_keys: bool,
    /// The state of the server: the engine's mode and its memory.
    pub(super) status: String,
}

/// The requests of one rule so far.
#[derive(Clone, Debug, Default)]
pub(super) struct RuleCounts {
    pub(super) name: String,
    /// The name that the rules for all levels share; empty if this is for none.
    pub(super) group: String,
    /// The number of parts of its clients' keys.
    pub(super) key_parts: usize,
    pub(super) limit: String,
    /// The numbers of allowed and of denied requests; `None` if this address does not show them.
    pub(super) requests: Option<(f64, f64)>,
}

/// A client with the highest rates.
#[derive(Clone, Debug, Default)]
pub(super) struct TopRow {
    pub(super) rule: String,
    /// The parts of the key; empty if they are not known.
    pub(super) parts: Vec<Vec<u8>>,
    /// The key; `None` if only the fingerprint is known.
    pub(super) key: Option<Vec<u8>>,
    /// True if the key is longer than what is known of it.
    pub(super) key_is_cut: bool,
    pub(super) fingerprint: String,
    pub(super) rate: Option<f64>,
    pub(super) usage: f64,
    /// The wait until the client is allowed again, in seconds; `None` for never.
    pub(super) retry_after: Option<f64>,
    pub(super) allowed: u64,
    pub(super) denied: u64,
    /// The client as the server describes it.
    pub(super) json: Value,
}

/// A client at its place in the tree.
pub(super) struct TreeRow<'a> {
    pub(super) client: &'a TopRow,
    /// The client's name. Below another client, it is indented and lacks the parts of that client's key.
    pub(super) name: String,
}

impl RuleCounts {
    /// Returns the rule's name without characters that could harm a terminal.
    pub(super) fn shown_name(&self) -> String {
        Escaped(self.name.as_bytes()).to_string()
    }
}

impl TopRow {
    /// Returns the client's name without characters that could harm a terminal, shortened if it is
    /// long.
    pub(super) fn name(&self) -> String {
        match &self.key {
            Some(key) => shortened(key),
            None => format!("#{}", self.fingerprint),
        }
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

/// Returns a name without characters that could harm a terminal, shortened if it is long.
pub(super) fn shortened(name: &[u8]) -> String {
    let mut name = Escaped(name).to_string();
    if let Some((end, _)) = name.char_indices().nth(SHOWN) {
        name.truncate(end);
        name.push('…');
    }
    name
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
        for TreeRow { client, name } in tree(self.clients.iter().collect()) {
            let usage = format!("{:.0}%", 100.0 * client.usage);
            let _ = writeln!(
                out,
                "{:>9} {usage:>7} {:>7} {:>9} {:>9}  {name}",
                client.rate(),
                client.wait(),
                client.allowed,
                client.denied
            );
        }
        out
    }

    /// Returns the snapshot as a JSON object, with the clients of the rule itself as they are over HTTP.
    pub(super) fn json(&self) -> Value {
        let rule = |rule: &RuleCounts| {
            json!({ "name": rule.name, "limit": rule.limit,
                    "allowed": rule.requests.map(|requests| requests.0),
                    "denied": rule.requests.map(|requests| requests.1) })
        };
        let clients = self
            .clients
            .iter()
            .filter(|client| client.rule == self.rule);
        json!({
            "rule": self.rule,
            "status": self.status,
            "names_are_keys": self.names_are_keys,
            "rules": self.rules.iter().map(rule).collect::<Vec<_>>(),
            "clients": clients.map(|client| &client.json).collect::<Vec<_>>(),
        })
    }
}

/// Returns the clients in the order that they have, each followed by those below it. A client is not indented if none
/// above it is listed.
pub(super) fn tree(clients: Vec<&TopRow>) -> Vec<TreeRow<'_>> {
    let ranked = clients.iter().zip(0..);
    let ranks: HashMap<&[Vec<u8>], usize> = ranked
        .map(|(client, rank)| (&*client.parts, rank))
        .collect();
    let mut rows = Vec::new();
    for (rank, client) in clients.into_iter().enumerate() {
        let mut place = Vec::new();
        let mut name = client.name();
        for count in 1..client.parts.len() {
            let (upper, own) = client.parts.split_at(count);
            if let Some(rank) = ranks.get(upper) {
                place.push(*rank);
                name = "  ".repeat(place.len()) + &shortened(&own.join(&b' '));
            }
        }
        place.push(rank);
        rows.push((place, TreeRow { client, name }));
    }
    rows.sort_by(|(a, _), (b, _)| a.cmp(b));
    rows.into_iter().map(|(_, row)| row).collect()
}
