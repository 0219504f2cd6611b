//! Converts the limits file of Limitador to rules.
//!
//! A limit's namespace is the domain of Envoy's rate limit service. Its conditions and variables
//! are expressions (CEL) about the entries of descriptors, of which the common forms are read.

use std::path::Path;

use super::yaml::{self, Value, YamlNode};
use super::{Config, ConfigError, ConfigProblem, MAX_RULES};

/// Returns the configuration whose rules are the limits of a file of Limitador.
///
/// # Errors
/// Returns an error if the file cannot be read, is too large or is not UTF-8, or else all limits that
/// have no counterpart, each with its line and column.
pub fn convert_file(path: &Path) -> Result<String, ConfigError> {
    let (name, text) = super::read(path)?;
    convert(&text, &name)
}

/// Converts the text of a limits file; errors use `name` as the name of that file.
fn convert(text: &str, name: &str) -> Result<String, ConfigError> {
    let fail = |problems| ConfigError {
        name: name.to_owned(),
        problems,
    };
    let root = yaml::parse(text).map_err(|problem| fail(vec![problem]))?;
    let limits = match root.as_ref().map(|root| (&root.value, root.place)) {
        Some((Value::List(limits), _)) if limits.len() <= MAX_RULES => limits.as_slice(),
        Some((_, place)) => {
            let why = format!("expected a list of at most {MAX_RULES} limits");
            return Err(fail(vec![place.problem(why)]));
        }
        None => &[],
    };
    let mut rules = Vec::new();
    let mut problems = Vec::new();
    for limit in limits {
        match LimitadorRule::read(limit) {
            Ok(rule) => rules.push(rule.with_new_name(&rules)),
            Err(problem) => problems.push(problem),
        }
    }
    if !problems.is_empty() {
        return Err(fail(problems));
    }
    let config: String = rules.iter().map(LimitadorRule::to_toml).collect();
    let none = if rules.is_empty() {
        "rules = \"none\"\n"
    } else {
        ""
    };
    let config = format!("version = 1\n{none}{config}");
    Config::parse(&config, &format!("{name}, converted"))?;
    Ok(config)
}

/// A limit as a rule.
#[derive(Debug, Default)]
struct LimitadorRule {
    name: Option<String>,
    domain: String,
    most: u64,
    seconds: u64,
    key: Vec<String>,
    conditions: Vec<(String, String)>,
    /// The index of the descriptor that the limit is about.
    descriptor: Option<u32>,
}

impl LimitadorRule {
    fn read(limit: &YamlNode) -> Result<Self, ConfigProblem> {
        let Value::Map(fields) = &limit.value else {
            return Err(limit
                .place
                .problem("expected a limit: namespace, max_value, seconds"));
        };
        let mut rule = Self::default();
        for (field, value) in fields {
            rule.set(field, value)?;
        }
        let fields = [
            ("namespace", rule.domain.is_empty()),
            ("max_value", rule.most == 0),
            ("seconds", rule.seconds == 0),
        ];
        match fields.into_iter().find(|(_, is_missing)| *is_missing) {
            Some((field, _)) => Err(limit.place.problem(format!("{field}: this limit has none"))),
            None => Ok(rule),
        }
    }

    fn set(&mut self, field: &YamlNode, value: &YamlNode) -> Result<(), ConfigProblem> {
        match field.scalar().unwrap_or_default() {
            "namespace" if text(value)?.contains('*') => {
                return Err(value.place.problem("expected a namespace without `*`"));
            }
            "namespace" => self.domain = text(value)?.to_owned(),
            "max_value" => self.most = number("max_value", value)?,
            "seconds" => self.seconds = number("seconds", value)?,
            "name" | "id" => self.name = Some(text(value)?.to_owned()),
            "conditions" => {
                list(value)?
                    .iter()
                    .try_for_each(|condition| self.add_condition(condition))?;
            }
            "variables" => {
                list(value)?
                    .iter()
                    .try_for_each(|variable| self.add_variable(variable))?;
            }
            other => {
                let why = format!("{}: no rule has a counterpart", other.escape_debug());
                return Err(field.place.problem(why));
            }
        }
        Ok(())
    }

    fn add_condition(&mut self, node: &YamlNode) -> Result<(), ConfigProblem> {
        let (attribute, rest) = self.reference(node)?;
        if self.conditions.iter().any(|(known, _)| *known == attribute) {
            return Err(node
                .place
                .problem(format!("two conditions on {attribute}; want one")));
        }
        self.conditions.push((attribute, compared(rest, node)?));
        Ok(())
    }

    fn add_variable(&mut self, node: &YamlNode) -> Result<(), ConfigProblem> {
        let (attribute, rest) = self.reference(node)?;
        if !rest.is_empty() {
            return Err(unread(node));
        }
        self.key.push(attribute);
        Ok(())
    }

    /// Reads the entry of a descriptor at the beginning of an expression. Returns the entry's
    /// attribute and the rest of the expression. All expressions of a limit must be about one
    /// descriptor, since a rule sees one at a time.
    fn reference<'a>(&mut self, node: &'a YamlNode) -> Result<(String, &'a str), ConfigProblem> {
        let (entry, index, rest) = entry(text(node)?.trim()).ok_or_else(|| unread(node))?;
        if *self.descriptor.get_or_insert(index) != index {
            return Err(node.place.problem("expected entries of one descriptor"));
        }
        Ok((format!("descriptor:{entry}"), rest.trim()))
    }

    /// Gives the rule a name that no earlier rule has: its own, or else that of its namespace.
    fn with_new_name(mut self, before: &[Self]) -> Self {
        let wanted = self
            .name
            .as_ref()
            .unwrap_or(&self.domain)
            .to_ascii_lowercase();
        let allowed = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let wanted: String = wanted
            .chars()
            .map(|c| if allowed(c) { c } else { '-' })
            .collect();
        let wanted: String = wanted
            .trim_start_matches(['-', '_'])
            .chars()
            .take(50)
            .collect();
        let wanted = if wanted.is_empty() {
            "limit".to_owned()
        } else {
            wanted
        };
        let is_taken = |name: &str| before.iter().any(|rule| rule.name.as_deref() == Some(name));
        let numbered = (2..).map(|nth| format!("{wanted}-{nth}"));
        self.name = std::iter::once(wanted.clone())
            .chain(numbered)
            .find(|name| !is_taken(name));
        self
    }

    fn to_toml(&self) -> String {
        // The escapes of JSON are escapes of TOML too.
        let quoted = |text: &str| serde_json::Value::from(text).to_string();
        let pair =
            |(name, value): &(String, String)| format!("{} = {}", quoted(name), quoted(value));
        let conditions: String = self
            .conditions
            .iter()
            .map(|it| format!(", {}", pair(it)))
            .collect();
        let key: Vec<String> = self.key.iter().map(|part| quoted(part)).collect();
        // Without a variable, all requests of the namespace count as one client.
        let key = if key.is_empty() {
            vec![quoted("domain")]
        } else {
            key
        };
        format!(
            "\n[[rule]]\nname = {}\nlimit = \"fixed-window {}/{}s\"\nkey = [{}]\n\
             match = {{ domain = {}{conditions} }}\n",
            quoted(self.name.as_deref().unwrap_or_default()),
            self.most,
            self.seconds,
            key.join(", "),
            quoted(&self.domain),
        )
    }
}

fn text(node: &YamlNode) -> Result<&str, ConfigProblem> {
    node.scalar()
        .ok_or_else(|| node.place.problem("expected a text"))
}

fn number(field: &str, node: &YamlNode) -> Result<u64, ConfigProblem> {
    let number = node
        .scalar()
        .and_then(|text| text.parse().ok())
        .filter(|number| *number > 0);
    let expected = || {
        format!(
            "{field}: `{}`: expected a whole number above 0",
            shown(node)
        )
    };
    number.ok_or_else(|| node.place.problem(expected()))
}

/// Returns a text for an error, in which only control characters are escaped.
fn shown(node: &YamlNode) -> String {
    let text = node.scalar().unwrap_or_default().chars();
    let escaped = |one: char| {
        if one.is_control() {
            one.escape_debug().to_string()
        } else {
            one.into()
        }
    };
    text.map(escaped).collect()
}

fn list(node: &YamlNode) -> Result<&[YamlNode], ConfigProblem> {
    match &node.value {
        Value::List(list) => Ok(list),
        _ => Err(node.place.problem("expected a list")),
    }
}

fn unread(node: &YamlNode) -> ConfigProblem {
    let shown = shown(node);
    node.place.problem(format!(
        "`{shown}` has no counterpart; expected descriptors[0]['NAME'], in conditions with == 'VALUE' or \
         .startsWith('VALUE')"
    ))
}

/// Reads `descriptors[0]['NAME']`, `descriptors[0].NAME` or the earlier form `NAME`. Returns the
/// name, the index of the descriptor, and the rest of the expression.
fn entry(expression: &str) -> Option<(&str, u32, &str)> {
    let Some(rest) = expression.strip_prefix("descriptors[") else {
        let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
        let end = expression.find(|c| !is_name(c)).unwrap_or(expression.len());
        let (name, rest) = expression.split_at(end);
        return (!name.is_empty() && !name.ends_with(".startsWith")).then_some((name, 0, rest));
    };
    let (index, rest) = rest.split_once(']')?;
    let index = index.trim().parse().ok()?;
    let rest = rest.trim();
    if let Some(rest) = rest.strip_prefix('[') {
        let (name, rest) = literal(rest.trim())?;
        return Some((name, index, rest.strip_prefix(']')?));
    }
    let rest = rest.strip_prefix('.')?;
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let end = rest.find(|c| !is_name(c)).unwrap_or(rest.len());
    (end > 0).then(|| (&rest[..end], index, &rest[end..]))
}

/// Reads a text in quotes at the beginning of an expression; returns the text and the rest.
fn literal(expression: &str) -> Option<(&str, &str)> {
    let quote = expression
        .chars()
        .next()
        .filter(|c| matches!(c, '\'' | '"'))?;
    let (text, rest) = expression[1..].split_once(quote)?;
    (!text.contains('\\')).then(|| (text, rest.trim()))
}

/// Returns the pattern of the values that meet the rest of a condition.
fn compared(rest: &str, node: &YamlNode) -> Result<String, ConfigProblem> {
    let call = |rest: &str| Some((rest.strip_prefix(".startsWith(")?.to_owned(), "*", ")"));
    let equal = |rest: &str| Some((rest.strip_prefix("==")?.to_owned(), "", ""));
    let found = call(rest).or_else(|| equal(rest));
    let pattern = found.and_then(|(argument, star, end)| {
        let (text, rest) = literal(argument.trim())?;
        let is_plain = rest == end && !text.contains('*');
        is_plain.then(|| format!("{text}{star}"))
    });
    pattern.ok_or_else(|| unread(node))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_become_rules() {
        let text = "- namespace: shop\n  max_value: 10\n  seconds: 60\n  \
                    conditions: [\"descriptors[0]['req.method'] == 'POST'\", \"descriptors[0].path.startsWith('/a')\"]\n  \
                    variables: [\"descriptors[0]['user_id']\"]\n\
                    - namespace: shop\n  max_value: 5\n  seconds: 1\n  conditions: ['plan == \"free\"']\n  variables: []\n\
                    - {namespace: a b, name: A b, max_value: 1, seconds: 1, variables: [user_id]}\n";
        let expected = "version = 1\n\n\
             [[rule]]\nname = \"shop\"\nlimit = \"fixed-window 10/60s\"\nkey = [\"descriptor:user_id\"]\n\
             match = { domain = \"shop\", \"descriptor:req.method\" = \"POST\", \"descriptor:path\" = \"/a*\" }\n\n\
             [[rule]]\nname = \"shop-2\"\nlimit = \"fixed-window 5/1s\"\nkey = [\"domain\"]\n\
             match = { domain = \"shop\", \"descriptor:plan\" = \"free\" }\n\n\
             [[rule]]\nname = \"a-b\"\nlimit = \"fixed-window 1/1s\"\nkey = [\"descriptor:user_id\"]\n\
             match = { domain = \"a b\" }\n";
        assert_eq!(convert(text, "f").unwrap(), expected);
        for empty in ["", "[]"] {
            assert_eq!(
                convert(empty, "f").unwrap(),
                "version = 1\nrules = \"none\"\n"
            );
        }
    }

    #[test]
    fn limits_without_a_counterpart_are_errors_with_their_place() {
        let limit =
            |fields: &str| format!("- {{namespace: a, max_value: 1, seconds: 1, {fields}}}");
        for (text, place, why) in [
            ("a: 1".to_owned(), "f:1:1:", "a list of at most 1000 limits"),
            ("- a".to_owned(), "f:1:3:", "expected a limit"),
            (
                "- {namespace: a, max_value: 0, seconds: 1}".to_owned(),
                "f:1:29:",
                "max_value: `0`: expected a whole number above 0",
            ),
            (
                "- {namespace: a, max_value: -1}".to_owned(),
                "f:1:29:",
                "max_value: `-1`: expected",
            ),
            (
                "- {namespace: a, max_value: 1}".to_owned(),
                "f:1:3:",
                "seconds: this limit has none",
            ),
            (limit("colour: red"), "f:1:44:", "colour"),
            (limit("variables: user"), "f:1:55:", "expected a list"),
            (
                limit("variables: [\"f('x')\"]"),
                "f:1:56:",
                "`f('x')` has no counterpart",
            ),
            (
                limit("variables: [\"descriptors[x]['a']\"]"),
                "f:1:56:",
                "no counterpart",
            ),
            (
                limit("variables: [\"descriptors[0]['a\"]"),
                "f:1:56:",
                "no counterpart",
            ),
            (
                limit("conditions: [\"a != 'b'\"]"),
                "f:1:57:",
                "no counterpart",
            ),
            (
                limit("conditions: [\"a == 'b' && c == 'd'\"]"),
                "f:1:57:",
                "no counterpart",
            ),
            (
                limit("conditions: [\"a == 'b*'\"]"),
                "f:1:57:",
                "no counterpart",
            ),
            (
                limit("conditions: [\"a == 'b'\", \"a == 'c'\"]"),
                "f:1:69:",
                "two conditions",
            ),
            (
                limit("variables: [\"descriptors[0]['a']\", \"descriptors[1]['a']\"]"),
                "f:1:79:",
                "one descriptor",
            ),
        ] {
            let error = convert(&text, "f").unwrap_err().to_string();
            assert!(
                error.starts_with(place) && error.contains(why),
                "{text}: {error}"
            );
        }
    }
}
