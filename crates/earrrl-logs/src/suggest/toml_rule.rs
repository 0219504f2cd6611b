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

/// Returns the condition that a request is for a path.
pub(super) fn path_is(path: &[u8]) -> (String, Vec<String>) {
    let path = String::from_utf8_lossy(path).into_owned();
    ("path".to_owned(), vec![path])
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
    exempt: Vec<String>,
    indent: &str,
) -> io::Result<()> {
    let mut conditions: Vec<_> = terms.conditions.iter().map(single).collect();
    conditions.extend(group.path.as_ref().map(|path| path_is(path)));
    let agents = group
        .agents
        .iter()
        .map(|agent| String::from_utf8_lossy(agent).into_owned());
    let networks = group.networks.iter().map(ToString::to_string);
    let key = match group.mark {
        Mark::Agent => {
            conditions.push(("header:user-agent".to_owned(), agents.collect()));
            "'group'"
        }
        Mark::Network => {
            conditions.push(("client".to_owned(), networks.collect()));
            "'group'"
        }
        Mark::Client => "client",
        Mark::User => "user",
    };
    TomlRule {
        name: &format!("suggested-group-{number}"),
        conditions,
        limit: &group.limit.rule,
        key: &[key.to_owned()],
        exempt,
    }
    .write(out, indent)
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
        let always =
            |part: &&String| ALWAYS_PRESENT.contains(&part.as_str()) || part.starts_with('\'');
        if !self.key.iter().all(|part| always(&part)) {
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
