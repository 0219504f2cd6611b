//! One file of envoyproxy/ratelimit's configuration: a domain and its descriptors, as written.
//!
//! The texts of errors are the peer's own where it has one.

use std::sync::Arc;

use earrrl::{Action, Limit, Rule};

use super::unit::Unit;
use super::yaml::{self, Position, Value, YamlNode};
use crate::config::{ConfigError, ConfigProblem};

/// Every key that means something, at whatever depth; all but the last two are the peer's.
const KEYS: [&str; 19] = [
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
    "<<",
];

/// A domain with its descriptors, from a file or from a control plane.
#[derive(Clone, Debug, Default)]
pub struct DomainConfig {
    /// The file, or whatever else it comes from.
    pub source: Arc<str>,
    /// The name that requests give.
    pub domain: Arc<str>,
    /// The position of the name.
    pub place: Position,
    /// The first level of the tree.
    pub descriptors: Vec<DescriptorConfig>,
}

/// Returns the peer's name of a level: `key`, or `key_value`.
pub fn level_name(key: &str, value: &str) -> String {
    if value.is_empty() { key.to_owned() } else { format!("{key}_{value}") }
}

/// A descriptor: a key with or without a value, its limit, and the descriptors below it.
#[derive(Clone, Debug, Default)]
pub struct DescriptorConfig {
    /// The position of the descriptor.
    pub place: Position,
    /// Its key, not empty.
    pub key: String,
    /// Its value, which may hold wildcards; empty for any value.
    pub value: String,
    /// The limit, if the descriptor has one.
    pub limit: Option<LimitConfig>,
    /// All values that match a wildcard share one counter.
    pub share_threshold: bool,
    /// Metrics name the values of requests.
    pub detailed_metric: bool,
    /// Metrics name the value of this level.
    pub value_to_metric: bool,
    /// The dynamic metadata of answers.
    pub metadata: serde_json::Map<String, serde_json::Value>,
    /// The next level.
    pub descriptors: Vec<DescriptorConfig>,
}

/// The limit of a descriptor.
#[derive(Clone, Debug)]
pub struct LimitConfig {
    /// The amount that it allows.
    pub amount: Amount,
    /// A limit of one of this server's own kinds, in place of the amount.
    pub limit: Option<Box<Limit>>,
    /// The name that other descriptors replace it by.
    pub name: String,
    /// The names of limits that it replaces.
    pub replaces: Vec<String>,
    /// Counted, never enforced.
    pub shadow_mode: bool,
    /// Enforced only when all such limits of a request are over.
    pub quota_mode: bool,
    /// The action over the limit.
    pub action: Action,
}

/// The amount that a descriptor allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// Anything; not counted.
    Unlimited,
    /// This many requests in each unit of time.
    PerUnit(u32, Unit),
    /// The amount of a limit of one of this server's own kinds.
    Own,
}

/// Reads one file's text. Mistakes that the peer ignores are harmless and are added to `warnings`.
///
/// # Errors
/// Returns all problems of the file, each with its line and column.
pub fn parse(
    text: &str,
    source: &str,
    warnings: &mut Vec<String>,
) -> Result<DomainConfig, ConfigError> {
    let failed = |problem| ConfigError { name: source.to_owned(), problems: vec![problem] };
    let root = yaml::parse(text).map_err(failed)?;
    let start = Position { line: 1, column: 1 };
    let root = root.unwrap_or(YamlNode { place: start, value: Value::Map(Vec::new()) });
    read(&root, source, warnings)
}

/// Reads the configuration of a domain from a file's tree.
pub(super) fn read(
    root: &YamlNode,
    source: &str,
    warnings: &mut Vec<String>,
) -> Result<DomainConfig, ConfigError> {
    let mut reader = Reader::default();
    reader.check_keys(root);
    let config = reader.domain(root, source);
    warnings.extend(reader.warnings.iter().map(|warning| format!("{source}:{warning}")));
    if reader.problems.is_empty() {
        return Ok(config);
    }
    reader.problems.sort_by_key(|problem| (problem.line, problem.column));
    Err(ConfigError { name: source.to_owned(), problems: reader.problems })
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

    /// The peer's first pass: keys are known texts, lists hold maps.
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
            } else if entries[..place].iter().any(|(other, _)| other.scalar() == Some(name)) {
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
        let mut config = DomainConfig { source: source.into(), ..DomainConfig::default() };
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
            Value::List(list) => list.iter().map(|element| self.descriptor(element)).collect(),
            _ if node.is_null() => Vec::new(),
            _ => {
                self.problem(node.place, "descriptors: expected a list");
                Vec::new()
            }
        }
    }

    fn descriptor(&mut self, node: &YamlNode) -> DescriptorConfig {
        let mut descriptor = DescriptorConfig { place: node.place, ..DescriptorConfig::default() };
        let mut limit = LimitReader::default();
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
                "limit" => limit.own = self.own_limit(value),
                "action" => limit.action = self.action(value),
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
                format!("{text} '{}'", level_name(&descriptor.key, &descriptor.value)),
            );
        }
        descriptor.limit = limit.finish();
        descriptor
    }

    fn rate_limit(&mut self, node: &YamlNode, limit: &mut LimitReader) {
        if node.is_null() {
            return;
        }
        let (mut requests, mut unit, mut unlimited) = (0, (node.place, String::new()), false);
        for (key, value) in entries(node) {
            match key {
                "requests_per_unit" => requests = self.count(key, value),
                "unit" => unit = (value.place, self.text(key, value)),
                "unlimited" => unlimited = self.truth(key, value),
                "name" => limit.name = self.text(key, value),
                "replaces" => limit.replaces = self.replaces(value),
                _ => self.misplaced(key, value, "a rate_limit"),
            }
        }
        let (place, unit) = (unit.0, (Unit::parse(&unit.1), unit.1));
        limit.amount = match unit {
            (Some(_), _) if unlimited => {
                self.problem(place, "should not specify rate limit unit when unlimited");
                None
            }
            _ if unlimited => Some(Amount::Unlimited),
            (Some(unit), _) => Some(Amount::PerUnit(requests, unit)),
            (None, text) => {
                self.problem(place, format!("invalid rate limit unit '{text}'"));
                None
            }
        };
        for (place, name) in &limit.replaces {
            if name.is_empty() {
                self.problem(*place, "should not have an empty replaces entry");
            } else if *name == limit.name {
                self.problem(*place, "replaces should not contain name of same descriptor");
            }
        }
    }

    fn replaces(&mut self, node: &YamlNode) -> Vec<(Position, String)> {
        let Value::List(list) = &node.value else { return Vec::new() };
        let name = |element: &YamlNode| {
            let named = entries(element).find(|(key, _)| *key == "name");
            let name = named.map_or_else(String::new, |(key, value)| self.text(key, value));
            (element.place, name)
        };
        list.iter().map(name).collect()
    }

    fn own_limit(&mut self, node: &YamlNode) -> Option<Limit> {
        match self.text("limit", node).parse::<Rule>() {
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
        let count = node.scalar().and_then(|text| text.replace('_', "").parse().ok());
        if count.is_none() && !node.is_null() {
            let want = format!("expected a whole number from 0 to {}", u32::MAX);
            self.problem(node.place, format!("{name}: {want}"));
        }
        count.unwrap_or(0)
    }

    /// A known key where it means nothing: the peer ignores it, so the file still loads.
    fn misplaced(&mut self, key: &str, value: &YamlNode, of: &str) {
        if KEYS.contains(&key) {
            self.warnings.push(value.place.problem(format!("'{key}' is no key of {of}; ignored")));
        }
    }
}

/// The parts of a limit that stand in several places.
#[derive(Default)]
struct LimitReader {
    amount: Option<Amount>,
    own: Option<Limit>,
    name: String,
    replaces: Vec<(Position, String)>,
    shadow_mode: bool,
    quota_mode: bool,
    action: Option<Action>,
}

impl LimitReader {
    fn finish(self) -> Option<LimitConfig> {
        let amount = self.amount.or(self.own.as_ref().map(|_| Amount::Own))?;
        Some(LimitConfig {
            amount,
            limit: self.own.map(Box::new),
            name: self.name,
            replaces: self.replaces.into_iter().map(|(_, name)| name).collect(),
            shadow_mode: self.shadow_mode,
            quota_mode: self.quota_mode,
            action: self.action.unwrap_or_default(),
        })
    }
}

/// Returns the entries of a map whose keys are scalars.
fn entries(node: &YamlNode) -> impl Iterator<Item = (&str, &YamlNode)> {
    let entries = match &node.value {
        Value::Map(entries) => entries.as_slice(),
        _ => &[],
    };
    entries.iter().filter_map(|(key, value)| Some((key.scalar()?, value)))
}
