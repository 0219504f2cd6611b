//! Writes the suggested rules as a server's configuration has them.

use std::io::{self, Write};

use earrrl::Rule;
use serde_json::json;

use super::{Advice, RuleTerms};

/// The attributes that every request over HTTP has.
const ALWAYS_PRESENT: [&str; 3] = ["client", "path", "method"];

/// Writes the suggested rules as a configuration file of a server. Requests that lack a part of the
/// key are not limited, since the advice says nothing about them.
///
/// # Errors
/// Returns the writer's error if writing fails.
pub fn write_toml(out: &mut impl Write, advice: &Advice<'_>) -> io::Result<()> {
    writeln!(out, "# {}", advice.reason())?;
    let RuleTerms {
        key,
        conditions,
        cost,
        prefixes,
        remarks,
        ..
    } = advice.terms;
    for remark in remarks {
        writeln!(out, "# {remark}")?;
    }
    if !prefixes.is_empty() {
        writeln!(out, "[client_address]")?;
    }
    for (name, bits) in prefixes {
        writeln!(out, "{name} = {bits}")?;
    }
    let second = advice
        .judged
        .second
        .as_ref()
        .map(|(limit, _)| ("suggested-second", limit));
    let suggested = advice.suggested().map(|limit| ("suggested", limit));
    for (name, limit) in suggested.into_iter().chain(second) {
        write_rule(out, name, &limit.rule, conditions, key)?;
        if let Some(cost) = cost {
            writeln!(out, "cost = {cost}")?;
        }
    }
    for (number, rule) in (1..).zip(&advice.parts.paths) {
        let path = String::from_utf8_lossy(&rule.path).into_owned();
        let name = format!("suggested-path-{number}");
        let path = [("path".to_owned(), path)];
        write_rule(out, &name, &rule.judged.suggested.rule, &path, key)?;
    }
    match &advice.parts.user {
        Some(judged) => write_rule(
            out,
            "suggested-user",
            &judged.suggested.rule,
            &[],
            &["user".to_owned()],
        ),
        None => Ok(()),
    }
}

fn write_rule(
    out: &mut impl Write,
    name: &str,
    limit: &Rule,
    conditions: &[(String, String)],
    key: &[String],
) -> io::Result<()> {
    writeln!(out, "[[rule]]\nname = \"{name}\"")?;
    if !conditions.is_empty() {
        let pair =
            |(name, value): &(String, String)| format!("{} = {}", toml_key(name), toml_text(value));
        let pairs: Vec<_> = conditions.iter().map(pair).collect();
        writeln!(out, "match = {{ {} }}", pairs.join(", "))?;
    }
    let parts: Vec<_> = key.iter().map(|part| toml_text(part)).collect();
    let limit = toml_text(&limit.to_string());
    writeln!(out, "limit = {limit}\nkey = [{}]", parts.join(", "))?;
    if key
        .iter()
        .any(|part| !ALWAYS_PRESENT.contains(&part.as_str()))
    {
        writeln!(out, "missing = \"skip\"")?;
    }
    Ok(())
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
