//! One YAML file of envoyproxy/ratelimit: a domain and its descriptors, as they are written.
//!
//! Errors have the same texts as those of envoyproxy/ratelimit, where it reports the mistake too.

use std::sync::Arc;

use earrrl::{Action, Cost, Limit, Rule};

use crate::config::rule::check_passes;
use crate::config::yaml::{self, Position, Value, YamlNode};
use crate::config::{ConfigError, ConfigProblem};
use crate::protobuf::ratelimit::Unit;

/// Every known key, at any depth of a file. All but the last two are keys of envoyproxy/ratelimit.
const KEYS: [&str; 18] = [
    "domain",
    "descriptors",
    "key",
    "value",
    "rate_limit",
    "unit",
    "requests_per_unit",
    "unlimited",
    "name",
    "replaces",
    "shadow_mode",
    "quota_mode",
    "detailed_metric",
    "value_to_metric",
    "share_threshold",
    "metadata",
    "limit",
    "action",
];

/// A domain with its descriptors, from a file or from a control plane.
#[derive(Clone, Debug, Default)]
pub struct DomainConfig {
    /// The name of the file, or of the control plane, that the domain comes from.
    pub source: Arc<str>,
    /// The name of the domain, which requests must contain.
    pub domain: Arc<str>,
    /// The position of the domain's name in the file.
    pub place: Position,
    /// The descriptors of the first level.
    pub descriptors: Vec<DescriptorConfig>,
}

/// Returns the name that envoyproxy/ratelimit gives to one level: `key`, or `key_value`.
pub fn level_name(key: &str, value: &str) -> String {
    if value.is_empty() {
        key.to_owned()
    } else {
        format!("{key}_{value}")
    }
}

/// A descriptor: a key with or without a value, its limit, and the descriptors below it.
#[derive(Clone, Debug, Default)]
pub struct DescriptorConfig {
    /// The position of the descriptor in its file.
    pub place: Position,
    /// The key that an entry of a request must have; never empty.
    pub key: String,
    /// The value that an entry of a request must have, which may contain wildcards; empty for any
    /// value.
    pub value: String,
    /// The limit, if the descriptor has one.
    pub limit: Option<LimitConfig>,
    /// True if all values that match a wildcard share one counter.
    pub share_threshold: bool,
    /// True if the names of the limit's metrics contain the values of requests.
    pub detailed_metric: bool,
    /// True if the names of metrics contain the value that the request has at this level.
    pub value_to_metric: bool,
    /// The dynamic metadata that responses for this descriptor contain.
    pub metadata: serde_json::Map<String, serde_json::Value>,
    /// The descriptors of the next level.
    pub descriptors: Vec<DescriptorConfig>,
}

/// The limit of a descriptor, with its options.
#[derive(Clone, Debug, Default)]
pub struct LimitConfig {
    /// The number of requests that the limit allows.
    pub amount: Amount,
    /// A limit in the rule grammar of this server; it replaces the amount.
    pub limit: Option<Box<Limit>>,
    /// The limit's name, by which other descriptors can replace it.
    pub name: String,
    /// The names of the limits that this limit replaces.
    pub replaces: Vec<String>,
    /// True if requests are counted, but never denied.
    pub shadow_mode: bool,
    /// True if a request is denied only when all of its limits in quota mode are exceeded.
    pub quota_mode: bool,
    /// The action when the limit is exceeded.
    pub action: Action,
}

/// The number of requests that a descriptor allows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Amount {
    /// All requests are allowed, and none is counted.
    Unlimited,
    /// This number of requests is allowed in each unit of time.
    PerUnit(u32, Unit),
    /// The limit is given in the rule grammar of this server, instead of as an amount.
    #[default]
    Own,
}

/// Parses the text of one file. Mistakes that envoyproxy/ratelimit ignores are added to `warnings`.
///
/// # Errors
/// Returns all problems of the file, each with its line and column.
pub fn parse(
    text: &str,
    source: &str,
    warnings: &mut Vec<String>,
) -> Result<DomainConfig, ConfigError> {
    let failed = |problem| ConfigError {
        name: source.to_owned(),
        problems: vec![problem],
    };
    let root = yaml::parse(text).map_err(failed)?;
    let start = Position { line: 1, column: 1 };
    let root = root.unwrap_or(YamlNode {
        place: start,
        value: Value::Map(Vec::new()),
    });
    read(&root, source, warnings)
}

/// Reads a domain's configuration from the tree of a file's YAML nodes.
pub(super) fn read(
    root: &YamlNode,
    source: &str,
    warnings: &mut Vec<String>,
) -> Result<DomainConfig, ConfigError> {
    let mut reader = Reader::default();
    reader.check_keys(root);
    let config = reader.domain(root, source);
    warnings.extend(
        reader
            .warnings
            .iter()
            .map(|warning| format!("{source}:{warning}")),
    );
    if reader.problems.is_empty() {
        return Ok(config);
    }
    reader
        .problems
        .sort_by_key(|problem| (problem.line, problem.column));
    Err(ConfigError {
        name: source.to_owned(),
        problems: reader.problems,
    })
}

#[derive(Default)]
struct Reader {
    problems: Vec<ConfigProblem>,
    warnings: Vec<ConfigProblem>,
}

impl Reader {
    fn problem(&mut self, place: Position, message: impl Into<String>) {
        self.problems.push(place.problem(message));
    }

    /// Checks that all keys are known texts and that lists contain maps, as envoyproxy/ratelimit
    /// does before it reads the values.
    fn check_keys(&mut self, node: &YamlNode) {
        let Value::Map(entries) = &node.value else {
            return self.problem(node.place, "error loading config file: expected a map");
        };
        for (place, (key, value)) in entries.iter().enumerate() {
            let name = match &key.value {
                Value::Plain(text) if yaml::is_text(text) => text,
                Value::Text(text) => text,
                _ => {
                    let shown = key.to_json().to_string();
                    let text = format!("config error, key is not of type string: {shown}");
                    self.problem(key.place, text);
                    continue;
                }
            };
            if !KEYS.contains(&name.as_str()) {
                self.problem(key.place, format!("config error, unknown key '{name}'"));
            } else if entries[..place]
                .iter()
                .any(|(other, _)| other.scalar() == Some(name))
            {
                self.problem(key.place, format!("key '{name}' is here already"));
            } else if name != "metadata" {
                self.check_value(value);
            }
        }
    }

    fn check_value(&mut self, value: &YamlNode) {
        match &value.value {
            Value::Map(_) => self.check_keys(value),
            Value::List(list) => {
                for element in list {
                    if matches!(element.value, Value::Map(_)) {
                        self.check_keys(element);
                        continue;
                    }
                    let shown = element.scalar().map_or_else(
                        || element.to_json().to_string(),
                        std::borrow::ToOwned::to_owned,
                    );
                    let text = "config error, yaml file contains list of type other than map: ";
                    self.problem(element.place, format!("{text}{shown}"));
                }
            }
            Value::Plain(_) | Value::Text(_) => {}
        }
    }

    fn domain(&mut self, root: &YamlNode, source: &str) -> DomainConfig {
        let mut config = DomainConfig {
            source: source.into(),
            ..DomainConfig::default()
        };
        config.place = root.place;
        for (key, value) in entries(root) {
            match key {
                "domain" => {
                    config.place = value.place;
                    config.domain = self.text(key, value).into();
                }
                "descriptors" => config.descriptors = self.descriptors(value),
                _ => self.misplaced(key, value, "a file"),
            }
        }
        if config.domain.is_empty() {
            self.problem(config.place, "config file cannot have empty domain");
        }
        config
    }

    fn descriptors(&mut self, node: &YamlNode) -> Vec<DescriptorConfig> {
        match &node.value {
            Value::List(list) => list
                .iter()
                .map(|element| self.descriptor(element))
                .collect(),
            _ if node.is_null() => Vec::new(),
            _ => {
                self.problem(node.place, "descriptors: expected a list");
                Vec::new()
            }
        }
    }

    fn descriptor(&mut self, node: &YamlNode) -> DescriptorConfig {
        let mut descriptor = DescriptorConfig {
            place: node.place,
            ..DescriptorConfig::default()
        };
        let mut limit = LimitConfig::default();
        for (key, value) in entries(node) {
            match key {
                "key" => descriptor.key = self.text(key, value),
                "value" => descriptor.value = self.text(key, value),
                "descriptors" => descriptor.descriptors = self.descriptors(value),
                "shadow_mode" => limit.shadow_mode = self.truth(key, value),
                "quota_mode" => limit.quota_mode = self.truth(key, value),
                "detailed_metric" => descriptor.detailed_metric = self.truth(key, value),
                "value_to_metric" => descriptor.value_to_metric = self.truth(key, value),
                "share_threshold" => descriptor.share_threshold = self.truth(key, value),
                "metadata" => descriptor.metadata = self.metadata(value),
                "rate_limit" => self.rate_limit(value, &mut limit),
                "limit" => limit.limit = self.own_limit(value).map(Box::new),
                "action" => limit.action = self.action(value).unwrap_or_default(),
                _ => self.misplaced(key, value, "a descriptor"),
            }
        }
        if descriptor.key.is_empty() {
            self.problem(node.place, "descriptor has empty key");
        }
        if descriptor.share_threshold && !descriptor.value.contains('*') {
            let text = "share_threshold can only be used with wildcard values (containing '*'), \
                        but found key";
            self.problem(
                node.place,
                format!(
                    "{text} '{}'",
                    level_name(&descriptor.key, &descriptor.value)
                ),
            );
        }
        let is_limit = limit.limit.is_some() || limit.amount != Amount::Own;
        descriptor.limit = is_limit.then_some(limit);
        descriptor
    }

    fn rate_limit(&mut self, node: &YamlNode, limit: &mut LimitConfig) {
        if node.is_null() {
            return;
        }
        let mut requests = None;
        let mut replaces = Vec::new();
        let mut unit = (node.place, String::new());
        let mut unlimited = false;
        for (key, value) in entries(node) {
            match key {
                "requests_per_unit" => requests = Some(self.count(key, value)),
                "unit" => unit = (value.place, self.text(key, value)),
                "unlimited" => unlimited = self.truth(key, value),
                "name" => limit.name = self.text(key, value),
                "replaces" => replaces = self.replaces(value),
                _ => self.misplaced(key, value, "a rate_limit"),
            }
        }
        for (place, name) in replaces {
            if name.is_empty() {
                self.problem(place, "should not have an empty replaces entry");
            } else if name == limit.name {
                self.problem(place, "replaces should not contain name of same descriptor");
            }
            limit.replaces.push(name);
        }
        let place = unit.0;
        let unit = (Unit::parse(&unit.1), unit.1);
        limit.amount = match unit {
            (Some(_), _) if unlimited => {
                return self.problem(place, "should not specify rate limit unit when unlimited");
            }
            _ if unlimited => Amount::Unlimited,
            (Some(unit), _) => {
                if requests.is_none() {
                    let why = "no requests_per_unit is 0 requests: all are denied";
                    self.warnings.push(node.place.problem(why));
                }
                Amount::PerUnit(requests.unwrap_or(0), unit)
            }
            (None, text) => {
                return self.problem(place, format!("invalid rate limit unit '{text}'"));
            }
        };
    }

    fn replaces(&mut self, node: &YamlNode) -> Vec<(Position, String)> {
        let Value::List(list) = &node.value else {
            return Vec::new();
        };
        let name = |element: &YamlNode| {
            let named = entries(element).find(|(key, _)| *key == "name");
            let name = named.map_or_else(String::new, |(key, value)| self.text(key, value));
            (element.place, name)
        };
        list.iter().map(name).collect()
    }

    fn own_limit(&mut self, node: &YamlNode) -> Option<Limit> {
        let rule = self
            .text("limit", node)
            .parse::<Rule>()
            .map_err(|error| error.to_string());
        // Envoy states costs as whole numbers, and 1 is the usual one.
        let rule = rule.and_then(|rule| check_passes(rule.limit(), Cost::ONE).map(|()| rule));
        match rule {
            Ok(rule) => Some(*rule.limit()),
            Err(error) => {
                self.problem(node.place, format!("limit: {error}"));
                None
            }
        }
    }

    fn action(&mut self, node: &YamlNode) -> Option<Action> {
        match self.text("action", node).as_str() {
            "deny" => Some(Action::Deny),
            "shadow-ban" => Some(Action::ShadowBan),
            "quarantine" => Some(Action::Quarantine),
            "observe" => Some(Action::Observe),
            other => {
                let want = "expected deny, shadow-ban, quarantine or observe";
                let other = other.escape_debug();
                self.problem(node.place, format!("action: '{other}' is unknown; {want}"));
                None
            }
        }
    }

    fn metadata(&mut self, node: &YamlNode) -> serde_json::Map<String, serde_json::Value> {
        match node.to_json() {
            serde_json::Value::Object(map) => map,
            serde_json::Value::Null => serde_json::Map::new(),
            _ => {
                self.problem(node.place, "error parsing metadata: expected a map");
                serde_json::Map::new()
            }
        }
    }

    fn text(&mut self, name: &str, node: &YamlNode) -> String {
        match node.scalar() {
            Some(_) if node.is_null() => String::new(),
            Some(text) => text.to_owned(),
            None => {
                self.problem(node.place, format!("{name}: expected a text"));
                String::new()
            }
        }
    }

    fn truth(&mut self, name: &str, node: &YamlNode) -> bool {
        let truth = node.scalar().and_then(yaml::truth);
        if truth.is_none() && !node.is_null() {
            self.problem(node.place, format!("{name}: expected true or false"));
        }
        truth.unwrap_or(false)
    }

    fn count(&mut self, name: &str, node: &YamlNode) -> u32 {
        let count = node
            .scalar()
            .and_then(|text| text.replace('_', "").parse().ok());
        if count.is_none() && !node.is_null() {
            let want = format!("expected a whole number from 0 to {}", u32::MAX);
            self.problem(node.place, format!("{name}: {want}"));
        }
        count.unwrap_or(0)
    }

    /// Warns of a known key in a place where it has no meaning. The file is still valid, since
    /// envoyproxy/ratelimit ignores such a key.
    fn misplaced(&mut self, key: &str, value: &YamlNode, of: &str) {
        if KEYS.contains(&key) {
            self.warnings.push(
                value
                    .place
                    .problem(format!("'{key}' is no key of {of}; ignored")),
            );
        }
    }
}

/// Returns the entries of a map that have scalar keys.
fn entries(node: &YamlNode) -> impl Iterator<Item = (&str, &YamlNode)> {
    let entries = match &node.value {
        Value::Map(entries) => entries.as_slice(),
        _ => &[],
    };
    entries
        .iter()
        .filter_map(|(key, value)| Some((key.scalar()?, value)))
}
