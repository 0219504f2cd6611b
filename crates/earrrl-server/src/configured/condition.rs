//! The conditions of `--where` on the lines of a log, which match as a configuration's conditions
//! do.

use std::borrow::Cow;
use std::str::FromStr;

use earrrl_logs::format::{Field, Record};
use earrrl_logs::line::last_of_list;
use earrrl_logs::reading::RecordCondition;
use earrrl_server::config::attribute::{Condition, attribute_name};
use earrrl_server::service::attributes::{Attributes, ReadOptions};
use earrrl_tower::Prefixes;
use earrrl_tower::path::Paths;

use super::attributes::fields;

/// The condition of one flag `--where NAME=VALUE`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct LogCondition {
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
    pub(crate) fn pair(&self) -> (&str, &str) {
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
pub(crate) struct LogConditions {
    conditions: Vec<LogCondition>,
    reading: ReadOptions,
}

impl LogConditions {
    /// Creates the filter that requires all `conditions`.
    pub(crate) fn new(conditions: Vec<LogCondition>) -> Self {
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
