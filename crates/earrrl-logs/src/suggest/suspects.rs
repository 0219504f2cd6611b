//! Finds the clients whose requests mostly fail, and those that read page after page at a steady pace.
//!
//! Neither is a reason to limit a client: visitors mistype passwords, too. [`super::group`] looks for what many of
//! these clients share and others do not.

use super::agents::{has_any, is_declared};
use super::rows::{NONE, Row, Rows, Table};

/// The least share of a client's requests that fail.
const FAILING: f64 = 0.4;

/// The number of requests for a login that a visitor may need, if the log does not say which of them failed.
const LOGINS: u32 = 3;

/// The number of different refused or missing paths from which on they are guesses; fewer are dead links, or an app
/// whose access has ended.
const GUESSED_PATHS: f64 = 3.0;

/// The least number of requests, and the least time in nanoseconds, that show a steady pace.
const STEADY: (u32, u64) = (8, 600_000_000_000);

/// The time in nanoseconds within which a browser asks for the parts of a page.
const QUICK: u64 = 3_000_000_000;

/// Parts of the paths of logins.
const LOGIN_PATHS: [&str; 12] = [
    "login", "logon", "signin", "sign-in", "sign_in", "password", "xmlrpc", "auth", "token",
    "session", "account", "verify",
];

/// The reason for which a client is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Suspicion {
    /// Most of its requests fail.
    Fails,
    /// It reads page after page at a steady pace.
    Reads,
}

/// The habits of a client in the whole log.
#[derive(Debug, Clone, Copy, Default)]
struct Habits {
    requests: u32,
    /// The failed logins.
    failed: u32,
    /// The path of the last request if the answer to it was 401.
    challenged: Option<u16>,
    /// The other requests that were refused, or whose path was missing.
    missing: u32,
    /// The requests for logins of which the log does not say whether they failed.
    logins: u32,
    /// The requests within three seconds after the client's last.
    quick: u32,
    /// The requests under a user agent that names a crawler or a monitor.
    declared: u32,
    /// The bits of the paths, and of the missing ones, by their numbers.
    paths: u64,
    missing_paths: u64,
    first: u64,
    last: u64,
}

/// The suspicions against each client, by its number.
#[derive(Debug, Default)]
pub(super) struct Suspects {
    pub of: Vec<Option<Suspicion>>,
    /// The number of clients with enough requests to show a steady pace, of which some do.
    pub measured: usize,
}

impl Suspects {
    /// Finds the suspects among the requests, which must be in the order of their times.
    pub(super) fn of(rows: &Rows) -> Self {
        let has_status = rows.all.iter().any(|row| row.status != 0);
        let mut fails_openly = vec![false; usize::from(NONE) + 1];
        for row in rows.all.iter().filter(|row| is_failure(row.status)) {
            fails_openly[usize::from(row.path)] = true;
        }
        let paths = rows.paths.names().into_iter();
        let logins: Vec<bool> = paths.map(|path| has_any(path, &LOGIN_PATHS)).collect();
        let declared: Vec<bool> = rows.agents.names().into_iter().map(is_declared).collect();
        let mut habits: Vec<Habits> = Vec::new();
        for row in &rows.all {
            let place = row.client as usize;
            if place >= habits.len() {
                habits.resize(place + 1, Habits::default());
            }
            let path = usize::from(row.path);
            let is_login = logins.get(path) == Some(&true);
            let is_declared = declared.get(usize::from(row.agent)) == Some(&true);
            habits[place].add(row, is_login, fails_openly[path], is_declared);
        }
        let measured = |habits: &&Habits| habits.requests >= STEADY.0;
        Self {
            measured: habits.iter().filter(measured).count(),
            of: habits
                .iter()
                .map(|habits| habits.suspicion(has_status))
                .collect(),
        }
    }

    /// Returns the suspicion against a client.
    pub(super) fn against(&self, client: u32) -> Option<Suspicion> {
        self.of.get(client as usize).copied().flatten()
    }

    /// Returns the path that at least half of a client's requests are for, of each client under suspicion.
    pub(super) fn main_paths(&self, rows: &[Row]) -> Table<u32, u16> {
        // One path can win this vote of all others only if half of the requests are for it.
        let mut votes: Table<u32, (u16, u32)> = Table::default();
        let of_suspects = || rows.iter().filter(|row| self.against(row.client).is_some());
        for row in of_suspects() {
            let (path, lead) = votes.entry(row.client).or_insert((row.path, 0));
            match (*path == row.path, *lead) {
                (true, _) => *lead += 1,
                (false, 0) => (*path, *lead) = (row.path, 1),
                (false, _) => *lead -= 1,
            }
        }
        let mut counts: Table<u32, (u32, u32)> = Table::default();
        for row in of_suspects() {
            let (main, all) = counts.entry(row.client).or_default();
            *all += 1;
            *main += u32::from(votes[&row.client].0 == row.path);
        }
        let is_main = |(client, _): &(u32, u16)| {
            let (main, all) = counts[client];
            main * 2 >= all
        };
        let paths = votes.iter().map(|(&client, &(path, _))| (client, path));
        paths
            .filter(|(_, path)| *path != NONE)
            .filter(is_main)
            .collect()
    }
}

impl Habits {
    fn add(&mut self, row: &Row, is_login: bool, fails_openly: bool, is_declared: bool) {
        let bit = 1 << (u64::from(row.path).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58);
        match row.status {
            status if is_login && is_failure(status) => self.failed += 1,
            status if is_failure(status) || matches!(status, 404 | 410) => {
                self.missing += 1;
                self.missing_paths |= bit;
            }
            // Basic and Digest authentication, as of WebDAV, refuse each request once, and then allow it.
            200..300 if self.challenged == Some(row.path) && is_login => self.failed -= 1,
            200..300 if self.challenged == Some(row.path) => self.missing -= 1,
            _ => self.logins += u32::from(is_login && !fails_openly && row.user == u32::MAX),
        }
        self.challenged = (row.status == 401).then_some(row.path);
        if self.requests == 0 {
            self.first = row.time;
        } else {
            self.quick += u32::from(row.time - self.last < QUICK);
        }
        self.paths |= bit;
        self.last = row.time;
        self.requests += 1;
        self.declared += u32::from(is_declared);
    }

    fn suspicion(&self, has_status: bool) -> Option<Suspicion> {
        if self.declared * 2 >= self.requests {
            return None;
        }
        let guesses = different(self.missing_paths) >= GUESSED_PATHS;
        let missing = if guesses { self.missing } else { 0 };
        let failed = self.failed + missing + self.logins.saturating_sub(LOGINS);
        if failed > 0 && f64::from(failed) >= FAILING * f64::from(self.requests) {
            return Some(Suspicion::Fails);
        }
        let reads = has_status
            && self.requests >= STEADY.0
            && self.last - self.first >= STEADY.1
            && self.quick * 10 <= self.requests
            && different(self.paths) >= 0.7 * f64::from(self.requests.min(200));
        reads.then_some(Suspicion::Reads)
    }
}

/// Returns true if a status means that the request was refused. Missing paths are counted apart; what the server could
/// not do, or limits already, is no failure of the client.
pub(super) fn is_failure(status: u16) -> bool {
    (400..500).contains(&status) && !matches!(status, 404 | 408 | 410 | 429 | 499)
}

/// Returns about how many different values have set these bits, each one of 64.
fn different(bits: u64) -> f64 {
    match 64 - bits.count_ones() {
        0 => f64::INFINITY,
        unset => 64.0 * (64.0 / f64::from(unset)).ln(),
    }
}
