//! Profiles the clients that the advice names: their usual path, and signs that they may need an
//! exemption.

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use earrrl::RuleError;
use foldhash::fast::RandomState;
use hashbrown::HashMap;

use super::PartRules;
use super::agents::{CRAWLERS, MONITORS, has_any};
use super::rows::{ProfileFields, Rows, WantedRules, first};
use crate::format::{Field, Record};
use crate::line::{Escaped, shell_word};
use crate::reading::{ClientNumbers, KeyMaker, LogReader, Selection};
use crate::text::percent;

/// The most different values of a field that are counted for each client.
const MOST_VALUES: usize = 64;

/// The most bytes of a value that are compared and kept.
const MOST_BYTES: usize = 160;

/// The number of different user agents or users from which on an address probably serves many
/// people.
const CROWD: usize = 6;

/// The share of requests for one path from which on a limit for that path alone is suggested.
const MAIN: f64 = 0.6;

/// The crawlers whose operators publish the domains of their hosts: a substring of the user agent, and
/// the ends of the host names.
const NAMED_CRAWLERS: [(&str, &[&str]); 6] = [
    (
        "google",
        &[".googlebot.com", ".google.com", ".googleusercontent.com"],
    ),
    ("bingbot", &[".search.msn.com"]),
    ("yandex", &[".yandex.ru", ".yandex.net", ".yandex.com"]),
    ("baidu", &[".baidu.com", ".baidu.jp"]),
    ("applebot", &[".applebot.apple.com"]),
    ("slurp", &[".crawl.yahoo.net"]),
];

/// The fields in which logs have the host name of a client's address.
const HOSTS: [&str; 7] = [
    "c-dns",
    "remote_host",
    "hostname",
    "client.domain",
    "source.domain",
    "reverse_dns",
    "rdns",
];

/// Counts how often each value occurs, up to a bounded number of different values.
#[derive(Debug, Clone, Default)]
struct ValueTally {
    counts: HashMap<Vec<u8>, u64, RandomState>,
    all: u64,
}

/// The user agents, paths, users and host names in the requests of one client.
#[derive(Debug, Clone, Default)]
struct KeyProfile {
    agents: ValueTally,
    paths: ValueTally,
    users: ValueTally,
    hosts: ValueTally,
    requests: u64,
    /// The number of requests that were forwarded for another address.
    forwarded: u64,
}

/// The findings of a second reading of the logs: the profile of each client that the advice names,
/// by the client's number, and all requests by path and by user.
#[derive(Debug, Default)]
pub struct Profiles {
    clients: HashMap<u32, KeyProfile, RandomState>,
    rows: Rows,
}

/// The settings of the second reading of the logs.
pub struct SecondReading<'a> {
    /// The files of the first reading.
    pub files: &'a [PathBuf],
    /// The selection of the first reading.
    pub selection: Selection,
    /// The fields that may contain the user agent and the status.
    pub fields: ProfileFields,
    /// The rules for which all requests are held.
    pub wanted: WantedRules,
}

/// Adds the requests of the named clients to their profiles.
struct Profiler {
    fields: ProfileFields,
    /// True if the key has the client's address, so that an address for which it forwarded a request is
    /// another one.
    by_address: bool,
    state: Mutex<(KeyMaker, ClientNumbers, Profiles)>,
}

impl ValueTally {
    fn add(&mut self, value: &[u8], count: u64) {
        self.all += count;
        let value = &value[..value.len().min(MOST_BYTES)];
        if let Some(known) = self.counts.get_mut(value) {
            *known += count;
        } else if self.counts.len() < MOST_VALUES {
            self.counts.insert(value.to_vec(), count);
        }
    }

    /// Returns the most frequent value and its count. Among equals it is the first in byte order.
    fn top(&self) -> Option<(&[u8], u64)> {
        let counts = self
            .counts
            .iter()
            .map(|(value, &count)| (&value[..], count));
        counts.max_by(|(a, one), (b, other)| one.cmp(other).then_with(|| b.cmp(a)))
    }
}

impl KeyProfile {
    fn is_forwarder(&self) -> bool {
        self.forwarded > 0 && self.forwarded * 2 >= self.requests
    }
}

impl Profiler {
    fn take(&self, record: &Record<'_>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (
            keys,
            clients,
            Profiles {
                clients: profiles,
                rows,
            },
        ) = &mut *state;
        // A record without a key was already reported as skipped when the log was first read.
        let Ok(Some(client)) = keys.with(record, |key| clients.number(key)) else {
            return;
        };
        let agent = first(record, &self.fields.agent);
        if rows.wanted != WantedRules::default() {
            rows.add(record, client, agent.as_deref(), &self.fields);
        }
        let Some(profile) = profiles.get_mut(&client) else {
            return;
        };
        let add = |tally: &mut ValueTally, value: Option<Cow<'_, [u8]>>| {
            value.into_iter().for_each(|value| tally.add(&value, 1));
        };
        add(&mut profile.agents, agent);
        add(&mut profile.paths, record.get(&Field::Path));
        add(&mut profile.users, record.get(&Field::User));
        let host = |name: &&str| record.get(&Field::Named((*name).into()));
        add(&mut profile.hosts, HOSTS.iter().find_map(host));
        profile.requests += 1;
        let client = record.get(&Field::Client);
        let forwarded = record.get(&Field::Forwarded);
        profile.forwarded +=
            u64::from(self.by_address && forwarded.is_some() && forwarded != client);
    }
}

impl Profiles {
    /// Reads the logs again to profile the named clients, whose numbers are those of `clients`. The
    /// profiles are empty if standard input was among the logs, since it cannot be read again.
    pub fn read(
        reading: SecondReading<'_>,
        clients: &mut ClientNumbers,
        named: impl Iterator<Item = u32>,
    ) -> Self {
        let SecondReading {
            files,
            mut selection,
            fields,
            wanted,
        } = reading;
        if files.iter().any(|file| file == Path::new("-")) {
            return Self::default();
        }
        let empty = named
            .map(|client| (client, KeyProfile::default()))
            .collect();
        let profiles = Self {
            clients: empty,
            rows: Rows {
                wanted,
                ..Rows::default()
            },
        };
        let strict = selection.format.is_none();
        let by_address = selection.key.fields().contains(&Field::Client);
        let maker = KeyMaker::new(selection.key.clone(), selection.prefixes, strict);
        let state = Mutex::new((maker, std::mem::take(clients), profiles));
        let profiler = Arc::new(Profiler {
            fields,
            by_address,
            state,
        });
        let sink = profiler.clone();
        selection.filter.sink = Some(Arc::new(move |record| sink.take(record)));
        let mut reader = LogReader::new(selection);
        for file in files {
            // Errors were already reported when the log was first read.
            let _ = reader.read(file, |source| source, &mut |_, _| Ok(()));
        }
        let mut state = profiler
            .state
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *clients = std::mem::take(&mut state.1);
        std::mem::take(&mut state.2)
    }

    /// Finds rules for groups of clients, for single paths and for users, and forgets the requests.
    /// `clients` are the names of the clients; `most` returns the number of clients, of so many, that a
    /// rule may affect; `known` are the clients that other rules affect.
    ///
    /// # Errors
    /// Returns an error if a computed limit is not valid in a rule.
    pub fn part_rules(
        &mut self,
        clients: &ClientNumbers,
        half_lives: &[Duration],
        most: &impl Fn(usize) -> usize,
        known: impl Iterator<Item = u32>,
    ) -> Result<PartRules, RuleError> {
        std::mem::take(&mut self.rows).rules(clients, half_lives, most, known)
    }

    /// Returns a remark on a client that may need an exemption, or that tries many user names if
    /// the users in the log are `tried` names. If `hidden` is true, the remark does not quote the
    /// client's user agent.
    pub(crate) fn remark(&self, client: u32, tried: bool, hidden: bool) -> Option<String> {
        let KeyProfile { agents, users, .. } = self.clients.get(&client)?;
        if users.counts.len() >= CROWD {
            let users = at_least(users);
            return Some(match tried {
                true => format!("tries {users} user names"),
                false => format!("{users} users: one address for many?"),
            });
        }
        let (agent, _) = agents.top()?;
        let quoted = match hidden {
            true => "its user agent".to_owned(),
            false => format!("`{}`", Escaped(agent)),
        };
        if has_any(agent, &MONITORS) {
            return Some(format!("{quoted}: your monitor?"));
        }
        if has_any(agent, &CRAWLERS) {
            return Some(match self.is_verified_crawler(client) {
                true => format!("{quoted}: a crawler, which its host name confirms"),
                false => {
                    format!("{quoted}: a crawler, unverified, if its reverse DNS name confirms it")
                }
            });
        }
        (agents.counts.len() >= CROWD).then(|| {
            format!(
                "{} user agents: one address for many, or forged ones?",
                at_least(agents)
            )
        })
    }

    /// Returns true if a client's user agent names a crawler, and the log has a host name of the domain
    /// that the crawler's operator publishes.
    pub(crate) fn is_verified_crawler(&self, client: u32) -> bool {
        let Some(KeyProfile { agents, hosts, .. }) = self.clients.get(&client) else {
            return false;
        };
        let lower = |tally: &ValueTally| {
            let (value, _) = tally.top()?;
            Some(String::from_utf8_lossy(value).to_ascii_lowercase())
        };
        let (Some(agent), Some(host)) = (lower(agents), lower(hosts)) else {
            return false;
        };
        let host = host.trim_end_matches('.');
        let names = |(part, ends): &(&str, &[&str])| {
            agent.contains(part) && ends.iter().any(|end| host.ends_with(end))
        };
        NAMED_CRAWLERS.iter().any(names)
    }

    /// Returns true if a client looks like a proxy: it has as many user agents as an address of many
    /// people, or at least half of its requests were forwarded.
    pub(crate) fn is_proxy(&self, client: u32) -> bool {
        let is_proxy =
            |profile: &KeyProfile| profile.agents.counts.len() >= CROWD || profile.is_forwarder();
        self.clients.get(&client).is_some_and(is_proxy)
    }

    /// Returns true if at least half of the requests of some client were forwarded.
    pub fn has_forwarder(&self) -> bool {
        self.clients.values().any(KeyProfile::is_forwarder)
    }

    /// Returns a sentence about the path that most requests of these clients are for, if there is
    /// one.
    pub(super) fn usual_path(&self, clients: impl Iterator<Item = u32>) -> Option<String> {
        let mut paths = ValueTally::default();
        for profile in clients.filter_map(|client| self.clients.get(&client)) {
            profile
                .paths
                .counts
                .iter()
                .for_each(|(path, &count)| paths.add(path, count));
        }
        let (path, count) = paths.top()?;
        let share = percent(count, paths.all);
        let name = Escaped(path);
        let condition = shell_word(&[b"path=", path].concat());
        (count as f64 >= MAIN * paths.all as f64).then(|| {
            format!(
                "{share} of their requests are for {name}: `--where {condition}` advises for that path alone."
            )
        })
    }
}

/// Returns the number of different values, marked as a lower bound if not all were counted.
fn at_least(tally: &ValueTally) -> String {
    let more = if tally.counts.len() == MOST_VALUES {
        " or more"
    } else {
        ""
    };
    format!("{}{more}", tally.counts.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile(agents: &[&str], users: &[&str]) -> Profiles {
        let mut profile = KeyProfile::default();
        agents
            .iter()
            .for_each(|agent| profile.agents.add(agent.as_bytes(), 1));
        users
            .iter()
            .for_each(|user| profile.users.add(user.as_bytes(), 1));
        profile.paths.add(b"/login", 3);
        profile.paths.add(b"/", 1);
        Profiles {
            clients: [(7, profile)].into_iter().collect(),
            ..Profiles::default()
        }
    }

    #[test]
    fn signs_of_clients_to_exempt() {
        let remark = |agents: &[&str], users: &[&str]| {
            profile(agents, users)
                .remark(7, false, false)
                .unwrap_or_default()
        };
        assert!(remark(&["Mozilla/5.0 (compatible; Googlebot/2.1)"], &[]).contains("unverified"));
        assert!(remark(&["UptimeRobot/2.0"], &[]).contains("monitor"));
        let agents = ["a", "b", "c", "d", "e", "f"];
        assert!(remark(&agents, &[]).starts_with("6 user agents"));
        assert!(remark(&["a"], &agents).starts_with("6 users"));
        let tried = profile(&[], &agents).remark(7, true, false).unwrap();
        assert_eq!(tried, "tries 6 user names");
        assert_eq!(remark(&agents[..5], &agents[..5]), "");
        assert_eq!(remark(&[], &[]), "");
        let hidden = profile(&["Googlebot"], &[]).remark(7, false, true).unwrap();
        assert!(!hidden.contains("Google"));
        assert_eq!(profile(&[], &[]).remark(8, false, false), None);
    }

    #[test]
    fn a_crawler_is_verified_by_a_host_of_its_operator() {
        for (agent, host, verified) in [
            ("Googlebot/2.1", "crawl-192-0-2-7.googlebot.com", true),
            ("Googlebot/2.1", "Crawl.Googlebot.com.", true),
            ("Googlebot/2.1", "googlebot.com.example.org", false),
            ("Googlebot/2.1", "evilgooglebot.com", false),
            ("Googlebot/2.1", "msnbot.search.msn.com", false),
            ("curl/8", "crawl.googlebot.com", false),
        ] {
            let mut profiles = profile(&[agent], &[]);
            let known = profiles.clients.get_mut(&7).unwrap();
            known.hosts.add(host.as_bytes(), 1);
            assert_eq!(profiles.is_verified_crawler(7), verified, "{agent}, {host}");
        }
        assert!(!profile(&["Googlebot"], &[]).is_verified_crawler(7));
    }

    #[test]
    fn the_usual_path() {
        let sentence = profile(&[], &[]).usual_path([7].into_iter()).unwrap();
        assert!(
            sentence.starts_with("75.0 % of their requests are for /login:"),
            "{sentence}"
        );
        assert_eq!(profile(&[], &[]).usual_path([8].into_iter()), None);
    }

    #[test]
    fn tallies_are_bounded() {
        let mut tally = ValueTally::default();
        (0..1000u32)
            .for_each(|value| tally.add(&[&value.to_le_bytes()[..], &[7; 1000]].concat(), 1));
        assert_eq!((tally.counts.len(), tally.all), (MOST_VALUES, 1000));
        assert!(tally.counts.keys().all(|value| value.len() == MOST_BYTES));
        assert_eq!(at_least(&tally), "64 or more");
    }
}
