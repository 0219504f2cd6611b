//! Tests that `docs/configuration.md` documents every field, and that its examples are valid.

use std::collections::BTreeSet;

use super::Config;
use super::file::File;

const REFERENCE: &str = include_str!("../../../../docs/configuration.md");

/// The headings of `docs/configuration.md`, each with a configuration that has an unknown field in
/// the section that the heading is about.
const SECTIONS: [(&str, &str); 13] = [
    ("Top level", "unknown = 1"),
    ("`[server]`", "[server]\nunknown = 1"),
    ("`[[server.token]]`", "[server]\n[[server.token]]\nunknown = 1"),
    ("`[server.tls]`", "[server.tls]\nunknown = 1"),
    ("`[server.names]`", "[server.names]\nunknown = 1"),
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
        Config::parse(example, "example").unwrap();
    }
}
