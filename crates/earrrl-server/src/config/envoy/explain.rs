//! Explanations of which limit applies to a descriptor of an Envoy request.

use std::borrow::Cow;
use std::fmt::Write as _;

use super::algorithm::EnvoyAlgorithm;
use super::file::level_name;
use super::file::{Amount, LimitConfig};
use super::tree::{Matched, Tree, TreeLimit};
use crate::protobuf::ratelimit::Unit;

/// Explains how each entry of a descriptor is matched, with one line for each entry.
pub fn explain(
    tree: &Tree,
    algorithm: EnvoyAlgorithm,
    domain: &str,
    entries: &[(&str, &str)],
) -> String {
    let mut text = String::new();
    let walk = tree.walk(domain, entries.iter().copied());
    // Writing to a string cannot fail.
    let _ = match walk.domain {
        true => writeln!(text, "domain `{domain}`"),
        false => writeln!(text, "domain `{domain}` is unknown: no limit, OK"),
    };
    for (place, (key, value)) in entries.iter().enumerate().take_while(|_| walk.domain) {
        let met = met(walk.steps.get(place).map(|step| (step.matched, step.share)));
        let _ = writeln!(text, "  {key}={value} {met}");
        if walk.steps.len() <= place {
            return text;
        }
    }
    match walk.limit.and_then(|index| tree.limits().get(index)) {
        Some(limit) => describe(&mut text, limit, algorithm),
        None if walk.domain => {
            text.push_str("no limit where the last entry ends: OK\n");
        }
        None => {}
    }
    text
}

/// Describes how one entry matched, and whether all values that match share a counter.
fn met(step: Option<(Matched<'_>, bool)>) -> Cow<'static, str> {
    match step {
        None => "matches nothing on this level: no limit, OK".into(),
        Some((Matched::Exact, _)) => "matches its key and value".into(),
        Some((Matched::Key, _)) => "matches its key alone; each value counts for itself".into(),
        Some((Matched::Wildcard(pattern), true)) => {
            format!("matches `{pattern}`; all values share one counter").into()
        }
        Some((Matched::Wildcard(pattern), false)) => {
            format!("matches `{pattern}`; each value counts for itself").into()
        }
    }
}

fn describe(text: &mut String, limit: &TreeLimit, algorithm: EnvoyAlgorithm) {
    let levels = limit
        .path
        .iter()
        .map(|part| level_name(&part.key, &part.value));
    let path = levels.collect::<Vec<_>>().join(" > ");
    let source = &limit.source;
    let place = limit.place;
    let _ = writeln!(text, "{path}, {source}:{}:{}", place.line, place.column);
    let _ = writeln!(text, "  {}", amount(&limit.config, algorithm));
    let config = &limit.config;
    if !config.name.is_empty() {
        let name = &config.name;
        let _ = writeln!(
            text,
            "  named {name}: dropped where another descriptor replaces it"
        );
    }
    if !config.replaces.is_empty() {
        let names = config.replaces.join(", ");
        let _ = writeln!(text, "  replaces {names} in the same request");
    }
    for (set, meaning) in [
        (config.shadow_mode, "shadow mode: counted, never enforced"),
        (
            config.quota_mode,
            "quota mode: enforced when all quotas of a request are over",
        ),
    ] {
        if set {
            let _ = writeln!(text, "  {meaning}");
        }
    }
}

fn amount(limit: &LimitConfig, algorithm: EnvoyAlgorithm) -> String {
    let rule = limit.rule(algorithm).ok().flatten();
    let rule = rule.map_or_else(String::new, |rule| rule.to_string());
    match limit.amount {
        Amount::Unlimited => "unlimited".to_owned(),
        Amount::PerUnit(0, _) => "nothing is allowed".to_owned(),
        Amount::PerUnit(requests, unit) => {
            let article = if unit == Unit::Hour { "an" } else { "a" };
            format!("{requests} {article} {}: {rule}", unit.name())
        }
        Amount::Own => rule,
    }
}
