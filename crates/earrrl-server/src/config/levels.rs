//! The levels of a rule, such as an organisation, its teams and their users. Each becomes a rule of its own, before
//! the rules are read: it has the fields of the rule, those of its own in place of them, and a key that begins with the
//! keys of the levels before it.

use std::collections::HashMap;

use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue};

use super::table::Reading;

/// The most levels of a rule.
const MAX_LEVELS: usize = 16;
/// The fields of a rule that each of its levels has instead.
const OF_LEVELS: [&str; 3] = ["key", "limit", "override"];

/// Replaces each rule that has levels by a rule for each of them, called by the names of both. Returns the names of the
/// rules that had levels, by the names of the rules for these.
pub(super) fn expand(file: &mut DeTable<'_>, reading: &Reading) -> HashMap<String, String> {
    let mut groups = HashMap::new();
    let Some(DeValue::Array(rules)) = file.get_mut("rule").map(Spanned::get_mut) else {
        return groups;
    };
    let all = std::mem::replace(rules, DeArray::new()).into_iter();
    *rules = all
        .flat_map(|rule| of_rule(&rule, reading, &mut groups).unwrap_or_else(|| vec![rule]))
        .collect();
    groups
}

/// Returns the rules for the levels of a rule, and adds their group; `None` if it has none.
fn of_rule<'t>(
    rule: &Spanned<DeValue<'t>>,
    reading: &Reading,
    groups: &mut HashMap<String, String>,
) -> Option<Vec<Spanned<DeValue<'t>>>> {
    let mut group = rule.get_ref().as_table()?.clone();
    let field = group.get("levels")?;
    let levels = field.get_ref().as_array()?.clone();
    if levels.is_empty() || levels.len() > MAX_LEVELS {
        let text = format!(
            "levels: {} levels; expected 1 to {MAX_LEVELS}",
            levels.len()
        );
        reading.note(field.span(), text);
    }
    group.remove("levels");
    for name in OF_LEVELS {
        if let Some(field) = group.remove(name) {
            reading.note(
                field.span(),
                format!("{name}: each level has its own; write it in `levels`"),
            );
        }
    }
    let name = group.remove("name");
    if name.is_none() {
        reading.note(rule.span(), "missing field `name`");
    }
    let name = name.and_then(|name| Some(name.get_ref().as_str()?.to_owned()));
    let mut key = DeArray::new();
    let level = |level: Spanned<DeValue<'t>>| {
        let mut fields = group.clone();
        match level.get_ref().as_table() {
            Some(own) => fields.extend(own.clone()),
            None => reading.note(
                level.span(),
                "levels: expected tables, as { name = \"team\", … }",
            ),
        }
        if let (Some(group), Some(own)) = (&name, fields.get_mut("name"))
            && let Some(text) = own.get_ref().as_str()
        {
            let text = format!("{group}-{text}");
            groups.insert(text.clone(), group.clone());
            *own.get_mut() = DeValue::String(text.into());
        }
        match fields.get_mut("key") {
            Some(own) => extend_key(&mut key, own),
            None => reading.note(
                level.span(),
                "missing field `key`, which tells the clients of this level apart",
            ),
        }
        Spanned::new(level.span(), DeValue::Table(fields))
    };
    Some(levels.into_iter().take(MAX_LEVELS).map(level).collect())
}

/// Appends the key of a level to that of the levels before it, and returns both together in its place.
fn extend_key<'t>(key: &mut DeArray<'t>, own: &mut Spanned<DeValue<'t>>) {
    let parts = match own.get_ref() {
        DeValue::Array(parts) => parts.clone(),
        _ => [own.clone()].into_iter().collect(),
    };
    parts.into_iter().for_each(|part| key.push(part));
    *own.get_mut() = DeValue::Array(key.clone());
}
