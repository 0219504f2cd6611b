//! The clients and counters of a running server at one instant, from its HTTP API; and their form as a table and as
//! JSON. The clients of several levels are a tree: each is followed by those whose keys begin with its key.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::time::Instant;

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
    /// Returns the body of the response to a request for this path.
    fn ask(&self, path: &str) -> Result<String, String> {
        match self.client.send(Method::GET, path, None)? {
            (200..300, body) => Ok(body),
            (status, body) => Err(detail(status, &body)),
        }
    }

    fn json(&self, path: &str) -> Result<Value, String> {
        let body = self.ask(path)?;
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
        let ready = self.ask("/readyz").unwrap_or_default();
        let ready: Value = serde_json::from_str(&ready).unwrap_or_default();
        // With an admin listener, metrics are served only there.
        let metrics = self.ask("/metrics").unwrap_or_default();
        Ok(TopSnapshot {
            rule,
            rules,
            clients,
            names_are_keys,
            status: status(&ready, &metrics),
            at: Instant::now(),
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
    let whole = key.as_ref().filter(|_| client["key_is_cut"] != true);
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
#[derive(Debug)]
pub(super) struct TopSnapshot {
    /// The rule whose clients are listed, with those of the levels below it.
    rule: String,
    rules: Vec<RuleCounts>,
    /// The clients, the one with the highest usage first.
    clients: Vec<TopRow>,
    /// False if the server replaces keys by their HMACs.
    names_are_keys: bool,
    /// The state of the server: the engine's mode and its memory.
    status: String,
    /// The time of its reading.
    at: Instant,
}

/// A rule, with the numbers of its requests so far.
#[derive(Clone, Debug, Default, Deserialize)]
struct RuleCounts {
    name: String,
    /// The name that the rules for all levels share.
    group: Option<String>,
    /// The parts of its clients' keys.
    key: Vec<String>,
    limit: String,
    /// The unit of the limit's costs, if it has a name.
    unit: Option<String>,
    allowed: u64,
    denied: u64,
}

/// A client with the highest rates.
#[derive(Clone, Debug, Default)]
struct TopRow {
    rule: String,
    /// The parts of the key; empty if they are not known.
    parts: Vec<Vec<u8>>,
    /// The key; `None` if only the fingerprint is known.
    key: Option<Vec<u8>>,
    fingerprint: String,
    rate: Option<f64>,
    usage: f64,
    /// The wait until the client is allowed again, in seconds; `None` for never.
    retry_after: Option<f64>,
    allowed: u64,
    denied: u64,
    /// The client as the server describes it.
    json: Value,
}

/// A client at its place in the tree.
struct TreeRow<'a> {
    client: &'a TopRow,
    /// The client's name. Below another client, it is indented and lacks the parts of that client's key.
    name: String,
}

impl RuleCounts {
    /// Returns the rule's name without characters that could harm a terminal.
    fn shown_name(&self) -> String {
        Escaped(self.name.as_bytes()).to_string()
    }

    /// Returns the requests and the denials a second since another snapshot, this many seconds ago.
    fn rates(&self, before: &TopSnapshot, seconds: f64) -> Option<(f64, f64)> {
        let before = before.rules.iter().find(|rule| rule.name == self.name)?;
        let allowed = self.allowed.saturating_sub(before.allowed) as f64 / seconds;
        let denied = self.denied.saturating_sub(before.denied) as f64 / seconds;
        Some((allowed + denied, denied))
    }

    /// Returns the limit with its unit, without characters that could harm a terminal.
    fn shown_limit(&self) -> String {
        let unit = self.unit.as_ref().map(|unit| format!(" in {unit}"));
        let limit = self.limit.clone() + &unit.unwrap_or_default();
        Escaped(limit.as_bytes()).to_string()
    }
}

impl TopRow {
    /// Returns the client's name without characters that could harm a terminal, shortened if it is
    /// long.
    fn name(&self) -> String {
        match &self.key {
            Some(key) => shortened(key),
            None => format!("#{}", self.fingerprint),
        }
    }

    /// Returns the wait until the client is allowed again; empty if it is allowed now.
    fn wait(&self) -> String {
        match self.retry_after {
            None => "never".to_owned(),
            Some(seconds) if seconds <= 0.0 => String::new(),
            Some(seconds) if seconds < 100.0 => format!("{seconds:.1}s"),
            Some(seconds) if seconds < 6000.0 => format!("{:.0}m", seconds / 60.0),
            Some(seconds) => format!("{:.1}h", seconds / 3600.0),
        }
    }

    /// Returns the measured rate; a bucket measures none.
    fn rate(&self) -> String {
        self.rate.map_or_else(|| "-".to_owned(), figure)
    }
}

/// Returns a name without characters that could harm a terminal, shortened if it is long.
fn shortened(name: &[u8]) -> String {
    let mut name = Escaped(name).to_string();
    if let Some((end, _)) = name.char_indices().nth(SHOWN) {
        name.truncate(end);
        name.push('…');
    }
    name
}

/// Returns a number with three significant digits.
fn figure(value: f64) -> String {
    match value {
        value if value >= 1000.0 => format!("{value:.0}"),
        value if value >= 10.0 => format!("{value:.1}"),
        value => format!("{value:.3}"),
    }
}

impl TopSnapshot {
    /// Returns the snapshot as a table of the rules, with rates since the last snapshot if there is one, and of the
    /// clients.
    pub(super) fn table(&self, last: Option<&Self>) -> String {
        let rule = Escaped(self.rule.as_bytes());
        let mut out = format!("clients of {rule}, {}\n\n", self.status);
        for rule in &self.rules {
            let name = rule.shown_name();
            let limit = rule.shown_limit();
            let RuleCounts {
                allowed, denied, ..
            } = rule;
            // Writing to a string does not fail.
            let _ = write!(out, "{name}  {limit}  {allowed} allowed, {denied} denied");
            let rates = last.and_then(|last| rule.rates(last, (self.at - last.at).as_secs_f64()));
            if let Some((requests, denied)) = rates {
                let [requests, denied] = [requests, denied].map(figure);
                let _ = write!(out, "  {requests}/s, {denied}/s denied");
            }
            out.push('\n');
        }
        let _ = writeln!(
            out,
            "\n{:>9} {:>7} {:>7} {:>9} {:>9}  CLIENT",
            "RATE", "USAGE", "WAIT", "ALLOWED", "DENIED"
        );
        for TreeRow { client, name } in tree(&self.clients) {
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
fn tree(clients: &[TopRow]) -> Vec<TreeRow<'_>> {
    let ranked = clients.iter().zip(0..);
    let ranks: HashMap<&[Vec<u8>], usize> = ranked
        .map(|(client, rank)| (&*client.parts, rank))
        .collect();
    let mut rows = Vec::new();
    for (rank, client) in clients.iter().enumerate() {
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn snapshot(counts: [u64; 2], clients: Vec<TopRow>) -> TopSnapshot {
        let [allowed, denied] = counts;
        let rule = |name: &str| RuleCounts {
            name: name.to_owned(),
            allowed,
            denied,
            ..RuleCounts::default()
        };
        TopSnapshot {
            rule: "api".to_owned(),
            rules: vec![rule("api"), rule("login")],
            clients,
            names_are_keys: true,
            status: String::new(),
            at: Instant::now(),
        }
    }

    #[test]
    fn the_order_is_kept_within_each_client_of_the_level_above() {
        let client = |key: &str, parts: &[&str]| TopRow {
            key: Some(key.as_bytes().to_vec()),
            parts: parts.iter().map(|part| part.as_bytes().to_vec()).collect(),
            ..TopRow::default()
        };
        let clients = [
            client("4:acme,3:ops,", &["acme", "ops"]),
            client("4:acme,4:core,", &["acme", "core"]),
            client("beta", &["beta"]),
            client("acme", &["acme"]),
            client("ac", &["ac"]),
            client("acme", &[]),
        ];
        let names: Vec<_> = tree(&clients).into_iter().map(|row| row.name).collect();
        assert_eq!(names, ["beta", "acme", "  ops", "  core", "ac", "acme"]);
        let alone: Vec<_> = tree(&clients[1..2])
            .into_iter()
            .map(|row| row.name)
            .collect();
        assert_eq!(alone, ["4:acme,4:core,"]);
    }

    #[test]
    fn rates_are_differences_of_counters() {
        let first = snapshot([100, 10], Vec::new());
        let mut second = snapshot([180, 30], Vec::new());
        second.at = first.at + Duration::from_secs(2);
        assert!(!first.table(None).contains("/s"));
        let table = second.table(Some(&first));
        assert!(
            table.contains("30 denied  50.0/s, 10.0/s denied\n"),
            "{table}"
        );
    }

    #[test]
    fn no_escape_sequence_reaches_the_terminal() {
        let client = TopRow {
            key: Some(b"eve\x1b[2J\x07".to_vec()),
            ..TopRow::default()
        };
        let mut snapshot = snapshot([0, 0], vec![client]);
        snapshot.rule = "\x1b[2J".to_owned();
        snapshot.rules[0].name = "\x1b[2J".to_owned();
        let table = snapshot.table(None);
        assert!(table.contains(r"eve\x1b[2J\x07"), "{table}");
        assert!(!table.contains(['\x1b', '\x07']), "{table}");
    }
}
