//! The parts of a suggested rule that follow from the flags by which the log was read.

use earrrl::Cost;
use earrrl_logs::format::Field;
use earrrl_logs::line::shell_word;
use earrrl_logs::reading::CostRule;
use earrrl_logs::suggest::{RuleTerms, toml_text};
use earrrl_server::config::attribute::PLAIN;

use super::CliFailure;
use super::log::LogArgs;

/// Fields of a log that are known only after the response, so that no rule can read them.
const OF_RESPONSES: [&str; 6] =
    ["status", "bytes", "body_bytes_sent", "bytes_sent", "request_time", "duration"];

impl LogArgs {
    /// Returns the parts of a rule for the requests that the flags select. `alike` is true if every
    /// request of the log costs 1.
    pub(super) fn terms(&self, alike: bool) -> RuleTerms {
        let key: Vec<_> = self.key.fields().iter().map(attribute).collect();
        let conditions: Vec<_> = self.conditions.iter().map(|condition| condition.pair()).collect();
        let conditions =
            conditions.into_iter().map(|(name, value)| (configured(name), value.into()));
        let conditions: Vec<(String, String)> = conditions.collect();
        let cost =
            self.cost().or((!alike && self.costs.is_empty()).then(|| "\"attribute:cost\"".into()));
        let prefixes =
            [("ipv4_prefix", self.ipv4_prefix, 32), ("ipv6_prefix", self.ipv6_prefix, 64)];
        let prefixes = prefixes.into_iter().filter(|(_, bits, default)| bits != default);
        RuleTerms {
            remarks: remarks(&key, &conditions, cost.as_deref()),
            key,
            conditions,
            cost,
            prefixes: prefixes.map(|(name, bits, _)| (name, bits)).collect(),
            flags: self.flags(),
        }
    }

    /// Returns an error if a rule of a server cannot have the key, conditions and costs of the flags.
    ///
    /// # Errors
    /// Returns a sentence about the first flag that no rule can express.
    pub(super) fn check_terms(&self) -> Result<(), CliFailure> {
        let parts: Vec<_> = self.key.fields().iter().map(Field::name).collect();
        let names: Vec<_> = self.conditions.iter().map(|condition| condition.pair().0).collect();
        let costs = self.costs.iter().filter_map(|cost| match cost {
            CostRule::Field(field) => Some(field.name()),
            CostRule::Fixed(_) | CostRule::Path { .. } => None,
        });
        let mut read = parts.iter().copied().chain(names.iter().copied()).chain(costs);
        let why = if let Some(name) = read.find(|name| OF_RESPONSES.contains(name)) {
            format!("no rule knows `{name}`: it decides before the response")
        } else if let Some(twice) = twice(&parts) {
            format!("`{twice}` is twice in the key")
        } else if let Some(twice) = twice(&names) {
            format!("no rule has two conditions on `{twice}`, as `--where` gives")
        } else {
            return self.check_costs();
        };
        Err(CliFailure::new(format!("--config: {why}")))
    }

    /// Returns an error if a rule cannot have these costs.
    fn check_costs(&self) -> Result<(), CliFailure> {
        let mut paths: Vec<(&str, bool)> = Vec::new();
        let wrong = |why: String| Err(CliFailure::new(format!("--config: {why}")));
        for cost in &self.costs {
            let CostRule::Path { path, prefix, .. } = cost else { continue };
            if !(path.starts_with('/') || path.is_empty() && *prefix) {
                return wrong(format!(
                    "--cost {}: a rule's path starts with `/`",
                    shell_word(cost.to_string().as_bytes())
                ));
            }
            // Here the first path that fits counts, in a rule the longest.
            if paths.iter().any(|(before, all)| path == before || *all && path.starts_with(before))
            {
                return wrong("no rule has a `--cost` of a path after one that fits it too".into());
            }
            paths.push((path, *prefix));
        }
        let others = self.costs.len() - paths.len();
        let is_one = |cost: &CostRule| matches!(cost, CostRule::Fixed(cost) if *cost == Cost::ONE);
        if others > 1 || !paths.is_empty() && others > 0 && !self.costs.iter().any(is_one) {
            return wrong("a rule has one cost, or costs by path and 1 elsewhere".into());
        }
        Ok(())
    }

    /// Returns the field `cost` of the rule, in TOML; `None` if every request costs 1.
    fn cost(&self) -> Option<String> {
        let mut paths = Vec::new();
        let mut other = None;
        for cost in &self.costs {
            match cost {
                CostRule::Path { path, prefix, cost } => {
                    let pattern = format!("{path}{}", if *prefix { "*" } else { "" });
                    paths.push(format!("{} = {cost}", toml_text(&pattern)));
                }
                CostRule::Field(field) => {
                    other = Some(toml_text(&format!("attribute:{}", field.name())))
                }
                CostRule::Fixed(cost) if *cost == Cost::ONE => {}
                CostRule::Fixed(cost) => other = Some(cost.to_string()),
            }
        }
        other.or_else(|| (!paths.is_empty()).then(|| format!("{{ {} }}", paths.join(", "))))
    }

    /// Returns the flags of the key, the conditions and the costs, as a shell reads them.
    fn flags(&self) -> String {
        let flag = |name: &str, value: &str| format!("--{name} {} ", shell_word(value.as_bytes()));
        let key = self.key.to_string();
        let key = (key != "client").then(|| flag("key", &key));
        let condition = |(name, value): (&str, &str)| flag("where", &format!("{name}={value}"));
        let conditions = self.conditions.iter().map(|one| condition(one.pair()));
        let costs = self.costs.iter().map(|cost| flag("cost", &cost.to_string()));
        let prefixes =
            [("ipv4-prefix", self.ipv4_prefix, 32), ("ipv6-prefix", self.ipv6_prefix, 64)];
        let prefixes = prefixes.into_iter().filter(|(_, bits, default)| bits != default);
        let prefixes = prefixes.map(|(name, bits, _)| flag(name, &bits.to_string()));
        key.into_iter().chain(conditions).chain(costs).chain(prefixes).collect()
    }
}

/// Returns the first name that is in a list twice.
fn twice<'a>(names: &[&'a str]) -> Option<&'a str> {
    let (_, name) = names.iter().enumerate().find(|(nth, name)| names[..*nth].contains(name))?;
    Some(name)
}

/// Returns what an operator must know beside the rule: which attributes only a caller can name, and how
/// an attribute's cost counts.
fn remarks(key: &[String], conditions: &[(String, String)], cost: Option<&str>) -> Vec<String> {
    let names = key.iter().chain(conditions.iter().map(|(name, _)| name)).map(String::as_str);
    let cost =
        cost.map(|cost| cost.trim_matches('"')).filter(|cost| cost.starts_with("attribute:"));
    let of_callers = names.chain(cost).filter_map(|name| name.strip_prefix("attribute:"));
    let of_callers = of_callers.filter(|name| *name != "host").map(|name| {
        format!("The caller sends the attribute `{}`; no proxy does.", name.escape_debug())
    });
    let mut remarks: Vec<_> = of_callers.collect();
    if cost.is_some() {
        remarks.push("A cost below 1, or a missing one, counts 1; see min_cost.".into());
    }
    remarks
}

/// Returns the name of a field's attribute, as a server's configuration has it.
fn attribute(field: &Field) -> String {
    configured(field.name())
}

/// Returns the name of an attribute that is known by `name` in a log, as a server's configuration has it.
fn configured(name: &str) -> String {
    let header = match name {
        "forwarded_for" => Some("x-forwarded-for".into()),
        "agent" | "user_agent" => Some("user-agent".into()),
        "referer" => Some("referer".into()),
        name => name.strip_prefix("http_").map(|header| header.replace('_', "-").to_lowercase()),
    };
    match header {
        Some(header) => format!("header:{header}"),
        None if PLAIN.contains(&name) || name.starts_with("header:") => name.to_owned(),
        None => format!("attribute:{name}"),
    }
}
