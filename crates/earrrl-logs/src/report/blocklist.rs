//! Writes the clients that rules have limited as lists for programs that block addresses.
//!
//! A list that blocks an office, a proxy or a search engine takes a site down. So a client is listed
//! only if it lost at least half of its requests and at least a given number of them, and never if
//! its address is that of a private network, of a content delivery network or of a trusted proxy.
//! Each line has its figures beside it.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::time::Duration;

use ipnet::IpNet;

use super::Summary;
use crate::line::{is_edge, is_private, network, overlaps, time};
use crate::reading::ClientNumbers;
use crate::replay::Offender;
use crate::suggest::Profiles;
use crate::text::{counted, csv_field, percent};

/// A program that blocks addresses, and so determines the form of the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blocker {
    /// nginx, for which the list consists of `deny` directives. These do not expire, so a comment
    /// states when they should be removed.
    Nginx,
    /// nftables, for which the list is a table of sets and a chain. It replaces the table of an
    /// earlier list.
    Nft,
}

/// The conditions under which a client is listed, and for how long.
#[derive(Debug, Clone)]
pub struct BlockTerms {
    /// The least number of requests that a listed client has lost.
    pub min_denied: u64,
    /// The networks of proxies, none of whose addresses is listed.
    pub trusted: Vec<IpNet>,
    /// The time of the list, in nanoseconds since the epoch.
    pub now: u64,
    /// The time after which the list expires.
    pub expiry: Duration,
}

/// The clients that a list blocks, and the number of limited clients that it leaves out.
///
/// ```
/// # use earrrl_logs::reading::{HeldBack, LogReader, Selection};
/// # let selection = Selection {
/// #     format: None,
/// #     hints: Default::default(),
/// #     key: "client".parse()?,
/// #     prefixes: Default::default(),
/// #     costs: Default::default(),
/// #     filter: Default::default(),
/// # };
/// # let mut reader = LogReader::new(selection);
/// # let mut held = HeldBack::default();
/// # reader.read("../../testdata/logs/abuse.log.gz".as_ref(), |source| source, &mut |_, requests| held.extend(requests))?;
/// # held.sort();
/// # use earrrl_logs::{reading::ClientNames, replay::Replay, report::Summary};
/// # let mut replay = Replay::new(["fixed-window 60/1m".parse()?]).with_timeline();
/// # held.each(|requests| { replay.judge_all(requests); Ok::<(), std::io::Error>(()) })?;
/// # let names = ClientNames::new(false);
/// let summary = Summary { reader: &reader, replay: &replay, names: &names };
/// use earrrl_logs::report::{BlockTerms, Blocker, Blocklist};
/// use earrrl_logs::suggest::Profiles;
/// use std::time::Duration;
/// let (now, expiry) = (1_700_000_000_000_000_000, Duration::from_secs(86_400));
/// let list = Blocklist::new(&summary, BlockTerms { min_denied: 10, trusted: Vec::new(), now, expiry });
/// let mut text = Vec::new();
/// list.write(&mut text, Blocker::Nginx, &summary, &Profiles::default())?;
/// assert!(String::from_utf8(text)?.contains("deny 203.0.113.99; # 2913 of 3333 requests denied"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Blocklist {
    terms: BlockTerms,
    /// The listed clients, each once for each rule under which it is listed.
    blocked: Vec<Blocked>,
    /// The number of limited clients that lost too few requests to be listed.
    few: u64,
    /// The number of limited clients with the addresses of proxies or private networks.
    protected: u64,
}

/// A client that lost enough requests under one rule to be listed.
struct Blocked {
    client: u32,
    /// The address or the network that the client's key stands for.
    network: Option<IpNet>,
    /// The index of the rule.
    rule: usize,
    denied: u64,
    requests: u64,
}

impl Blocklist {
    /// Selects the clients that are listed.
    pub fn new(summary: &Summary<'_>, terms: BlockTerms) -> Self {
        let mut limited = BTreeMap::<u32, Vec<Blocked>>::new();
        for (rule, trial) in summary.replay.trials.iter().enumerate() {
            for Offender { client, denied } in trial.offenders(usize::MAX) {
                let requests = summary.replay.requests(client);
                let key = std::str::from_utf8(summary.reader.clients.key(client));
                let network = key.ok().and_then(network).filter(|n| n.prefix_len() > 0);
                let found = limited.entry(client).or_default();
                if denied >= terms.min_denied && denied * 2 >= requests {
                    found.push(Blocked {
                        client,
                        network,
                        rule,
                        denied,
                        requests,
                    });
                }
            }
        }
        let mut list = Self {
            terms,
            blocked: Vec::new(),
            few: 0,
            protected: 0,
        };
        for (client, found) in limited {
            if list.is_protected(summary.reader.clients.key(client)) {
                list.protected += 1;
            } else if found.is_empty() {
                list.few += 1;
            } else {
                list.blocked.extend(found);
            }
        }
        list
    }

    /// Returns true if the key is an address of proxies or of private networks, or a network with one.
    fn is_protected(&self, key: &[u8]) -> bool {
        let trusts = |key: &str| network(key).is_some_and(|n| overlaps(&n, &self.terms.trusted));
        is_private(key) || is_edge(key) || std::str::from_utf8(key).is_ok_and(trusts)
    }

    /// Returns the numbers of the listed clients.
    pub fn clients(&self) -> impl Iterator<Item = u32> {
        self.blocked.iter().map(|blocked| blocked.client)
    }

    /// Returns a sentence about the limited clients that a list for a firewall leaves out; `None` if it
    /// leaves out none.
    pub fn left_out(&self, firewall: bool) -> Option<String> {
        let names = self.blocked.iter();
        let names = names.filter(|blocked| firewall && blocked.network.is_none());
        let mut names: Vec<u32> = names.map(|blocked| blocked.client).collect();
        names.dedup();
        let names = names.len() as u64;
        let least = self.terms.min_denied;
        let few = format!("lost fewer than {least} requests or less than half of theirs");
        let reasons = [
            (self.few, &*few),
            (
                self.protected,
                "have addresses of private networks or of proxies",
            ),
            (names, "are no addresses"),
        ];
        let reasons = reasons.iter().filter(|(count, _)| *count > 0);
        let reasons: Vec<_> = reasons
            .map(|(count, why)| format!("{count} {why}"))
            .collect();
        (!reasons.is_empty()).then(|| {
            let all = counted(self.few + self.protected + names, "limited client");
            format!("{all} left out of the list: {}", reasons.join(", "))
        })
    }

    /// Writes the list in the form of a program. A verified crawler stands in it as a comment only.
    ///
    /// # Errors
    /// Returns the writer's error if writing fails.
    pub fn write(
        &self,
        out: &mut impl Write,
        blocker: Blocker,
        summary: &Summary<'_>,
        profiles: &Profiles,
    ) -> io::Result<()> {
        let expires = time::written(self.end());
        let least = self.terms.min_denied;
        writeln!(
            out,
            "# Clients that `earrrl replay` would have limited, and that lost at least half of their requests"
        )?;
        writeln!(out, "# and at least {least} of them; expires {expires} UTC")?;
        let mut worst = BTreeMap::<IpNet, &Blocked>::new();
        for blocked in &self.blocked {
            if let Some(network) = blocked.network {
                let known = worst.entry(network).or_insert(blocked);
                if blocked.denied > known.denied {
                    *known = blocked;
                }
            }
        }
        let line = |(network, blocked): (&IpNet, &&Blocked)| BlockedLine {
            network: *network,
            comment: comment(blocked, summary, profiles),
            is_verified: profiles.is_verified_crawler(blocked.client),
        };
        let lines: Vec<BlockedLine> = worst.iter().map(line).collect();
        match blocker {
            Blocker::Nginx => write_nginx(out, &lines),
            Blocker::Nft => write_nft(out, &lines, self.terms.expiry.as_secs().max(1)),
        }
    }

    /// Writes a CSV row for each rule and each client that is listed under it, whether or not the
    /// client is an address.
    ///
    /// # Errors
    /// Returns the writer's error if writing fails.
    pub fn write_csv(&self, out: &mut impl Write, summary: &Summary<'_>) -> io::Result<()> {
        let expires = self.end() / time::SECOND;
        writeln!(out, "client,denied,requests,expires,rule")?;
        for (number, trial) in summary.replay.trials.iter().enumerate() {
            let rule = csv_field(&trial.rule.to_string());
            let rows = self.blocked.iter().filter(|row| row.rule == number);
            let mut rows: Vec<_> = rows.collect();
            rows.sort_by_key(|row| std::cmp::Reverse(row.denied));
            for row in rows {
                let client = summary.names.exact(&summary.reader.clients, row.client);
                let client = csv_field(&client);
                writeln!(
                    out,
                    "{client},{},{},{expires},{rule}",
                    row.denied, row.requests
                )?;
            }
        }
        Ok(())
    }

    /// Returns the time at which a block ends, in nanoseconds since the epoch.
    fn end(&self) -> u64 {
        let expiry = u64::try_from(self.terms.expiry.as_nanos()).unwrap_or(u64::MAX);
        self.terms.now.saturating_add(expiry)
    }
}

/// A line of a list.
struct BlockedLine {
    network: IpNet,
    /// The figures of the client, and a remark on it if there is one.
    comment: String,
    is_verified: bool,
}

/// Returns a client's figures under the rule that denied the most of its requests, and the remark that
/// its profile calls for.
fn comment(blocked: &Blocked, summary: &Summary<'_>, profiles: &Profiles) -> String {
    let Blocked {
        denied, requests, ..
    } = *blocked;
    let share = percent(denied, requests);
    let rule = &summary.replay.trials[blocked.rule].rule;
    let tried = summary
        .reader
        .formats
        .iter()
        .all(|format| format.has_tried_names());
    let remark = profiles.remark(blocked.client, tried, summary.names.are_hidden());
    let remark = remark.map_or(String::new(), |remark| format!("; {remark}"));
    format!("{denied} of {requests} requests denied ({share}) by {rule}{remark}")
}

fn write_nginx(out: &mut impl Write, lines: &[BlockedLine]) -> io::Result<()> {
    for line in lines {
        let mark = if line.is_verified { "# " } else { "" };
        let address = written(&line.network);
        writeln!(out, "{mark}deny {address}; # {}", line.comment)?;
    }
    Ok(())
}

/// The chain that drops the packets of the clients in both sets, and the end of the table.
const NFT_CHAIN: &str = "    chain input {
        type filter hook input priority -10; policy accept;
        ip saddr @limited4 drop
        ip6 saddr @limited6 drop
    }
}
";

fn write_nft(out: &mut impl Write, lines: &[BlockedLine], seconds: u64) -> io::Result<()> {
    writeln!(
        out,
        "add table inet earrrl\ndelete table inet earrrl\ntable inet earrrl {{"
    )?;
    for (version, is_ipv4) in [(4, true), (6, false)] {
        writeln!(
            out,
            "    set limited{version} {{\n        type ipv{version}_addr; flags interval, timeout; auto-merge;"
        )?;
        let lines = lines
            .iter()
            .filter(|line| line.network.addr().is_ipv4() == is_ipv4);
        let (verified, blocked): (Vec<_>, Vec<_>) = lines.partition(|line| line.is_verified);
        for line in verified {
            writeln!(
                out,
                "        # {} # {}",
                written(&line.network),
                line.comment
            )?;
        }
        // A set without elements must not have an empty list of them.
        if !blocked.is_empty() {
            writeln!(out, "        elements = {{")?;
            for line in blocked {
                let address = written(&line.network);
                writeln!(
                    out,
                    "            {address} timeout {seconds}s, # {}",
                    line.comment
                )?;
            }
            writeln!(out, "        }}")?;
        }
        writeln!(out, "    }}")?;
    }
    out.write_all(NFT_CHAIN.as_bytes())
}

/// Returns a network as text; a single address of IPv4 without its length.
fn written(network: &IpNet) -> String {
    match network {
        IpNet::V4(network) if network.prefix_len() == 32 => network.addr().to_string(),
        network => network.to_string(),
    }
}

// Finds out whether the addresses of a log are those of proxies in front of the server.

/// The most clients that are profiled because they send half of all requests.
const MOST: usize = 1000;

/// A private address belongs to a proxy if it sends at least this share of all requests, in percent.
/// Many internal clients beside public ones are normal, and each sends less.
const LEAST: u64 = 1;

/// Returns the clients with the most requests that together send at least half of all requests; none if
/// these are too many to be proxies.
pub fn busiest(counts: &[u64]) -> Vec<u32> {
    let half = counts.iter().sum::<u64>().div_ceil(2);
    let mut clients: Vec<u32> = (0..).take(counts.len()).collect();
    clients.sort_by_key(|&client| std::cmp::Reverse(counts[client as usize]));
    let mut sent = 0;
    let enough = clients.iter().position(|&client| {
        sent += counts[client as usize];
        sent >= half
    });
    match enough {
        Some(last) if last < MOST => clients.truncate(last + 1),
        _ => clients.clear(),
    }
    clients
}

/// Returns a clause about the clients that are probably proxies, if they send at least half of all
/// requests, whose numbers by client are given.
///
/// Proxies have private addresses, those of a content delivery network, or profiles that no single
/// client has.
pub fn proxies(clients: &ClientNumbers, counts: &[u64], profiles: &Profiles) -> Option<String> {
    let all: u64 = counts.iter().sum();
    let numbers = || 0..clients.len() as u32;
    let private = |client: &u32| is_private(clients.key(*client));
    if !clients.is_empty() && numbers().all(|client| private(&client)) {
        return Some("all clients have private addresses".into());
    }
    let is_proxy = |client: &u32| {
        private(client) && counts[*client as usize] * 100 >= all * LEAST
            || is_edge(clients.key(*client))
            || profiles.is_proxy(*client)
    };
    let found: Vec<u32> = numbers().filter(is_proxy).collect();
    let sent: u64 = found.iter().map(|&client| counts[client as usize]).sum();
    if found.is_empty() || sent * 2 < all {
        return None;
    }
    let count = found.len() as u64;
    let few = if found.iter().all(private) {
        counted(count, "private client")
    } else if found.iter().all(|&client| is_edge(clients.key(client))) {
        counted(count, "client") + " of a content delivery network"
    } else {
        counted(count, "client") + " with the user agents or X-Forwarded-For of many"
    };
    Some(format!("{sent} of {all} requests come from {few}"))
}

#[cfg(test)]
mod blocklist_tests {
    use super::*;

    #[test]
    fn only_addresses_are_networks() {
        for (key, expected) in [
            ("192.0.2.7", Some("192.0.2.7")),
            ("192.0.2.0/24", Some("192.0.2.0/24")),
            ("2001:db8::/64", Some("2001:db8::/64")),
            ("2001:db8::1", Some("2001:db8::1/128")),
            ("192.0.2.0/33", None),
            ("192.0.2.7; deny all", None),
            ("ann", None),
            ("", None),
        ] {
            let found = network(key).map(|network| written(&network));
            assert_eq!(found.as_deref(), expected, "{key}");
        }
    }

    #[test]
    fn no_field_of_csv_is_a_formula_or_two_fields() {
        assert_eq!(csv_field("192.0.2.7"), "192.0.2.7");
        assert_eq!(csv_field("a,\"b\""), "\"a,\"\"b\"\"\"");
        assert_eq!(csv_field("=1+1"), "\"'=1+1\"");
    }
}
