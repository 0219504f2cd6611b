//! The parts of a suggested rule that follow from the flags by which the log was read.

use earrrl::Cost;
use earrrl_logs::format::Field;
use earrrl_logs::line::shell_word;
use earrrl_logs::reading::CostRule;
use earrrl_logs::suggest::{RuleTerms, toml_text};
use earrrl_server::config::attribute::PLAIN;

use super::CliFailure;
use super::attributes::LogCondition;
use super::log::LogArgs;

/// The fields of a log that are known only after the response, so that no rule can use them.
const OF_RESPONSES: [&str; 6] = [
    "status",
    "bytes",
    "body_bytes_sent",
    "bytes_sent",
    "request_time",
    "duration",
];

impl LogArgs {
    /// Returns the parts of a rule for the requests that the flags select. `alike` is true if every
    /// request of the log costs 1.
    pub(super) fn terms(&self, alike: bool) -> RuleTerms {
        let client = self.client();
        let part = |name| match configured(name) {
            name if name == "client" => client.clone(),
            name => name,
        };
        let names = self.key.fields().iter().map(Field::name);
        let key: Vec<_> = names.map(part).collect();
        let pairs = self.conditions.iter().map(LogCondition::pair);
        let conditions: Vec<_> = pairs
            .map(|(name, value)| (configured(name), value.into()))
            .collect();
        let cost_field = self.cost_field(alike);
        RuleTerms {
            remarks: remarks(&key, &conditions, cost_field),
            key,
            conditions,
            cost: self.cost(cost_field),
            client,
            flags: self.flags(),
        }
    }

    /// Returns the part of a rule's key that is the client's address.
    fn client(&self) -> String {
        match (self.ipv4_prefix, self.ipv6_prefix) {
            (32, 64) => "client".to_owned(),
            (ipv4, 64) => format!("client/{ipv4}"),
            (ipv4, ipv6) => format!("client/{ipv4},{ipv6}"),
        }
    }

    /// Returns the bits of addresses that are one client, if they are not the default, with the names of their flags.
    fn prefixes(&self) -> impl Iterator<Item = (&'static str, u8)> {
        let all = [
            ("ipv4-prefix", self.ipv4_prefix, 32),
            ("ipv6-prefix", self.ipv6_prefix, 64),
        ];
        all.into_iter()
            .filter(|(_, bits, default)| bits != default)
            .map(|(name, bits, _)| (name, bits))
    }

    /// Returns an error if a rule of a server cannot have the key, conditions and costs of the flags.
    ///
    /// # Errors
    /// Returns a sentence about the first flag that no rule can express.
    pub(super) fn check_terms(&self) -> Result<(), CliFailure> {
        let parts: Vec<_> = self.key.fields().iter().map(Field::name).collect();
        let names: Vec<_> = self.conditions.iter().map(|one| one.pair().0).collect();
        let costs = self.costs.iter().filter_map(field_of);
        let mut read = parts
            .iter()
            .copied()
            .chain(names.iter().copied())
            .chain(costs);
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
            let CostRule::Path { path, prefix, .. } = cost else {
                continue;
            };
            if !(path.starts_with('/') || path.is_empty() && *prefix) {
                return wrong(format!(
                    "--cost {}: a rule's path starts with `/`",
                    shell_word(cost.to_string().as_bytes())
                ));
            }
            // Here the first path that fits counts, in a rule the longest.
            if paths
                .iter()
                .any(|(before, all)| path == before || *all && path.starts_with(before))
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

    /// Returns the field of the log that has a request's cost: that of `--cost`, or else that of the log's
    /// format; `None` if the cost is in neither.
    fn cost_field(&self, alike: bool) -> Option<&str> {
        let of_format = (!alike && self.costs.is_empty()).then_some("cost");
        self.costs
            .iter()
            .filter_map(field_of)
            .next_back()
            .or(of_format)
    }

    /// Returns the field `cost` of the rule, in TOML; `None` if every request costs 1.
    fn cost(&self, cost_field: Option<&str>) -> Option<String> {
        if let Some(field) = cost_field {
            return Some(toml_text(&format!("attribute:{field}")));
        }
        let mut paths = Vec::new();
        let mut fixed = None;
        for cost in &self.costs {
            match cost {
                CostRule::Path { path, prefix, cost } => {
                    let pattern = format!("{path}{}", if *prefix { "*" } else { "" });
                    paths.push(format!("{} = {cost}", toml_text(&pattern)));
                }
                CostRule::Fixed(cost) if *cost != Cost::ONE => fixed = Some(cost.to_string()),
                CostRule::Fixed(_) | CostRule::Field(_) => {}
            }
        }
        fixed.or_else(|| (!paths.is_empty()).then(|| format!("{{ {} }}", paths.join(", "))))
    }

    /// Returns the flags of the key, the conditions and the costs, as a shell reads them.
    fn flags(&self) -> String {
        let flag = |name: &str, value: &str| format!("--{name} {} ", shell_word(value.as_bytes()));
        let key = self.key.to_string();
        let key = (key != "client").then(|| flag("key", &key));
        let condition = |(name, value): (&str, &str)| flag("where", &format!("{name}={value}"));
        let conditions = self.conditions.iter().map(|one| condition(one.pair()));
        let costs = self
            .costs
            .iter()
            .map(|cost| flag("cost", &cost.to_string()));
        let prefix = |(name, bits): (&str, u8)| flag(name, &bits.to_string());
        let prefixes = self.prefixes().map(prefix);
        key.into_iter()
            .chain(conditions)
            .chain(costs)
            .chain(prefixes)
            .collect()
    }
}

/// Returns the first name that is in a list twice.
fn twice<'a>(names: &[&'a str]) -> Option<&'a str> {
    let (_, name) = names
        .iter()
        .enumerate()
        .find(|(nth, name)| names[..*nth].contains(name))?;
    Some(name)
}

/// Returns the field that a cost is read from, if it is read from one.
fn field_of(cost: &CostRule) -> Option<&str> {
    match cost {
        CostRule::Field(field) => Some(field.name()),
        CostRule::Fixed(_) | CostRule::Path { .. } => None,
    }
}

/// Returns sentences for the operator who uses the rule: which attributes the server learns only from
/// callers that send them, and how the cost in an attribute counts.
fn remarks(
    key: &[String],
    conditions: &[(String, String)],
    cost_field: Option<&str>,
) -> Vec<String> {
    let names = key.iter().chain(conditions.iter().map(|(name, _)| name));
    let of_callers = names
        .filter_map(|name| name.strip_prefix("attribute:"))
        .chain(cost_field);
    let of_callers = of_callers.filter(|name| *name != "host").map(|name| {
        format!(
            "The caller sends the attribute `{}`; no proxy does.",
            name.escape_debug()
        )
    });
    let of_cost = "A cost below 1, or a missing one, counts 1; see min_cost.".to_owned();
    of_callers.chain(cost_field.map(|_| of_cost)).collect()
}

/// Returns the name of an attribute that is known by `name` in a log, as a server's configuration has it.
fn configured(name: &str) -> String {
    let header = match name {
        "forwarded_for" => Some("x-forwarded-for".into()),
        "agent" | "user_agent" => Some("user-agent".into()),
        "referer" => Some("referer".into()),
        name => name
            .strip_prefix("http_")
            .map(|header| header.replace('_', "-").to_lowercase()),
    };
    match header {
        Some(header) => format!("header:{header}"),
        None if PLAIN.contains(&name) || name.starts_with("header:") => name.to_owned(),
        None => format!("attribute:{name}"),
    }
}
