//! The clients of a running server, from its HTTP API.

use axum::http::Method;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use earrrl_logs::line::Escaped;
use earrrl_server::service::key::split;
use percent_encoding::{NON_ALPHANUMERIC, percent_encode};
use serde_json::Value;

use super::snapshot::{RuleCounts, TopRow, TopSnapshot};
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
        let rules = self.json("/v1/rules")?;
        let mut rules: Vec<_> = rules["rules"]
            .as_array()
            .into_iter()
            .flatten()
            .map(counts_of)
            .collect();
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
        count(&metrics, &mut rules);
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
            one.name == of.name || !one.group.is_empty() && one.group == of.group
        };
        let levels: Vec<(&str, usize)> = match known {
            None => vec![(rule, 0)],
            Some(at) => {
                let levels = rules[at..].iter().filter(|one| is_level(one, &rules[at]));
                levels.map(|one| (&*one.name, one.key_parts)).collect()
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

fn counts_of(rule: &Value) -> RuleCounts {
    let text = |field: &str| rule[field].as_str().unwrap_or_default();
    let mut limit = text("limit").to_owned();
    if let Some(unit) = rule["unit"].as_str() {
        limit += &format!(" in {unit}");
    }
    let limit = Escaped(limit.as_bytes()).to_string();
    RuleCounts {
        name: text("name").to_owned(),
        group: text("group").to_owned(),
        key_parts: rule["key"].as_array().map_or(0, Vec::len),
        limit,
        ..RuleCounts::default()
    }
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

/// Reads the counters of decisions from metrics in the Prometheus text format, if there are any.
fn count(metrics: &str, rules: &mut [RuleCounts]) {
    if !metrics.is_empty() {
        rules
            .iter_mut()
            .for_each(|rule| rule.requests = Some((0.0, 0.0)));
    }
    for line in metrics.lines() {
        let Some(rest) = line.strip_prefix("earrrl_decisions_total{rule=\"") else {
            continue;
        };
        let Some((name, rest)) = rest.split_once("\",outcome=\"") else {
            continue;
        };
        let Some((outcome, value)) = rest.split_once("\"} ") else {
            continue;
        };
        let Some(rule) = rules.iter_mut().find(|rule| rule.name == name) else {
            continue;
        };
        let value = value.trim().parse().unwrap_or(0.0);
        let Some((allowed, denied)) = &mut rule.requests else {
            continue;
        };
        *(if outcome == "allow" { allowed } else { denied }) += value;
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
    if metrics.is_empty() {
        status.push_str(", no counts: /metrics is not served here, or not permitted");
    }
    if let Some(error) = ready["reload_error"].as_str() {
        status.push_str(&format!(", reload failed: {}", Escaped(error.as_bytes())));
    }
    status
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_read_from_metrics() {
        let mut rules = [RuleCounts {
            name: "api".to_owned(),
            ..RuleCounts::default()
        }];
        let metrics = "# TYPE earrrl_decisions_total counter\n\
                       earrrl_decisions_total{rule=\"api\",outcome=\"allow\"} 12\n\
                       earrrl_decisions_total{rule=\"api\",outcome=\"deny\"} 3\n\
                       earrrl_decisions_total{rule=\"api\",outcome=\"delay\"} 1\n\
                       earrrl_decisions_total{rule=\"other\",outcome=\"allow\"} 9\n\
                       earrrl_decisions_total{rule=\"api";
        count(metrics, &mut rules);
        assert_eq!(rules[0].requests, Some((12.0, 4.0)));
    }
}
