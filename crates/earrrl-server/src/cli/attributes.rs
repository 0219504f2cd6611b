//! The attributes of a log's line, by the names that a server's configuration gives them; and the conditions of
//! `--where` on the lines, which match as a configuration's conditions do.

use std::borrow::Cow;
use std::str::FromStr;

use earrrl_logs::format::{Field, Record};
use earrrl_logs::line::{Skip, is_client, last_of_list};
use earrrl_logs::reading::{RecordCondition, RecordKey};
use earrrl_server::config::attribute::{Condition, attribute_name};
use earrrl_server::service::attributes::{Attributes, ReadOptions};
use earrrl_server::service::key::{join, split};
use earrrl_server::service::rule::ActiveRule;
use earrrl_server::service::rules::ActiveRules;
use earrrl_tower::Prefixes;
use earrrl_tower::path::Paths;

/// The attributes that a configuration reads, and the fields of a log's line that may hold them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AttributeNames {
    attributes: Vec<(String, Vec<Field>)>,
}

impl AttributeNames {
    /// Collects the attributes that rules read, and the attribute that contains the client's address.
    pub(super) fn of(rules: &ActiveRules) -> Self {
        let read = rules.iter().flat_map(ActiveRule::attributes);
        let mut names: Vec<String> = read.chain(["client"]).map(str::to_owned).collect();
        let address = &rules.reading.client_address;
        if address.believes_proxies() {
            names.push(format!("header:{}", address.header()));
        }
        names.sort_unstable();
        names.dedup();
        Self {
            attributes: names
                .into_iter()
                .map(|name| (name.clone(), fields(&name)))
                .collect(),
        }
    }

    /// Returns the names and values of the attributes in a key that [`AttributeNames::key`] has
    /// created.
    pub(super) fn pairs<'a>(&'a self, key: &'a [u8]) -> Vec<(Cow<'a, str>, Cow<'a, [u8]>)> {
        let values = split(key, self.attributes.len()).unwrap_or_default();
        let pairs = self
            .attributes
            .iter()
            .zip(values)
            .filter(|(_, value)| !value.is_empty());
        pairs
            .map(|((name, _), value)| (name.into(), value.into()))
            .collect()
    }
}

impl RecordKey for AttributeNames {
    /// Joins the values of all attributes to one key. A missing value is stored as empty, since no
    /// log format has empty fields.
    fn key(&self, record: &Record<'_>, strict: bool) -> Result<Vec<u8>, Skip> {
        let mut values = Vec::with_capacity(self.attributes.len());
        for (name, fields) in &self.attributes {
            let value = fields.iter().find_map(|field| record.get(field));
            let mut value = value.unwrap_or_default();
            if name == "client" {
                value = last_of_list(&value).to_vec().into();
                if strict && !value.is_empty() && !is_client(&value) {
                    return Err(Skip::Client);
                }
            }
            values.push(value);
        }
        Ok(join(values.iter().map(|value| &**value)).to_vec())
    }

    fn missing(&self, known: &[&str]) -> Vec<String> {
        let has = |fields: &[Field]| fields.iter().any(|field| known.contains(&field.name()));
        let without = self.attributes.iter().filter(|(_, fields)| !has(fields));
        without.map(|(name, _)| name.clone()).collect()
    }
}

/// Returns the fields of a log's line that may hold an attribute, in order of preference.
pub(super) fn fields(attribute: &str) -> Vec<Field> {
    let usual: &[&str] = match attribute {
        "header:x-forwarded-for" => &["forwarded_for"],
        "header:user-agent" => &["agent", "user_agent", "cs(User-Agent)", "http_user_agent"],
        "header:referer" => &["referer", "cs(Referer)", "http_referer"],
        "method" => &[
            "method",
            "request_method",
            "request.method",
            "httpMethod",
            "RequestMethod",
            "ClientRequestMethod",
            "httpRequest.requestMethod",
            "cs-method",
        ],
        "status" => &[
            "status",
            "sc-status",
            "status_code",
            "response_code",
            "httpRequest.status",
            "DownstreamStatus",
            "EdgeResponseStatus",
            "response.status",
        ],
        _ => &[],
    };
    let others = match attribute.strip_prefix("header:") {
        _ if !usual.is_empty() => Vec::new(),
        None => vec![attribute.to_owned()],
        Some(header) => {
            let low = header.replace('-', "_");
            vec![
                format!("http_{low}"),
                low,
                header.to_owned(),
                format!("request.headers.{header}"),
                format!("request.headers.{}", titled(header)),
            ]
        }
    };
    let others = others.iter().map(String::as_str);
    let names = usual.iter().copied().chain(others);
    names.map(Field::new).collect()
}

/// Returns a header's name as most programs write it, such as `X-Api-Key`.
fn titled(header: &str) -> String {
    let mut start = true;
    let letter = |c: char| {
        let letter = if start { c.to_ascii_uppercase() } else { c };
        start = c == '-';
        letter
    };
    header.chars().map(letter).collect()
}

/// The condition of one flag `--where NAME=VALUE`.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct LogCondition {
    condition: Condition,
    /// The value as it was given.
    value: String,
    /// The fields of a line that may hold the value, in order of preference.
    fields: Vec<Field>,
}

impl FromStr for LogCondition {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let pair = text
            .split_once('=')
            .filter(|(name, value)| !name.is_empty() && !value.is_empty());
        let Some((name, value)) = pair else {
            return Err(
                "expected NAME=VALUE, such as path=/login, status=4* or client=10.0.0.0/8".into(),
            );
        };
        // Other names are those of fields of the log.
        let name = attribute_name(name).unwrap_or_else(|_| name.to_owned());
        let condition = Condition::new(&name, value, Paths::TOLERANT)?;
        Ok(Self {
            condition,
            value: value.to_owned(),
            fields: fields(&name),
        })
    }
}

impl LogCondition {
    /// Returns the name of the attribute and the value that it must have.
    pub(super) fn pair(&self) -> (&str, &str) {
        (&self.condition.attribute, &self.value)
    }

    fn holds(&self, record: &Record<'_>, reading: &ReadOptions) -> bool {
        let Some(value) = self.fields.iter().find_map(|field| record.get(field)) else {
            return false;
        };
        let value = match self.fields[..] {
            // A client's field may also contain a port and the addresses of proxies, so only the
            // address is compared.
            [Field::Client] => {
                let mut address = Vec::new();
                let last = last_of_list(&value);
                Cow::Owned(
                    Prefixes::new(32, 128)
                        .key_of_text(last, &mut address)
                        .to_vec(),
                )
            }
            _ => value,
        };
        let pair = (Cow::Borrowed(&*self.condition.attribute), value);
        Attributes::new([pair], reading).meet(&self.condition)
    }
}

/// The conditions of all `--where` flags; a line is read if all of them hold.
#[derive(Debug)]
pub(super) struct LogConditions {
    conditions: Vec<LogCondition>,
    reading: ReadOptions,
}

impl LogConditions {
    /// Creates the filter that requires all `conditions`.
    pub(super) fn new(conditions: Vec<LogCondition>) -> Self {
        let reading = ReadOptions {
            paths: Paths::TOLERANT,
            ..ReadOptions::default()
        };
        Self {
            conditions,
            reading,
        }
    }
}

impl RecordCondition for LogConditions {
    fn holds(&self, record: &Record<'_>) -> bool {
        self.conditions
            .iter()
            .all(|condition| condition.holds(record, &self.reading))
    }

    fn missing(&self, known: &[&str]) -> Option<String> {
        let has = |field: &Field| known.contains(&field.name());
        let without = self
            .conditions
            .iter()
            .find(|one| !one.fields.iter().any(has));
        without.map(|one| one.condition.attribute.clone())
    }
}
