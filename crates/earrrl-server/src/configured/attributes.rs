//! The attributes of a log's line, by the names that a server's configuration gives them.

use std::borrow::Cow;

use earrrl_server::config::Config;
use earrrl_server::config::attribute::{Condition, KeyPart};
use earrrl_server::config::rule::{CostSource, RuleConfig};
use earrrl_server::service::key::{join, split};

use earrrl_logs::format::{Field, Record};
use earrrl_logs::line::{Skip, is_client, last_of_list};
use earrrl_logs::reading::RecordKey;

/// The attributes that a configuration reads, and the fields of a log's line that may hold them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AttributeNames {
    attributes: Vec<(String, Vec<Field>)>,
}

impl AttributeNames {
    /// Collects the attributes that a configuration's rules name, and the attribute that contains
    /// the client's address.
    pub(crate) fn of(config: &Config) -> Self {
        let mut names: Vec<String> = config.rules.iter().flat_map(names).collect();
        names.push("client".to_owned());
        let address = &config.client_address;
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
    pub(crate) fn pairs<'a>(&'a self, key: &'a [u8]) -> Vec<(Cow<'a, str>, Cow<'a, [u8]>)> {
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

/// Returns the attributes that a rule reads.
fn names(rule: &RuleConfig) -> Vec<String> {
    let overrides = rule.overrides.iter().flat_map(|entry| &entry.conditions);
    let conditions = rule.conditions.iter().chain(&rule.exempt).chain(overrides);
    let mut names: Vec<String> = conditions
        .map(|c: &Condition| c.attribute.clone())
        .collect();
    names.extend(
        rule.key
            .iter()
            .flat_map(KeyPart::attributes)
            .map(str::to_owned),
    );
    match &rule.cost {
        CostSource::Fixed(_) => {}
        CostSource::ByPath(_) => names.push("path".to_owned()),
        CostSource::Attribute(name) => names.push(name.clone()),
    }
    names
}

/// Returns the fields of a log's line that may hold an attribute, in order of preference.
pub(crate) fn fields(attribute: &str) -> Vec<Field> {
    let names: Vec<String> = match attribute.strip_prefix("header:") {
        Some("x-forwarded-for") => vec!["forwarded_for".to_owned()],
        Some("user-agent") => ["agent", "user_agent", "cs(User-Agent)", "http_user_agent"]
            .map(str::to_owned)
            .into(),
        Some("referer") => ["referer", "cs(Referer)", "http_referer"]
            .map(str::to_owned)
            .into(),
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
        None if attribute == "method" => {
            let names = ["method", "request_method", "request.method", "httpMethod"];
            let products = [
                "RequestMethod",
                "ClientRequestMethod",
                "httpRequest.requestMethod",
            ];
            names
                .into_iter()
                .chain(products)
                .chain(["cs-method"])
                .map(str::to_owned)
                .collect()
        }
        None if attribute == "status" => {
            let names = [
                "status",
                "sc-status",
                "status_code",
                "response_code",
                "httpRequest.status",
            ];
            let products = ["DownstreamStatus", "EdgeResponseStatus", "response.status"];
            names
                .into_iter()
                .chain(products)
                .map(str::to_owned)
                .collect()
        }
        None => vec![attribute.to_owned()],
    };
    names.iter().map(|name| Field::new(name)).collect()
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
