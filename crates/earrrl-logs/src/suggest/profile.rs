//! Profiles the clients that the advice names: their usual path, and signs that they may need an
//! exemption.

use std::path::{Path, PathBuf};

use super::Mark;
use super::agents::{CRAWLERS, MONITORS, has_any};
use super::rows::{RequestValues, Rows, Table};
use crate::format::Field;
use crate::line::{Escaped, shell_word};
use crate::reading::{ClientNumbers, LogReader, Requests};
use crate::text::percent;

/// The most different values of a field that are counted for each client.
const MOST_VALUES: usize = 64;

/// The most bytes of a value that are compared and kept.
const MOST_BYTES: usize = 160;

/// The number of different user agents or users from which on an address probably serves many
/// people.
pub(super) const CROWD: usize = 6;

/// The share of requests for one path from which on a limit for that path alone is suggested.
const MAIN: f64 = 0.6;

/// The number of values of a field that a report shows.
const USUAL: usize = 3;

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

/// Counts how often each value occurs, up to a bounded number of different values.
#[derive(Debug, Clone, Default)]
struct ValueTally {
    counts: Table<Vec<u8>, u64>,
    all: u64,
}

/// The user agents, paths, users and host names in the requests of one client.
#[derive(Debug, Clone, Default)]
struct KeyProfile {
    agents: ValueTally,
    paths: ValueTally,
    users: ValueTally,
    hosts: ValueTally,
    statuses: ValueTally,
    requests: u64,
    /// The number of requests that were forwarded for another address.
    forwarded: u64,
}

/// The profiles of the clients that a report names, by their numbers.
#[derive(Debug, Default)]
pub struct Profiles {
    clients: Table<u32, KeyProfile>,
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
    fn add(&mut self, values: &RequestValues<'_>) {
        let add = |tally: &mut ValueTally, value: Option<&[u8]>| {
            value.into_iter().for_each(|value| tally.add(value, 1));
        };
        add(&mut self.agents, values.agent);
        add(&mut self.statuses, values.status);
        add(&mut self.paths, values.path);
        add(&mut self.users, values.user);
        add(&mut self.hosts, values.host);
        self.requests += 1;
        self.forwarded += u64::from(values.is_forwarded);
    }

    fn is_forwarder(&self) -> bool {
        self.forwarded > 0 && self.forwarded * 2 >= self.requests
    }
}

impl Profiles {
    /// Reads the logs again to profile the named clients, whose numbers are those of `clients`. `reader` has read
    /// nothing, and reads the texts of [`profile_texts`](super::profile_texts). The profiles are empty if standard input
    /// was among the logs, since it cannot be read again.
    pub fn read(
        files: &[PathBuf],
        mut reader: LogReader,
        clients: &mut ClientNumbers,
        named: impl Iterator<Item = u32>,
    ) -> Self {
        if files.iter().any(|file| file == Path::new("-")) {
            return Self::default();
        }
        // If the key lacks the client's address, an address for which it forwarded a request may be its own.
        let by_address = reader.selection.key.fields().contains(&Field::Client);
        let addresses = [Field::Client, Field::Forwarded].map(|field| vec![field]);
        reader.texts.extend(addresses);
        let mut profiles = Self::named(named);
        std::mem::swap(&mut reader.clients, clients);
        for file in files {
            let mut take = |_: &ClientNumbers, requests: &Requests<'_>| {
                for (place, request) in requests.iter().enumerate() {
                    if let Some(profile) = profiles.clients.get_mut(&request.client) {
                        let mut values = RequestValues::of(requests.texts(place));
                        values.is_forwarded &= by_address;
                        profile.add(&values);
                    }
                }
                Ok(())
            };
            // Errors were already reported when the log was first read.
            let _ = reader.read(file, |source| source, &mut take);
        }
        std::mem::swap(&mut reader.clients, clients);
        profiles
    }

    /// Profiles the named clients from the requests that are held. Their forwarded requests are not counted.
    pub fn of(rows: &Rows, named: impl Iterator<Item = u32>) -> Self {
        let mut profiles = Self::named(named);
        let paths = rows.paths.names();
        let agents = rows.agents.names();
        for row in &rows.all {
            let Some(profile) = profiles.clients.get_mut(&row.client) else {
                continue;
            };
            let status = row.status.to_string();
            profile.add(&RequestValues {
                agent: agents.get(usize::from(row.agent)).copied(),
                status: (row.status != 0).then_some(status.as_bytes()),
                path: paths.get(usize::from(row.path)).copied(),
                user: (row.user != u32::MAX && rows.user_mark() == Mark::User)
                    .then(|| rows.users.key(row.user)),
                host: rows.hosts.get(&row.client).map(|host| &host[..]),
                ..RequestValues::default()
            });
        }
        profiles
    }

    /// Creates empty profiles of the named clients.
    fn named(clients: impl Iterator<Item = u32>) -> Self {
        Self {
            clients: clients
                .map(|client| (client, KeyProfile::default()))
                .collect(),
        }
    }

    /// Returns the path and the user agent that a client sends most; `None` if the log has no user agent of it.
    pub(crate) fn habit(&self, client: u32) -> Option<String> {
        let KeyProfile { agents, paths, .. } = self.clients.get(&client)?;
        let path = paths.top().map(|(path, _)| path);
        let habit = [path.unwrap_or_default(), agents.top()?.0].join(&b' ');
        Some(String::from_utf8_lossy(&habit).into_owned())
    }

    /// Returns the most frequent paths, statuses and user agents of clients with their shares, each list with its
    /// title. If `hidden` is true, user agents are left out.
    pub(crate) fn usual(&self, clients: &[u32], hidden: bool) -> Vec<(&'static str, String)> {
        let list = |title, tally: fn(&KeyProfile) -> &ValueTally| {
            let mut sum = ValueTally::default();
            for profile in clients.iter().filter_map(|client| self.clients.get(client)) {
                let tally = tally(profile);
                tally
                    .counts
                    .iter()
                    .for_each(|(value, &count)| sum.add(value, count));
            }
            let mut counts: Vec<_> = sum.counts.iter().collect();
            counts.sort_by(|a, b| b.1.cmp(a.1).then(a.0.cmp(b.0)));
            let shown = counts.iter().take(USUAL);
            let shown = shown
                .map(|&(value, &count)| format!("{} {}", Escaped(value), percent(count, sum.all)));
            let shown: Vec<String> = shown.collect();
            (!shown.is_empty()).then(|| (title, shown.join(", ")))
        };
        let lists = [
            list("paths", |profile| &profile.paths),
            list("statuses", |profile| &profile.statuses),
            list("user agents", |profile| &profile.agents).filter(|_| !hidden),
        ];
        lists.into_iter().flatten().collect()
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
