//! The requests of a log's second reading: when, by whom, for what, and with which answer.

use std::borrow::Cow;

use earrrl::Cost;
use foldhash::fast::RandomState;
use hashbrown::{HashMap, HashSet};

use crate::format::{Field, Record};
use crate::reading::{ClientNumbers, LoggedRequest};

/// The most requests that are held, at 24 bytes each.
const MOST_REQUESTS: usize = 1 << 28;

/// The most bytes of a path or a user agent that a rule can name.
const MOST_BYTES: usize = 240;

/// A set of clients, by their numbers.
pub(super) type Clients = HashSet<u32, RandomState>;

/// A hash table.
pub(super) type Table<K, V> = HashMap<K, V, RandomState>;

/// The number of a value that is missing, or that no rule can name.
pub(super) const NONE: u16 = u16::MAX;

/// A request by the numbers of its values.
#[derive(Debug, Clone, Copy)]
pub(super) struct Row {
    /// The time in nanoseconds since the epoch.
    pub time: u64,
    pub client: u32,
    /// The user's number; `u32::MAX` if the request has none.
    pub user: u32,
    pub path: u16,
    pub agent: u16,
    /// The status of the response; 0 if the log has none.
    pub status: u16,
}

/// The different values of a field, numbered in the order of their first requests; values beyond the first 65,535 have
/// no number.
#[derive(Debug, Default)]
pub(super) struct Values(Table<Box<[u8]>, u16>);

/// The requests of a log.
#[derive(Debug, Default)]
pub(super) struct Rows {
    pub wanted: WantedRules,
    pub all: Vec<Row>,
    pub paths: Values,
    pub agents: Values,
    pub users: ClientNumbers,
}

/// The rules that are looked for in a second reading.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WantedRules {
    /// True for rules for groups of many clients.
    pub groups: bool,
    /// True for rules for single paths, and for users.
    pub parts: bool,
}

/// The fields that may have the user agent and the status, in order of preference.
#[derive(Debug, Clone, Default)]
pub struct ProfileFields {
    /// The fields with the user agent.
    pub agent: Vec<Field>,
    /// The fields with the status of the response.
    pub status: Vec<Field>,
}

impl ProfileFields {
    /// Creates the lists of fields from a function that returns the fields of an attribute.
    pub fn new(fields: impl Fn(&str) -> Vec<Field>) -> Self {
        Self {
            agent: fields("header:user-agent"),
            status: fields("status"),
        }
    }
}

impl Values {
    pub(super) fn number(&mut self, value: &[u8]) -> u16 {
        match self.0.get(value) {
            Some(&number) => number,
            None if self.0.len() >= usize::from(NONE) => NONE,
            None => {
                let next = self.0.len() as u16;
                *self.0.entry(value.into()).or_insert(next)
            }
        }
    }

    /// Returns the values by their numbers.
    pub(super) fn names(&self) -> Vec<&[u8]> {
        let mut names: Vec<&[u8]> = vec![&[]; self.0.len()];
        for (name, &number) in &self.0 {
            names[usize::from(number)] = name;
        }
        names
    }
}

impl Rows {
    /// Adds a request of a client, whose user agent is known already.
    pub(super) fn add(
        &mut self,
        record: &Record<'_>,
        client: u32,
        agent: Option<&[u8]>,
        fields: &ProfileFields,
    ) {
        if self.all.len() >= MOST_REQUESTS {
            return;
        }
        let path = record.get(&Field::Path);
        let path = path.filter(|path| path.starts_with(b"/") && can_be_named(path));
        let agent = agent.filter(|agent| can_be_named(agent));
        let user = record.get(&Field::User);
        let status = first(record, &fields.status);
        let status = status.and_then(|text| std::str::from_utf8(&text).ok()?.parse().ok());
        self.all.push(Row {
            time: record.time(),
            client,
            user: user.map_or(u32::MAX, |user| {
                self.users.number(&user).unwrap_or(u32::MAX)
            }),
            path: path.map_or(NONE, |path| self.paths.number(&path)),
            agent: agent.map_or(NONE, |agent| self.agents.number(agent)),
            status: status.unwrap_or(0),
        });
    }
}

/// Returns the first value that a record has in one of the fields.
pub(super) fn first<'a>(record: &Record<'a>, fields: &[Field]) -> Option<Cow<'a, [u8]>> {
    fields.iter().find_map(|field| record.get(field))
}

/// Returns true if a rule's condition can name a value of a log: as UTF-8, without a `*`, which would be any text, and
/// without what a log may have escaped. A client chooses what it sends.
fn can_be_named(value: &[u8]) -> bool {
    let is_plain = |byte: &u8| !byte.is_ascii_control() && !b"*\"\\".contains(byte);
    value.len() <= MOST_BYTES
        && value.iter().all(is_plain)
        && value.trim_ascii().len() == value.len()
        && std::str::from_utf8(value).is_ok()
}

/// Returns a request as one of the client, or of the user, with this number.
pub(super) fn logged(row: &Row, number: u32) -> LoggedRequest {
    LoggedRequest {
        time: row.time,
        client: number,
        cost: Cost::ONE,
    }
}
