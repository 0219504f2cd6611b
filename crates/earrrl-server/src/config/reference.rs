//! Tests that `docs/configuration.md` and `contrib/limits.toml` have every field, that the documented
//! defaults and bounds are those of the code, and that the examples are valid.

use std::collections::BTreeSet;

use super::{Config, RuleConfig};

/// The secret in the examples.
const SECRET: &str = "replace-me-by-a-secret";
const REFERENCE: &str = include_str!("../../../../docs/configuration.md");
const STARTER: &str = include_str!("../../../../contrib/limits.toml");

/// The headings of `docs/configuration.md`, each with a configuration that has an unknown field in
/// the section that the heading is about.
const SECTIONS: [(&str, &str); 13] = [
    ("Top level", "unknown = 1"),
    ("`[server]`", "[server]\nunknown = 1"),
    (
        "`[[server.token]]`",
        "[server]\n[[server.token]]\nunknown = 1",
    ),
    ("`[server.tls]`", "[server.tls]\nunknown = 1"),
    ("`[server.names]`", "[server.names]\nunknown = 1"),
    ("`[engine]`", "[engine]\nunknown = 1"),
    ("`[client_address]`", "[client_address]\nunknown = 1"),
    ("`[attributes]`", "[attributes]\nunknown = 1"),
    ("`[authz]`", "[authz]\nunknown = 1"),
    ("`[envoy]`", "[envoy]\nunknown = 1"),
    ("`[metrics]`", "[metrics]\nunknown = 1"),
    ("`[[rule]]`", "[[rule]]\nunknown = 1"),
    (
        "`[[rule.override]]`",
        "[[rule]]\n[[rule.override]]\nunknown = 1",
    ),
];

/// Returns the known fields, which the error about an unknown field lists.
fn known_fields(text: &str) -> BTreeSet<String> {
    let error = Config::parse(text, "f").unwrap_err();
    let mut problems = error.problems.into_iter().map(|problem| problem.message);
    let unknown = |message: &String| message.starts_with("unknown field `unknown`");
    let message = problems.find(unknown).unwrap();
    let quoted = message.split('`').skip(1).step_by(2);
    quoted
        .filter(|name| *name != "unknown")
        .map(str::to_owned)
        .collect()
}

/// A field of the reference: the cells of its row.
struct Documented {
    name: &'static str,
    kind: &'static str,
    default: &'static str,
    bounds: &'static str,
}

/// Returns the rows of the table below a heading of `docs/configuration.md`.
fn documented(heading: &str) -> Vec<Documented> {
    let (_, section) = REFERENCE.split_once(&format!("\n## {heading}\n")).unwrap();
    let section = section.split("\n## ").next().unwrap();
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `"));
    let field = |row: &'static str| {
        let cells: Vec<_> = row.split('|').map(str::trim).collect();
        let name = cells[0].trim_end_matches('`');
        Documented {
            name,
            kind: cells[1],
            default: cells[2],
            bounds: cells[3],
        }
    };
    rows.map(field).collect()
}

/// Returns the names of the fields in the table below a heading of `docs/configuration.md`.
fn documented_fields(heading: &str) -> BTreeSet<String> {
    documented(heading)
        .iter()
        .map(|field| field.name.to_owned())
        .collect()
}

/// Returns a configuration in which a section has a field with this value, and the other fields
/// that the section or the field requires.
fn with_field(heading: &str, field: &str, value: Option<&str>) -> String {
    let own = value
        .map(|value| format!("{field} = {value}\n"))
        .unwrap_or_default();
    let rule = "[[rule]]\nname = \"a\"\n";
    let limit = "limit = \"gcra 1/s burst=9\"\n";
    let section = match heading {
        "Top level" => own,
        "`[[server.token]]`" if field == "name" => {
            format!(
                "[server]\n{heading}\ntoken = \"0123456789abcdef\"\nscopes = [\"check\"]\n{own}"
            )
        }
        "`[[server.token]]`" => {
            format!("[server]\n{heading}\nname = \"a\"\nscopes = [\"check\"]\n{own}")
        }
        "`[server.tls]`" => format!("{heading}\ncert = \"c\"\nkey = \"k\"\n{own}"),
        "`[engine]`" => {
            let base = match field {
                "capacity" | "max_reservations" => "",
                "not_persisted" => "state = \"s\"\n",
                _ => "redis = \"redis://localhost\"\n",
            };
            format!("{heading}\n{base}{own}")
        }
        "`[[rule]]`" if field == "name" => format!("[[rule]]\n{limit}{own}"),
        "`[[rule]]`" => match field {
            "max_bytes" => format!("{rule}limit = \"sliding-log 9/1m\"\n{own}"),
            "min_cost" => format!("{rule}{limit}cost = \"attribute:cost\"\n{own}"),
            "consistency" => {
                format!("[engine]\nredis = \"redis://localhost\"\n{rule}{limit}{own}")
            }
            _ => format!("{rule}{limit}{own}"),
        },
        "`[client_address]`" if field == "header" => format!("{heading}\nhops = 1\n{own}"),
        "`[envoy]`" if field == "node" => format!("{heading}\nxds = \"localhost:1\"\n{own}"),
        _ => format!("{heading}\n{own}"),
    };
    section.replace('`', "")
}

/// Returns the value at the beginning of a cell, in backticks, without the comment after it.
fn literal(cell: &str) -> Option<&str> {
    cell.strip_prefix('`')?
        .split_once('`')
        .map(|(literal, _)| literal)
}

#[test]
fn the_defaults_in_the_reference_are_those_of_the_code() {
    let mut checked = Vec::new();
    for (heading, _) in SECTIONS {
        for field in documented(heading) {
            let Some(default) = literal(field.default) else {
                continue;
            };
            let parsed = |value| {
                let text = with_field(heading, field.name, value);
                let config = Config::parse(&text, "f");
                let config = config.unwrap_or_else(|error| panic!("{error}\n{text}"));
                // These only note that a field is there, or where.
                let rules = config.rules.into_iter();
                let rules = rules
                    .map(|rule| RuleConfig {
                        capacity_place: None,
                        ..rule
                    })
                    .collect();
                format!(
                    "{:?}",
                    Config {
                        answers_proxies: false,
                        rules,
                        ..config
                    }
                )
            };
            let without = parsed(None);
            let with = parsed(Some(default));
            assert!(without == with, "{heading} {}: {default}", field.name);
            checked.push(field.name);
        }
    }
    assert!(
        checked.len() >= 45,
        "{} defaults: {checked:?}",
        checked.len()
    );
}

/// A number of the reference with its unit, as `1`, `86400s` or `1ms`.
fn number(word: &str) -> Option<(i128, &str)> {
    let word = word.trim_matches(['`', ',', ';', ':']);
    let digits = word
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(word.len());
    let (number, unit) = word.split_at(digits);
    let is_unit = matches!(unit, "" | "ms" | "s");
    is_unit
        .then(|| Some((number.parse().ok()?, unit)))
        .flatten()
}

/// Returns the two bounds that a cell states as `LEAST to MOST`.
fn bounds(cell: &str) -> Option<[(i128, &str); 2]> {
    let words: Vec<_> = cell.split_whitespace().collect();
    let found = words.windows(3).find_map(|words| {
        (words[1] == "to")
            .then(|| Some([number(words[0])?, number(words[2])?]))
            .flatten()
    });
    found.filter(|[(least, _), (most, _)]| least < most)
}

#[test]
fn the_bounds_in_the_reference_are_those_of_the_code() {
    let mut checked = Vec::new();
    for (heading, _) in SECTIONS {
        for field in documented(heading) {
            let Some([least, most]) = bounds(field.bounds) else {
                continue;
            };
            let value = |(number, unit): (i128, &str), more: i128| match field.kind {
                "number" | "bytes" => (number + more).to_string(),
                "duration" => format!("\"{}{unit}\"", number + more),
                _ => format!("{:?}", "a".repeat(usize::try_from(number + more).unwrap())),
            };
            let is_known = matches!(field.kind, "number" | "bytes" | "duration" | "text");
            if !is_known || field.name == "quantile" {
                continue;
            }
            let is_valid = |value: &str| {
                Config::parse(&with_field(heading, field.name, Some(value)), "f").is_ok()
            };
            let name = format!("{heading} {}", field.name);
            assert!(is_valid(&value(least, 0)), "{name}: {:?} is refused", least);
            assert!(is_valid(&value(most, 0)), "{name}: {:?} is refused", most);
            assert!(
                !is_valid(&value(most, 1)),
                "{name}: more than {:?} is accepted",
                most
            );
            if least.0 > 0 {
                assert!(
                    !is_valid(&value(least, -1)),
                    "{name}: below {:?} is accepted",
                    least
                );
            }
            checked.push(field.name);
        }
    }
    assert!(checked.len() >= 25, "{} bounds: {checked:?}", checked.len());
}

#[test]
fn the_reference_has_every_field() {
    for (heading, text) in SECTIONS {
        assert_eq!(documented_fields(heading), known_fields(text), "{heading}");
    }
    let headings: Vec<_> = REFERENCE
        .lines()
        .filter_map(|line| line.strip_prefix("## "))
        .collect();
    assert_eq!(headings, SECTIONS.map(|(heading, _)| heading));
}

#[test]
fn the_references_examples_are_valid() {
    let examples = REFERENCE.split("```toml\n").skip(1);
    let examples: Vec<_> = examples
        .map(|rest| rest.split("```").next().unwrap())
        .collect();
    assert!(examples.len() >= SECTIONS.len() - 2);
    for example in examples {
        // The secret of the examples is refused.
        assert!(!example.contains(SECRET) || Config::parse(example, "example").is_err());
        Config::parse(&example.replace(SECRET, "0123456789abcdef"), "example").unwrap();
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
    SECTIONS
        .iter()
        .any(|(heading, _)| heading.trim_matches(['`', '[', ']']).ends_with(field))
}

#[test]
fn the_file_to_begin_with_has_every_field() {
    let fields = starter_fields();
    for (heading, _) in SECTIONS {
        let own = fields.iter().filter(|(section, _)| section == heading);
        let names = own.filter_map(|(_, line)| Some(line.split_once(' ')?.0.to_owned()));
        let without_sections = |names: BTreeSet<String>| -> BTreeSet<String> {
            names
                .into_iter()
                .filter(|field| !is_a_section(field))
                .collect()
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
        // A line alone may lack the fields and files that it needs, and the example of a secret is refused.
        let allowed = [
            "missing field",
            "only with",
            "needs",
            "No such file",
            "that is the example",
            "expected token or",
            "no rule is called",
        ];
        for problem in Config::parse(&text, "f")
            .err()
            .iter()
            .flat_map(|error| &error.problems)
        {
            let is_allowed = allowed.iter().any(|part| problem.message.contains(part));
            assert!(is_allowed, "{line} {problem}");
        }
    }
}
