//! Writes a log that nobody's visitors are in, for tests and benchmarks: the same for the same seed.
//!
//! `cargo run --release -p earrrl-logs --example make_log -- LINES CLIENTS SEED [combined|common|vhost|json|csv|sshd]`
//!
//! A hundredth of the visitors read a page each second, some of them much more often than others. An
//! abuser sends eight requests a second for five minutes in every fifteen; a scanner sends three a
//! second for twenty seconds in every 400.

use std::io::{self, BufWriter, Write};

const START: u64 = 1_700_000_350;

const PAGES: [&str; 8] = [
    "/",
    "/articles/",
    "/articles/rate-limits",
    "/search?q=estimate",
    "/images/diagram.svg",
    "/api/items?page=2",
    "/login",
    "/static/site.css",
];

const AGENTS: [&str; 4] = [
    "Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0",
    "Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) AppleWebKit/605.1.15 (KHTML, like Gecko) Version/17.5 Safari/605.1.15",
    "Mozilla/5.0 (Linux; Android 14) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/126.0.0.0 Mobile Safari/537.36",
    "feed-reader/2.1 (+https://reader.example/about)",
];

const MONTHS: [&str; 12] = [
    "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
];

/// A sequence of numbers that looks random (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(end)) >> 64) as u64
    }
}

/// One line's content.
struct Visit {
    /// Milliseconds since the epoch.
    time: u64,
    client: String,
    page: &'static str,
    agent: &'static str,
    bytes: u64,
}

fn main() -> io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize| arguments.get(at).and_then(|text| text.parse::<u64>().ok());
    let (Some(lines), Some(clients), Some(seed)) = (number(0), number(1), number(2)) else {
        eprintln!("usage: make_log LINES CLIENTS SEED [combined|common|vhost|json|csv|sshd]");
        std::process::exit(2);
    };
    let format = arguments.get(3).map_or("combined", String::as_str);
    let mut out = BufWriter::with_capacity(1 << 20, io::stdout().lock());
    if format == "csv" {
        writeln!(out, "time,key")?;
    }
    let mut random = Random(seed);
    let mut left = lines;
    for second in START.. {
        let mut visits = visits(&mut random, second, clients);
        visits.truncate(usize::try_from(left).unwrap_or(usize::MAX));
        for visit in &visits {
            write_line(&mut out, format, visit)?;
        }
        left -= visits.len() as u64;
        if left == 0 {
            break;
        }
    }
    out.flush()
}

/// What happens in a second, in order.
fn visits(random: &mut Random, second: u64, clients: u64) -> Vec<Visit> {
    // As many as there are on average, give or take.
    let visitors = random.below(clients / 50 + 2);
    let mut visits: Vec<Visit> = (0..visitors)
        .map(|_| {
            let client = address(visitor(random, clients));
            visit(random, second, client, PAGES[random.0 as usize % 8])
        })
        .collect();
    let abuser = if second / 300 % 3 == 1 { 8 } else { 0 };
    visits.extend((0..abuser).map(|_| visit(random, second, "203.0.113.99".into(), "/login")));
    let scanner = if second % 400 < 20 { 3 } else { 0 };
    let page = "/api/items?page=2";
    visits.extend((0..scanner).map(|_| visit(random, second, "198.51.100.23".into(), page)));
    visits.sort_by_key(|visit| visit.time);
    visits
}

fn visit(random: &mut Random, second: u64, client: String, page: &'static str) -> Visit {
    let agent = AGENTS[client.bytes().map(usize::from).sum::<usize>() % 4];
    let time = second * 1000 + random.below(1000);
    Visit {
        time,
        client,
        page,
        agent,
        bytes: 200 + random.below(40_000),
    }
}

/// A few visitors come often, most seldom.
fn visitor(random: &mut Random, clients: u64) -> u64 {
    let share = random.below(clients) as u128 * random.below(clients) as u128;
    (share / u128::from(clients)) as u64
}

/// Addresses that are set aside for examples and benchmarks; one in nine is IPv6.
fn address(visitor: u64) -> String {
    if visitor % 9 == 4 {
        return format!(
            "2001:db8:{:x}:{:x}::{:x}",
            visitor >> 16,
            visitor & 0xffff,
            visitor % 7 + 1
        );
    }
    format!(
        "10.{}.{}.{}",
        visitor >> 16 & 255,
        visitor >> 8 & 255,
        visitor & 255
    )
}

fn write_line(out: &mut impl Write, format: &str, visit: &Visit) -> io::Result<()> {
    let Visit {
        time,
        client,
        page,
        agent,
        bytes,
    } = visit;
    let seconds = time / 1000;
    let (year, month, day) = date(seconds / 86_400);
    let name = MONTHS[month as usize - 1];
    let clock = seconds % 86_400;
    let clock = format!(
        "{:02}:{:02}:{:02}",
        clock / 3600,
        clock / 60 % 60,
        clock % 60
    );
    let common = format!(
        r#"{client} - - [{day:02}/{name}/{year}:{clock} +0000] "GET {page} HTTP/1.1" 200 {bytes}"#
    );
    match format {
        "common" => writeln!(out, "{common}"),
        "vhost" => writeln!(out, r#"www.example.org:443 {common} "-" "{agent}""#),
        "json" => writeln!(
            out,
            r#"{{"time":"{year}-{month:02}-{day:02}T{clock}+00:00","remote_addr":"{client}","request":"GET {page} HTTP/1.1","status":200,"body_bytes_sent":{bytes},"http_user_agent":"{agent}"}}"#
        ),
        "csv" => writeln!(out, "{seconds},{client}"),
        // The daemon's lines name IPv4 addresses only.
        "sshd" if client.contains(':') => writeln!(
            out,
            "{name} {day:>2} {clock} host sshd[{}]: Connection closed by {client} port {}",
            1000 + bytes,
            1024 + bytes
        ),
        "sshd" => writeln!(
            out,
            "{name} {day:>2} {clock} host sshd[{}]: Failed password for root from {client} port {} ssh2",
            1000 + bytes,
            1024 + bytes
        ),
        _ => writeln!(out, r#"{common} "https://www.example.org/" "{agent}""#),
    }
}

/// Year, month and day of a day since the epoch (Howard Hinnant's civil_from_days).
fn date(days: u64) -> (u64, u64, u64) {
    let z = days + 719_468;
    let era = z / 146_097;
    let day_of_era = z % 146_097;
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let month = if shifted < 10 {
        shifted + 3
    } else {
        shifted - 9
    };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    (year, month, day_of_year - (153 * shifted + 2) / 5 + 1)
}
