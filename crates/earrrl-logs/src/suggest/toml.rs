//! Writes the suggested rules as a server's configuration has them.

use std::io::{self, Write};

use super::toml_rule::{TomlRule, single, texts, write_group};
use super::{Advice, RuleTerms};

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
        remarks,
        ..
    } = advice.terms;
    for remark in remarks {
        writeln!(out, "# {remark}")?;
    }
    let second = advice
        .judged
        .second
        .as_ref()
        .map(|(limit, _)| ("suggested-second", limit));
    let suggested = advice.suggested().map(|limit| ("suggested", limit));
    for (name, limit) in suggested.into_iter().chain(second) {
        TomlRule {
            name,
            conditions: conditions.iter().map(single).collect(),
            limit: &limit.rule,
            key,
            exempt: Vec::new(),
        }
        .write(out, "")?;
        if let Some(cost) = cost {
            writeln!(out, "cost = {cost}")?;
        }
    }
    for (number, group) in (1..).zip(&advice.parts.groups) {
        write_group(out, (group, number), advice.terms, advice.name(), "")?;
    }
    for (number, rule) in (1..).zip(&advice.parts.paths) {
        TomlRule {
            name: &format!("suggested-path-{number}"),
            conditions: vec![("path".to_owned(), texts(&[&rule.path]))],
            limit: &rule.judged.suggested.rule,
            key,
            exempt: Vec::new(),
        }
        .write(out, "")?;
    }
    match &advice.parts.user {
        Some(judged) => TomlRule {
            name: "suggested-user",
            conditions: Vec::new(),
            limit: &judged.suggested.rule,
            key: &[advice.parts.user_part.to_owned()],
            exempt: Vec::new(),
        }
        .write(out, ""),
        None => Ok(()),
    }
}
