//! Writes one rule as a server's configuration has it.

use std::io::{self, Write};

use earrrl::Rule;
use serde_json::json;

use super::{Group, Mark, RuleTerms};

/// The attributes that every request over HTTP has.
const ALWAYS_PRESENT: [&str; 3] = ["client", "path", "method"];

/// A rule of a server's configuration.
pub(super) struct TomlRule<'a> {
    pub name: &'a str,
    /// The attributes that a request must have, with the values of which one must fit.
    pub conditions: Vec<(String, Vec<String>)>,
    pub limit: &'a Rule,
    pub key: &'a [String],
    /// The clients that the rule ignores.
    pub exempt: Vec<String>,
}

/// Returns a condition with one value.
pub(super) fn single((name, value): &(String, String)) -> (String, Vec<String>) {
    (name.clone(), vec![value.clone()])
}

/// Returns values of a log as texts.
pub(super) fn texts<T: AsRef<[u8]>>(values: &[T]) -> Vec<String> {
    let text = |value: &T| String::from_utf8_lossy(value.as_ref()).into_owned();
    values.iter().map(text).collect()
}

/// Writes the rule for a group of clients, with `indent` before each line. The clients of one user agent, or of some
/// networks, share the limit: each of them sends less than many others.
///
/// # Errors
/// Returns the writer's error if writing fails.
pub(super) fn write_group(
    out: &mut impl Write,
    (group, number): (&Group, usize),
    terms: &RuleTerms,
    name: impl Fn(&u32) -> String,
    indent: &str,
) -> io::Result<()> {
    let mut conditions: Vec<_> = terms.conditions.iter().map(single).collect();
    if !group.paths.is_empty() {
        conditions.push(("path".to_owned(), texts(&group.paths)));
    }
    if matches!(group.mark, Mark::Agent | Mark::AgentInNetwork) {
        conditions.push(("header:user-agent".to_owned(), texts(&group.agents)));
    }
    if matches!(group.mark, Mark::Network | Mark::AgentInNetwork) {
        let networks = group.networks.iter().map(ToString::to_string);
        conditions.push(("client".to_owned(), networks.collect()));
    }
    if group.mark == Mark::Address {
        conditions.push((
            "client".to_owned(),
            group.touched.iter().map(&name).collect(),
        ));
    }
    let key = match group.mark {
        Mark::Client => &terms.client,
        Mark::User | Mark::ApiKey => group.mark.user_part(),
        _ => "'group'",
    };
    TomlRule {
        name: &format!("suggested-group-{number}"),
        conditions,
        limit: &group.limit.rule,
        key: &[key.to_owned()],
        exempt: group.exempt.iter().map(name).collect(),
    }
    .write(out, indent)
}

/// Returns a rule as a server's configuration has it.
pub fn rule_toml(rule: &Rule, terms: &RuleTerms) -> String {
    let mut text = Vec::new();
    let rule = TomlRule {
        name: "limit",
        conditions: terms.conditions.iter().map(single).collect(),
        limit: rule,
        key: &terms.key,
        exempt: Vec::new(),
    };
    let cost = terms.cost.iter().map(|cost| format!("cost = {cost}\n"));
    // Writing to a vector never fails.
    let _ = rule.write(&mut text, "");
    String::from_utf8_lossy(&text).into_owned() + &cost.collect::<String>()
}

impl TomlRule<'_> {
    /// Writes the rule, with `indent` before each line.
    pub(super) fn write(&self, out: &mut impl Write, indent: &str) -> io::Result<()> {
        writeln!(out, "{indent}[[rule]]\n{indent}name = \"{}\"", self.name)?;
        if !self.conditions.is_empty() {
            let pair = |(name, values): &(String, Vec<String>)| match &values[..] {
                [one] => format!("{} = {}", toml_key(name), toml_text(one)),
                several => format!("{} = {}", toml_key(name), toml_list(several)),
            };
            let pairs: Vec<_> = self.conditions.iter().map(pair).collect();
            writeln!(out, "{indent}match = {{ {} }}", pairs.join(", "))?;
        }
        if !self.exempt.is_empty() {
            let exempt = toml_list(&self.exempt);
            writeln!(out, "{indent}exempt = {{ client = {exempt} }}")?;
        }
        let (limit, key) = (toml_text(&self.limit.to_string()), toml_list(self.key));
        writeln!(out, "{indent}limit = {limit}\n{indent}key = {key}")?;
        let always = |part: &String| {
            let name = part.split('/').next().unwrap_or_default();
            ALWAYS_PRESENT.contains(&name) || part.starts_with('\'')
        };
        if !self.key.iter().all(always) {
            writeln!(out, "{indent}missing = \"skip\"")?;
        }
        Ok(())
    }
}

/// Returns texts as an array of TOML.
fn toml_list(texts: &[String]) -> String {
    let texts: Vec<_> = texts.iter().map(|text| toml_text(text)).collect();
    format!("[{}]", texts.join(", "))
}

/// Returns the name of an attribute as a key in TOML: in quotes, unless it has letters and digits only.
fn toml_key(name: &str) -> String {
    let is_word = name.bytes().all(|byte| byte.is_ascii_alphanumeric());
    if is_word {
        name.to_owned()
    } else {
        toml_text(name)
    }
}

/// Returns a text as a basic string of TOML. Those of JSON may contain the character DEL.
///
/// ```
/// assert_eq!(earrrl_logs::suggest::toml_text("a\"\n\x7f"), r#""a\"\n\u007f""#);
/// ```
pub fn toml_text(text: &str) -> String {
    json!(text).to_string().replace('\u{7f}', "\\u007f")
}
