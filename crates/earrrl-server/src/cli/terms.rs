//! The parts of a suggested rule that follow from the flags by which the log was read.

use earrrl::Cost;
use earrrl_logs::format::Field;
use earrrl_logs::line::Escaped;
use earrrl_logs::reading::CostRule;
use earrrl_logs::suggest::RuleTerms;
use earrrl_server::config::attribute::PLAIN;
use serde_json::json;

use super::CliFailure;
use super::log::LogArgs;

impl LogArgs {
    /// Returns the parts of a rule for the requests that the flags select.
    pub(super) fn terms(&self) -> RuleTerms {
        let conditions = self.conditions.iter().map(|condition| {
            let (name, value) = condition.pair();
            (configured(name), value.to_owned())
        });
        RuleTerms {
            key: self.key.fields().iter().map(attribute).collect(),
            conditions: conditions.collect(),
            cost: self.cost(),
            flags: self.flags(),
        }
    }

    /// Returns an error if a rule of a server cannot have the conditions and costs of the flags.
    ///
    /// # Errors
    /// Returns a sentence about the first flag that no rule can express.
    pub(super) fn check_terms(&self) -> Result<(), CliFailure> {
        let names: Vec<_> = self.conditions.iter().map(|condition| condition.pair().0).collect();
        let wrong = |why: String| Err(CliFailure::new(format!("--config: {why}")));
        if names.contains(&"status") {
            return wrong(
                "no rule has `--where status=…`, since it decides before the response".into(),
            );
        }
        if let Some((_, twice)) =
            names.iter().enumerate().find(|(nth, name)| names[..*nth].contains(name))
        {
            return wrong(format!("no rule has two conditions on `{twice}`, as `--where` gives"));
        }
        let is_path = |cost: &&CostRule| matches!(cost, CostRule::Path { .. });
        let (paths, others) =
            (self.costs.iter().filter(is_path).count(), self.other_costs().count());
        if paths > 0 && others > 0 {
            return wrong("no rule has costs by path and another `--cost` beside them".into());
        }
        Ok(())
    }

    /// Returns the costs that do not depend on the path and differ from 1.
    fn other_costs(&self) -> impl Iterator<Item = &CostRule> {
        let is_other = |cost: &&CostRule| match cost {
            CostRule::Path { .. } => false,
            CostRule::Fixed(cost) => *cost != Cost::ONE,
            CostRule::Field(_) => true,
        };
        self.costs.iter().filter(is_other)
    }

    /// Returns the field `cost` of the rule, in TOML; `None` if every request costs 1.
    fn cost(&self) -> Option<String> {
        let by_path = |cost: &CostRule| match cost {
            CostRule::Path { path, prefix, cost } => {
                let pattern = format!("{path}{}", if *prefix { "*" } else { "" });
                Some(format!("{} = {cost}", json!(pattern)))
            }
            CostRule::Fixed(_) | CostRule::Field(_) => None,
        };
        let paths: Vec<_> = self.costs.iter().filter_map(by_path).collect();
        // A field comes before a fixed cost, as in the log.
        let field = self.other_costs().find(|cost| matches!(cost, CostRule::Field(_)));
        match field.or_else(|| self.other_costs().last()) {
            Some(CostRule::Field(field)) => {
                Some(json!(format!("attribute:{}", field.name())).to_string())
            }
            Some(cost) => Some(cost.to_string()),
            None if paths.is_empty() => None,
            None => Some(format!("{{ {} }}", paths.join(", "))),
        }
    }

    /// Returns the flags with which `replay` reads the same requests.
    fn flags(&self) -> String {
        let key = self.key.to_string();
        let key = (key != "client").then(|| format!("--key '{}' ", shown(&key)));
        let condition = |(name, value): (&str, &str)| format!("--where '{name}={}' ", shown(value));
        let conditions = self.conditions.iter().map(|one| condition(one.pair()));
        let costs = self.costs.iter().map(|cost| format!("--cost '{}' ", shown(&cost.to_string())));
        key.into_iter().chain(conditions).chain(costs).collect()
    }
}

/// Returns a text with control characters escaped, since it is printed to a terminal.
fn shown(text: &str) -> String {
    Escaped(text.as_bytes()).to_string()
}

/// Returns the name of a field's attribute, as a server's configuration has it.
fn attribute(field: &Field) -> String {
    match field {
        Field::Forwarded => "header:x-forwarded-for".to_owned(),
        field => configured(field.name()),
    }
}

/// Returns the name of an attribute that is known by `name` in a log, as a server's configuration
/// has it.
fn configured(name: &str) -> String {
    let is_known = PLAIN.contains(&name) || name.starts_with("header:");
    if is_known { name.to_owned() } else { format!("attribute:{name}") }
}
