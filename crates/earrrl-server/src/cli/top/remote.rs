//! The clients and counters of a running server at one instant, from its HTTP API; and their form as a table and as
//! JSON. The clients of several levels are a tree: each is followed by those whose keys begin with its key.

use std::collections::HashMap;
use std::fmt::Write as _;

use axum::http::Method;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use earrrl_logs::line::Escaped;
use earrrl_server::service::key::split;
use percent_encoding::{NON_ALPHANUMERIC, percent_encode};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::cli::http_client::{HttpClient, detail};

/// A running server.
pub(super) struct Remote {
    pub(super) client: HttpClient,
    /// The number of clients of each rule that are shown.
    pub(super) count: usize,
}

impl Remote {
    /// Sends a request, and returns the body of the response.
    fn ask(&self, method: Method, path: &str) -> Result<String, String> {
        match self.client.send(method, path, None)? {
            (200..300, body) => Ok(body),
            (status, body) => Err(detail(status, &body)),
        }
    }

    fn json(&self, path: &str) -> Result<Value, String> {
        let body = self.ask(Method::GET, path)?;
        serde_json::from_str(&body).map_err(|error| format!("{path}: no JSON: {error}"))
    }

    /// Returns the present state, with the clients of the named rule or of the first one.
    pub(super) fn snapshot(&self, rule: Option<&str>) -> Result<TopSnapshot, String> {
        let mut listed = self.json("/v1/rules")?;
        let rules: Vec<RuleCounts> = serde_json::from_value(listed["rules"].take())
            .map_err(|error| format!("/v1/rules: {error}"))?;
        let first = || rules.first().map(|rule| rule.name.clone());
        let rule = rule
            .map(str::to_owned)
            .or_else(first)
            .ok_or("the server has no rules")?;
        let (clients, names_are_keys) = self.clients(&rule, &rules)?;
        let ready = self.ask(Method::GET, "/readyz").unwrap_or_default();
        let ready: Value = serde_json::from_str(&ready).unwrap_or_default();
        // With an admin listener, metrics are served only there.
        let metrics = self.ask(Method::GET, "/metrics").unwrap_or_default();
        Ok(TopSnapshot {
            rule,
            rules,
            clients,
            names_are_keys,
            status: status(&ready, &metrics),
        })
    }

    /// Returns the clients of the rule and of the levels below it, and true if their names are keys.
    fn clients(&self, rule: &str, rules: &[RuleCounts]) -> Result<(Vec<TopRow>, bool), String> {
        let known = rules.iter().position(|known| known.name == rule);
        let is_level = |one: &&RuleCounts, of: &RuleCounts| {
            one.name == of.name || one.group.is_some() && one.group == of.group
        };
        let levels: Vec<(&str, usize)> = match known {
            None => vec![(rule, 0)],
            Some(at) => {
                let levels = rules[at..].iter().filter(|one| is_level(one, &rules[at]));
                levels.map(|one| (&*one.name, one.key.len())).collect()
            }
        };
        let mut clients = Vec::new();
        let mut names_are_keys = true;
        for (level, parts) in levels {
            let name = percent_encode(level.as_bytes(), NON_ALPHANUMERIC);
            let top = self.json(&format!("/v1/top?rule={name}&limit={}", self.count));
            let top = top.map_err(|error| match known {
                Some(_) => error,
                None => format!("{error}; {}", listed(rules)),
            })?;
            let listed = top["clients"].as_array().into_iter().flatten();
            clients.extend(listed.map(|client| client_of(client, level, parts)));
            names_are_keys = top["names_are_keys"] != false;
        }
        clients.sort_by(|a, b| b.usage.total_cmp(&a.usage));
        Ok((clients, names_are_keys))
    }

    /// Resets a client.
    pub(super) fn reset(&self, rule: &str, key: &[u8]) -> Result<(), String> {
        let key = percent_encode(key, NON_ALPHANUMERIC);
        self.ask(Method::DELETE, &format!("/v1/clients/{rule}/{key}"))
            .map(drop)
    }
}

/// Returns the names of a server's rules for an error.
fn listed(rules: &[RuleCounts]) -> String {
    let names: Vec<_> = rules.iter().map(|rule| rule.name.as_str()).collect();
    format!("the server's rules are {}", names.join(", "))
}

/// Returns a client of a rule whose keys have `key_parts` parts, or 0 if their number is not known.
fn client_of(client: &Value, rule: &str, key_parts: usize) -> TopRow {
    let text = |field: &str| client[field].as_str();
    let number = |field: &str| client[field].as_f64();
    let count = |field: &str| client[field].as_u64().unwrap_or_default();
    let decoded = text("key_b64").and_then(|key| STANDARD.decode(key).ok());
    let key = text("key").map(|key| key.as_bytes().to_vec()).or(decoded);
    let key_is_cut = client["key_is_cut"] == true;
    let whole = key.as_ref().filter(|_| !key_is_cut);
    let parts = whole.and_then(|key| {
        Some(
            split(key, key_parts)?
                .iter()
                .map(|part| part.to_vec())
                .collect(),
        )
    });
    TopRow {
        rule: rule.to_owned(),
        parts: parts.unwrap_or_default(),
        key,
        key_is_cut,
        fingerprint: text("fingerprint").unwrap_or_default().to_owned(),
        rate: number("rate"),
        usage: number("usage").unwrap_or_default(),
        retry_after: number("retry_after"),
        allowed: count("allowed"),
        denied: count("denied"),
        json: client.clone(),
    }
}

/// Returns the engine's mode, the server's memory, and the reason why a reload was refused.
fn status(ready: &Value, metrics: &str) -> String {
    let mode = ready["engine"]["mode"].as_str().unwrap_or("unknown");
    let resident = metrics.lines().find_map(|line| {
        line.strip_prefix("process_resident_memory_bytes ")?
            .trim()
            .parse::<f64>()
            .ok()
    });
    let mut status = format!("engine {}", Escaped(mode.as_bytes()));
    if let Some(bytes) = resident {
        status.push_str(&format!(", {:.0} MB", bytes / 1e6));
    }
    if let Some(error) = ready["reload_error"].as_str() {
        status.push_str(&format!(", reload failed: {}", Escaped(error.as_bytes())));
    }
    status
}

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

/// A rule, with the numbers of its requests so far.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct RuleCounts {
    pub(super) name: String,
    /// The name that the rules for all levels share.
    pub(super) group: Option<String>,
    /// The parts of its clients' keys.
    pub(super) key: Vec<String>,
    pub(super) limit: String,
    /// The unit of the limit's costs, if it has a name.
    pub(super) unit: Option<String>,
    pub(super) allowed: u64,
    pub(super) denied: u64,
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

    /// Returns the limit with its unit, without characters that could harm a terminal.
    pub(super) fn shown_limit(&self) -> String {
        let unit = self.unit.as_ref().map(|unit| format!(" in {unit}"));
        let limit = self.limit.clone() + &unit.unwrap_or_default();
        Escaped(limit.as_bytes()).to_string()
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
            let limit = rule.shown_limit();
            let RuleCounts {
                allowed, denied, ..
            } = rule;
            // Writing to a string does not fail.
            let _ = writeln!(out, "{name}  {limit}  {allowed} allowed, {denied} denied");
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
            json!({ "name": rule.name, "limit": rule.shown_limit(),
                    "allowed": rule.allowed, "denied": rule.denied })
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
