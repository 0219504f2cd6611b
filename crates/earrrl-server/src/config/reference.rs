//! Tests that `docs/configuration.md` and `contrib/limits.toml` have every field, and that their
//! examples are valid.

use std::collections::BTreeSet;

use super::Config;
use super::file::File;

const REFERENCE: &str = include_str!("../../../../docs/configuration.md");
const STARTER: &str = include_str!("../../../../contrib/limits.toml");

/// The headings of `docs/configuration.md`, each with a configuration that has an unknown field in
/// the section that the heading is about.
const SECTIONS: [(&str, &str); 14] = [
    ("Top level", "unknown = 1"),
    ("`[server]`", "[server]\nunknown = 1"),
    ("`[[server.token]]`", "[server]\n[[server.token]]\nunknown = 1"),
    ("`[server.tls]`", "[server.tls]\nunknown = 1"),
    ("`[server.names]`", "[server.names]\nunknown = 1"),
    ("`[server.otlp]`", "[server.otlp]\nunknown = 1"),
    ("`[engine]`", "[engine]\nunknown = 1"),
    ("`[client_address]`", "[client_address]\nunknown = 1"),
    ("`[attributes]`", "[attributes]\nunknown = 1"),
    ("`[authz]`", "[authz]\nunknown = 1"),
    ("`[envoy]`", "[envoy]\nunknown = 1"),
    ("`[metrics]`", "[metrics]\nunknown = 1"),
    ("`[[rule]]`", "[[rule]]\nunknown = 1"),
    ("`[[rule.override]]`", "[[rule]]\n[[rule.override]]\nunknown = 1"),
];

/// Returns the known fields, which serde lists in its error about an unknown field.
fn known_fields(text: &str) -> BTreeSet<String> {
    let error = toml::from_str::<File>(text).unwrap_err();
    let quoted = error.message().split('`').skip(1).step_by(2);
    quoted.filter(|name| *name != "unknown").map(str::to_owned).collect()
}

/// Returns the fields in the table below a heading of `docs/configuration.md`.
fn documented_fields(heading: &str) -> BTreeSet<String> {
    let (_, section) = REFERENCE.split_once(&format!("\n## {heading}\n")).unwrap();
    let section = section.split("\n## ").next().unwrap();
    let field = |line: &str| Some(line.strip_prefix("| `")?.split_once('`')?.0.to_owned());
    section.lines().filter_map(field).collect()
}

#[test]
fn the_reference_has_every_field() {
    for (heading, text) in SECTIONS {
        assert_eq!(documented_fields(heading), known_fields(text), "{heading}");
    }
    let headings: Vec<_> = REFERENCE.lines().filter_map(|line| line.strip_prefix("## ")).collect();
    assert_eq!(headings, SECTIONS.map(|(heading, _)| heading));
}

#[test]
fn the_references_examples_are_valid() {
    let examples = REFERENCE.split("```toml\n").skip(1);
    let examples: Vec<_> = examples.map(|rest| rest.split("```").next().unwrap()).collect();
    assert!(examples.len() >= SECTIONS.len() - 2);
    for example in examples {
        if cfg!(not(feature = "otlp")) && example.contains("[server.otlp]") {
            continue;
        }
        Config::parse(example, "example").unwrap();
    }
}

/// Returns the fields of `contrib/limits.toml`, each as the heading of its section and its line.
/// Fields in comments count.
fn starter_fields() -> Vec<(String, String)> {
    let mut heading = "Top level".to_owned();
    let mut fields = Vec::new();
    for line in STARTER.lines() {
        let line = line.strip_prefix("# ").unwrap_or(line);
        let word = line.split(' ').next().unwrap();
        if line.starts_with('[') {
            heading = format!("`{line}`");
        } else if line[word.len()..].starts_with(" = ") {
            fields.push((heading.clone(), line.to_owned()));
        }
    }
    fields
}

/// Returns true for a field that is a table with a heading of its own.
fn is_a_section(field: &str) -> bool {
    SECTIONS.iter().any(|(heading, _)| heading.trim_matches(['`', '[', ']']).ends_with(field))
}

#[test]
fn the_file_to_begin_with_has_every_field() {
    let fields = starter_fields();
    for (heading, _) in SECTIONS {
        let own = fields.iter().filter(|(section, _)| section == heading);
        let names = own.filter_map(|(_, line)| Some(line.split_once(' ')?.0.to_owned()));
        let without_sections = |names: BTreeSet<String>| -> BTreeSet<String> {
            names.into_iter().filter(|field| !is_a_section(field)).collect()
        };
        let documented = without_sections(documented_fields(heading));
        assert_eq!(without_sections(names.collect()), documented, "{heading}");
    }
}

#[test]
fn the_file_to_begin_with_has_valid_examples() {
    for (heading, line) in starter_fields() {
        let section = heading.trim_matches('`');
        let text = match section {
            "Top level" => line.clone(),
            "[[rule.override]]" => format!("[[rule]]\n{section}\n{line}"),
            _ => format!("{section}\n{line}"),
        };
        // A line alone may lack the fields that a section requires.
        let error = toml::from_str::<File>(&text).err().map(|error| error.message().to_owned());
        assert!(
            error.as_ref().is_none_or(|error| error.contains("missing field")),
            "{line} {error:?}"
        );
    }
}
