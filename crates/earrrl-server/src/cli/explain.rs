//! `earrrl config explain`: the rules that apply to a request, or the limit of a descriptor.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use earrrl::{ManualClock, Nanos};
use earrrl_server::config::attribute::attribute_name;
use earrrl_server::config::envoy::explain::explain as explain_descriptor;
use earrrl_server::config::rule::OnMissing;
use earrrl_server::config::{Config, EngineConfig};
use earrrl_server::service::Service;
use earrrl_server::service::attributes::Attributes;
use earrrl_server::service::rule::ActiveRule;

use super::CliFailure;

/// Prints the rules that apply to a request, or, if the first word is a domain, the limit of a descriptor.
pub(super) fn run(file: &Path, config: &Config, words: &[String]) -> Result<ExitCode, CliFailure> {
    let (domain, pairs) = match words.split_first() {
        Some((first, rest)) if !first.contains('=') => (Some(first), rest),
        _ => (None, words),
    };
    let pairs: Vec<_> = pairs
        .iter()
        .map(|word| pair(word))
        .collect::<Result<_, _>>()?;
    let text = match (domain, &config.envoy.tree) {
        (None, Some(_)) if config.rules.is_empty() => {
            let why = "there are no rules, and descriptors need their domain first";
            return Err(CliFailure::new(format!("{why}, as `DOMAIN NAME=VALUE`")));
        }
        (None, _) => explain_request(config, &pairs)?,
        (Some(domain), Some(tree)) => {
            explain_descriptor(tree, config.envoy.algorithm, domain, &pairs)
        }
        (Some(domain), None) => {
            return Err(CliFailure::new(format!(
                "`{domain}`: expected NAME=VALUE; a domain needs descriptors, and [envoy] in {} \
                 names no files",
                file.display()
            )));
        }
    };
    write!(io::stdout(), "{text}")?;
    Ok(ExitCode::SUCCESS)
}

fn pair(word: &str) -> Result<(&str, &str), CliFailure> {
    let pair = word.split_once('=').filter(|(name, _)| !name.is_empty());
    pair.ok_or_else(|| {
        CliFailure::new(format!(
            "`{word}`: expected NAME=VALUE, as client=192.0.2.7"
        ))
    })
}

/// Explains every rule for a request with the code that serves requests, in memory and with tables
/// for one client.
fn explain_request(config: &Config, pairs: &[(&str, &str)]) -> Result<String, CliFailure> {
    let mut config = config.clone();
    config.engine = EngineConfig::default();
    config.capacity = 1;
    config
        .rules
        .iter_mut()
        .for_each(|rule| rule.capacity = None);
    let service = Service::new(&config, Arc::new(ManualClock::new(Nanos::ZERO)))
        .map_err(|error| CliFailure::new(error.to_string()))?;
    let rules = service.rules();
    let name = |(name, _): &(&str, _)| attribute_name(name).unwrap_or_else(|_| (*name).to_owned());
    let names: Vec<String> = pairs.iter().map(name).collect();
    if let Some(at) = (1..names.len()).find(|&at| names[..at].contains(&names[at])) {
        return Err(CliFailure::new(format!(
            "`{}`: is given twice",
            pairs[at].0
        )));
    }
    let values = pairs.iter().map(|(_, value)| value.as_bytes().into());
    let named = names.iter().map(|name| name.as_str().into()).zip(values);
    let request = Attributes::new(named, &rules.reading);
    let mut text = String::new();
    for rule in rules.iter() {
        explain_rule(&mut text, rule, &request);
    }
    let is_read = |name: &String| {
        rules.headers.contains(name)
            || rules
                .iter()
                .flat_map(ActiveRule::attributes)
                .any(|read| read == name)
    };
    for ((given, _), _) in pairs.iter().zip(&names).filter(|(_, name)| !is_read(name)) {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "no rule reads the attribute `{given}`");
    }
    Ok(text)
}

/// Writes whether a rule applies to a request, and if so, the key, cost and limit.
fn explain_rule(text: &mut String, rule: &ActiveRule, request: &Attributes<'_>) {
    let name = &rule.name;
    if let Some(condition) = rule.unmet(request) {
        let value = request
            .get(&condition.attribute)
            .map(String::from_utf8_lossy);
        let found = value.map_or("has none".to_owned(), |value| format!("has \"{value}\""));
        let _ = writeln!(
            text,
            "{name}: does not apply: needs {condition}, and the request {found}"
        );
        return;
    }
    let Some(limit) = rule.limit_for(request) else {
        let _ = writeln!(text, "{name}: exempts the request");
        return;
    };
    let key = rule.key(request);
    if let Some(attribute) = rule.lacks(request, &key)
        && rule.config.missing != OnMissing::Share
    {
        let verdict = match rule.config.missing {
            OnMissing::Deny => "denies the request",
            _ => "does not apply",
        };
        let _ = writeln!(text, "{name}: {verdict}: the request has no `{attribute}`");
        return;
    }
    let _ = writeln!(text, "{name}: applies, action {}", rule.action_name());
    let _ = writeln!(text, "  key: \"{}\"", key.escape_ascii());
    explain_missing_parts(text, rule, request);
    let _ = writeln!(text, "  cost: {}", rule.cost(request));
    let origin = match std::ptr::eq(limit, &rule.own) {
        true => String::new(),
        false => format!(", by an override of {}", rule.own.rule),
    };
    let _ = writeln!(text, "  limit: {}{origin}", limit.rule);
}

/// Writes a line for each attribute of the key that the request lacks.
fn explain_missing_parts(text: &mut String, rule: &ActiveRule, request: &Attributes<'_>) {
    for part in &rule.config.key {
        if rule.lacks_part(request, part) {
            let _ = writeln!(
                text,
                "    the request has no `{part}`: all requests without it share one key"
            );
        }
    }
}
