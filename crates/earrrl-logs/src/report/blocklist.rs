//! Writes the clients that rules have limited as lists for programs that block addresses.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::net::IpAddr;
use std::time::Duration;

use super::Summary;
use crate::line::time;

/// The number of addresses that an ipset is created for, unless there are more.
const IPSET_SIZE: usize = 65_536;

/// A program that blocks addresses, and so determines the form of the list.
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
/// # use earrrl_logs::{reading::ClientNames, replay::Replay, report::{self, Summary}};
/// # let mut replay = Replay::new(["fixed-window 60/1m".parse()?]).with_timeline();
/// # held.each(|requests| { replay.judge_all(requests); Ok::<(), std::io::Error>(()) })?;
/// # let names = ClientNames::new(false);
/// let summary = Summary { reader: &reader, replay: &replay, names: &names };
/// use earrrl_logs::report::{Blocker, write_blocklist};
/// use std::time::Duration;
/// let (mut list, now) = (Vec::new(), 1_700_000_000_000_000_000);
/// write_blocklist(&mut list, Blocker::Nginx, &summary, (now, Duration::from_secs(86_400)))?;
/// assert!(String::from_utf8(list)?.contains("deny 203.0.113.99;"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blocker {
    /// nginx, for which the list consists of `deny` directives. These do not expire, so a comment
    /// states when they should be removed.
    Nginx,
    /// ipset, for which the list consists of commands of `ipset restore`.
    Ipset,
    /// nftables, for which the list is a table of sets and a chain. It replaces the table of an
    /// earlier list.
    Nft,
}

/// An address or network and its prefix length; the bits after the prefix are zero.
type Network = (IpAddr, u8);

/// Writes all clients that any rule has limited, to be blocked from `now` on until `expiry` has
/// passed. Returns the number of clients that were left out since they are not addresses.
///
/// # Errors
/// Returns the writer's error if writing fails.
pub fn write_blocklist(
    out: &mut impl Write,
    blocker: Blocker,
    summary: &Summary<'_>,
    (now, expiry): (u64, Duration),
) -> io::Result<usize> {
    let (blocklist, left_out) = Blocklist::of(summary);
    let expires = time::written(end_of_block(now, expiry));
    writeln!(
        out,
        "# Clients that `earrrl replay` would have limited; expires {expires} UTC"
    )?;
    let seconds = expiry.as_secs().max(1);
    match blocker {
        Blocker::Nginx => write_nginx(out, &blocklist)?,
        Blocker::Ipset => {
            write_ipset(out, ("earrrl4", "inet"), &blocklist.v4, seconds)?;
            write_ipset(out, ("earrrl6", "inet6"), &blocklist.v6, seconds)?;
        }
        Blocker::Nft => write_nft(out, &blocklist, seconds)?,
    }
    Ok(left_out)
}

/// The addresses and networks of a list, each once and in order.
struct Blocklist {
    v4: Vec<Network>,
    v6: Vec<Network>,
}

impl Blocklist {
    /// Returns the addresses of all clients that any rule has limited, and the number of limited
    /// clients that are not addresses.
    fn of(summary: &Summary<'_>) -> (Self, usize) {
        let offenders = summary
            .replay
            .trials
            .iter()
            .flat_map(|trial| trial.offenders(usize::MAX));
        let clients: BTreeSet<u32> = offenders.map(|offender| offender.client).collect();
        let address = |client: &u32| network(summary.reader.clients.key(*client));
        let left_out = clients
            .iter()
            .filter(|client| address(client).is_none())
            .count();
        let networks: BTreeSet<Network> = clients.iter().filter_map(address).collect();
        let (v4, v6) = networks
            .into_iter()
            .partition(|(address, _)| address.is_ipv4());
        (Self { v4, v6 }, left_out)
    }
}

/// Returns the time at which a block ends, in nanoseconds since the epoch.
fn end_of_block(now: u64, expiry: Duration) -> u64 {
    now.saturating_add(u64::try_from(expiry.as_nanos()).unwrap_or(u64::MAX))
}

fn write_nginx(out: &mut impl Write, blocklist: &Blocklist) -> io::Result<()> {
    for network in blocklist.v4.iter().chain(&blocklist.v6) {
        writeln!(out, "deny {};", text(network))?;
    }
    Ok(())
}

fn write_ipset(
    out: &mut impl Write,
    (name, family): (&str, &str),
    networks: &[Network],
    seconds: u64,
) -> io::Result<()> {
    let most = networks.len().max(IPSET_SIZE);
    writeln!(
        out,
        "create {name} hash:net family {family} timeout {seconds} maxelem {most} -exist"
    )?;
    for network in networks {
        writeln!(out, "add {name} {} timeout {seconds} -exist", text(network))?;
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

fn write_nft(out: &mut impl Write, blocklist: &Blocklist, seconds: u64) -> io::Result<()> {
    writeln!(
        out,
        "add table inet earrrl\ndelete table inet earrrl\ntable inet earrrl {{"
    )?;
    write_nft_set(out, ("limited4", "ipv4_addr"), &blocklist.v4, seconds)?;
    write_nft_set(out, ("limited6", "ipv6_addr"), &blocklist.v6, seconds)?;
    out.write_all(NFT_CHAIN.as_bytes())
}

fn write_nft_set(
    out: &mut impl Write,
    (name, kind): (&str, &str),
    networks: &[Network],
    seconds: u64,
) -> io::Result<()> {
    writeln!(
        out,
        "    set {name} {{\n        type {kind}; flags interval, timeout; auto-merge;"
    )?;
    if !networks.is_empty() {
        let element = |network| format!("            {} timeout {seconds}s", text(network));
        let elements: Vec<String> = networks.iter().map(element).collect();
        writeln!(
            out,
            "        elements = {{\n{}\n        }}",
            elements.join(",\n")
        )?;
    }
    writeln!(out, "    }}")
}

/// Writes a CSV row for each rule and each client that the rule has limited.
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
/// # use earrrl_logs::{reading::ClientNames, replay::Replay, report::{self, Summary}};
/// # let mut replay = Replay::new(["fixed-window 60/1m".parse()?]).with_timeline();
/// # held.each(|requests| { replay.judge_all(requests); Ok::<(), std::io::Error>(()) })?;
/// # let names = ClientNames::new(false);
/// let summary = Summary { reader: &reader, replay: &replay, names: &names };
/// let (mut csv, now) = (Vec::new(), 1_700_000_000_000_000_000);
/// report::write_limited_csv(&mut csv, &summary, (now, std::time::Duration::from_secs(60)))?;
/// assert!(String::from_utf8(csv)?.contains("\n203.0.113.99,2913,3333,"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// Returns the writer's error if writing fails.
pub fn write_limited_csv(
    out: &mut impl Write,
    summary: &Summary<'_>,
    (now, expiry): (u64, Duration),
) -> io::Result<()> {
    let until = end_of_block(now, expiry);
    writeln!(out, "client,denied,requests,expires,rule")?;
    for trial in &summary.replay.trials {
        for offender in trial.offenders(usize::MAX) {
            let client = summary
                .names
                .exact(&summary.reader.clients, offender.client);
            let requests = summary.replay.requests(offender.client);
            let denied = offender.denied;
            let expires = until / time::SECOND;
            let client = quoted(&client);
            let rule = quoted(&trial.rule.to_string());
            writeln!(out, "{client},{denied},{requests},{expires},{rule}")?;
        }
    }
    Ok(())
}

/// Returns a value as a CSV field. A value that begins like a formula is changed, since a
/// spreadsheet would execute it.
fn quoted(value: &str) -> String {
    let guard = if value.starts_with(['=', '+', '-', '@', '\t', '\r']) {
        "'"
    } else {
        ""
    };
    if guard.is_empty() && !value.contains([',', '"', '\n', '\r']) {
        return value.to_owned();
    }
    format!("\"{guard}{}\"", value.replace('"', "\"\""))
}

/// Returns the address or network that a key stands for; `None` if it is not an address, or the
/// network of all addresses.
fn network(key: &[u8]) -> Option<Network> {
    let key = std::str::from_utf8(key).ok()?;
    let (address, prefix) = key
        .split_once('/')
        .map_or((key, None), |(a, p)| (a, Some(p)));
    let address: IpAddr = address.parse().ok()?;
    let whole = if address.is_ipv4() { 32 } else { 128 };
    let prefix = prefix.map_or(Some(whole), |prefix| prefix.parse().ok())?;
    (1..=whole).contains(&prefix).then_some((address, prefix))
}

fn text(&(address, prefix): &Network) -> String {
    match prefix {
        32 if address.is_ipv4() => address.to_string(),
        _ => format!("{address}/{prefix}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_are_listed() {
        for (key, expected) in [
            ("192.0.2.7", Some("192.0.2.7")),
            ("192.0.2.0/24", Some("192.0.2.0/24")),
            ("2001:db8::/64", Some("2001:db8::/64")),
            ("2001:db8::1", Some("2001:db8::1/128")),
            ("0.0.0.0/0", None),
            ("192.0.2.0/33", None),
            ("192.0.2.7; deny all", None),
            ("ann", None),
            ("", None),
        ] {
            let found = network(key.as_bytes()).map(|network| text(&network));
            assert_eq!(found.as_deref(), expected, "{key}");
        }
        assert_eq!(network(b"\xff"), None);
    }

    #[test]
    fn no_field_of_csv_is_a_formula_or_two_fields() {
        assert_eq!(quoted("192.0.2.7"), "192.0.2.7");
        assert_eq!(quoted("a,\"b\""), "\"a,\"\"b\"\"\"");
        assert_eq!(quoted("=1+1"), "\"'=1+1\"");
    }
}
