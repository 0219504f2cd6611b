//! Finds the clients whose requests mostly fail, those that read page after page at a steady pace, and those that ask
//! for one path as a browser never does. Finds addresses of many people, too.
//!
//! None of this is a reason to limit a client: visitors mistype passwords, too. [`super::group`] looks for what many of
//! these clients share and others do not.

use earrrl::RuleError;

use super::Sweep;
use super::agents::{has_any, is_browser, is_declared};
use super::peaks::RateMeter;
use super::profile::CROWD;
use super::rows::{NONE, Row, Rows, Table, logged};

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
    /// Most of its requests fail, but the last login.
    LogsIn,
    /// Nearly all of its requests are for missing paths that nobody else asks for.
    Guesses,
    /// It reads page after page at a steady pace, or one path as a browser never does.
    Reads,
}

/// The facts that the path and the user agent of a request show.
#[derive(Debug, Clone, Copy)]
struct Signs {
    is_login: bool,
    /// True if several clients ask for the path.
    is_shared: bool,
    /// True if the server refuses some requests for the path.
    fails_openly: bool,
    /// True if the user agent names a crawler or a monitor.
    is_declared: bool,
    /// True if the user agent is one of a browser.
    is_browser: bool,
}

/// The people behind one address.
#[derive(Debug, Clone, Copy, Default)]
struct Visitors {
    agents: usize,
    requests: u64,
    failed: u64,
    /// The requests under the same user agent as the client's last.
    same: u64,
    /// The sum of the squares of the numbers of requests under each user agent.
    squares: u64,
    last_agent: u16,
    /// The greatest rate of one user agent.
    peak: f64,
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
    /// The missing ones for paths that nobody else asks for.
    own_missing: u32,
    /// The requests for logins of which the log does not say whether they failed.
    logins: u32,
    /// The requests within three seconds after the client's last, and those for what the client still has.
    quick: u32,
    /// True if the last login succeeded.
    has_login: bool,
    /// The requests under a user agent that names a crawler or a monitor.
    declared: u32,
    /// The requests under a user agent of a browser.
    browser: u32,
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
        // The first client of each path.
        let mut owners: Vec<Option<u32>> = vec![None; usize::from(NONE) + 1];
        let mut is_shared = vec![false; usize::from(NONE) + 1];
        for row in &rows.all {
            let path = usize::from(row.path);
            fails_openly[path] |= is_failure(row.status);
            is_shared[path] |= *owners[path].get_or_insert(row.client) != row.client;
        }
        let paths = rows.paths.names().into_iter();
        let logins: Vec<bool> = paths.map(|path| has_any(path, &LOGIN_PATHS)).collect();
        let declared: Vec<bool> = rows.agents.names().into_iter().map(is_declared).collect();
        let agents = rows.agents.names().into_iter();
        let browsers: Vec<bool> = agents.map(is_browser).collect();
        let mut habits: Vec<Habits> = Vec::new();
        for row in &rows.all {
            let place = row.client as usize;
            if place >= habits.len() {
                habits.resize(place + 1, Habits::default());
            }
            let path = usize::from(row.path);
            let agent = usize::from(row.agent);
            let signs = Signs {
                is_login: logins.get(path) == Some(&true),
                is_shared: row.path != NONE && is_shared[path],
                fails_openly: fails_openly[path],
                is_declared: declared.get(agent) == Some(&true),
                is_browser: browsers.get(agent) == Some(&true),
            };
            habits[place].add(row, signs);
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
        let of_suspects = rows.iter().filter(|row| self.against(row.client).is_some());
        let mut asked: Vec<(u32, u16)> = of_suspects.map(|row| (row.client, row.path)).collect();
        asked.sort_unstable();
        let main = asked
            .chunk_by(|one, next| one.0 == next.0)
            .filter_map(|all| {
                let of_paths = all.chunk_by(|one, next| one == next);
                let most = of_paths.max_by_key(|of_path| of_path.len())?;
                (most.len() * 2 >= all.len()).then_some(most[0])
            });
        main.filter(|(_, path)| *path != NONE).collect()
    }
}

impl Rows {
    /// Returns the clients above the gaps of a sweep that are many people behind one address: none of their many user
    /// agents stands out, and the requests under one come one after the other, as those for a page and its parts do.
    ///
    /// # Errors
    /// Returns an error if no rule can have one of the half-lives.
    pub fn crowds(&self, sweep: &Sweep) -> Result<Vec<u32>, RuleError> {
        crowds(&self.all, sweep, false)
    }
}

/// Finds crowds as [`Rows::crowds`] does. Of one path, each of many people asks once.
pub(super) fn crowds(
    rows: &[Row],
    sweep: &Sweep,
    of_one_path: bool,
) -> Result<Vec<u32>, RuleError> {
    let mut found = Vec::new();
    for (peaks, gap) in &sweep.tried {
        let Some(gap) = gap else { continue };
        let above = peaks.worst(gap.clients).into_iter();
        let mut above: Table<u32, Visitors> =
            above.map(|client| (client, Visitors::default())).collect();
        let mut meter = RateMeter::new(peaks.half_life)?;
        let mut seen: Table<(u32, u16), (u32, u64)> = Table::default();
        for row in rows {
            let Some(visitors) = above.get_mut(&row.client) else {
                continue;
            };
            let next = (seen.len() as u32, 0);
            let (number, before) = seen.entry((row.client, row.agent)).or_insert(next);
            visitors.add(row, meter.add(logged(row, *number)), *before);
            *before += 1;
        }
        let is_crowd = |(_, visitors): &(&u32, &Visitors)| {
            visitors.are_many(gap.middle()) && (of_one_path || visitors.come_one_by_one())
        };
        found.extend(above.iter().filter(is_crowd).map(|(&client, _)| client));
    }
    Ok(found)
}

impl Visitors {
    /// Adds a request of a user agent that has this rate, and sent so many before.
    fn add(&mut self, row: &Row, rate: f64, before: u64) {
        self.same += u64::from(self.requests > 0 && row.agent == self.last_agent);
        self.last_agent = row.agent;
        self.agents += usize::from(before == 0);
        self.requests += 1;
        self.squares += 2 * before + 1;
        self.failed += u64::from(is_failure(row.status));
        self.peak = self.peak.max(rate);
    }

    /// Returns true if these are many, each slower than the middle of a gap: more like the visitors below it than like
    /// those above.
    fn are_many(&self, middle: f64) -> bool {
        self.agents >= CROWD && self.peak < middle && self.failed * 10 <= self.requests
    }

    /// Returns true if the requests under one agent come one after the other, as those for a page and its parts do. A
    /// program that draws its user agents at random repeats the last one as seldom as chance has it.
    fn come_one_by_one(&self) -> bool {
        self.same * self.requests >= 4 * self.squares
    }
}

impl Habits {
    fn add(&mut self, row: &Row, signs: Signs) {
        let Signs {
            is_login,
            fails_openly,
            ..
        } = signs;
        let bit = 1 << (u64::from(row.path).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58);
        match row.status {
            status if is_login && is_failure(status) => self.failed += 1,
            // The parts of a page, and the links on it, may be missing.
            status if (is_failure(status) || is_missing(status)) && !row.has_referer => {
                self.missing += 1;
                self.own_missing += u32::from(!signs.is_shared);
                self.missing_paths |= bit;
            }
            // Basic and Digest authentication, as of WebDAV, refuse each request once, and then allow it.
            200..300 if self.challenged == Some(row.path) && is_login => self.failed -= 1,
            200..300 if self.challenged == Some(row.path) => self.missing -= 1,
            _ => self.logins += u32::from(is_login && !fails_openly && row.user == u32::MAX),
        }
        self.challenged = (row.status == 401).then_some(row.path);
        if is_login && fails_openly {
            self.has_login = (200..400).contains(&row.status);
        }
        if self.requests == 0 {
            self.first = row.time;
        } else {
            self.quick += u32::from(row.time - self.last < QUICK || row.status == 304);
        }
        self.paths |= bit;
        self.last = row.time;
        self.requests += 1;
        self.declared += u32::from(signs.is_declared);
        self.browser += u32::from(signs.is_browser);
    }

    fn suspicion(&self, has_status: bool) -> Option<Suspicion> {
        if self.declared * 2 >= self.requests {
            return None;
        }
        let guesses = different(self.missing_paths) >= GUESSED_PATHS;
        let is_quick = self.quick * 2 >= self.requests;
        if guesses && !is_quick && self.own_missing * 10 >= self.requests * 9 {
            return Some(Suspicion::Guesses);
        }
        let missing = if guesses { self.missing } else { 0 };
        let failed = self.failed + missing + self.logins.saturating_sub(LOGINS);
        if failed > 0 && f64::from(failed) >= FAILING * f64::from(self.requests) {
            return Some(match self.has_login {
                true => Suspicion::LogsIn,
                false => Suspicion::Fails,
            });
        }
        let paths = different(self.paths);
        // A browser asks for the parts of a page, too. Programs that say what they are may poll one path.
        let pretends = paths < 1.5 && self.browser == self.requests;
        let reads = has_status
            && self.requests >= STEADY.0
            && self.last - self.first >= STEADY.1
            && self.quick * 10 <= self.requests
            && (pretends || paths >= 0.7 * f64::from(self.requests.min(200)));
        reads.then_some(Suspicion::Reads)
    }
}

/// Returns true if a status means that the request was refused. Missing paths are counted apart; what the server could
/// not do, or limits already, is no failure of the client.
pub(super) fn is_failure(status: u16) -> bool {
    (400..500).contains(&status) && !matches!(status, 404 | 408 | 410 | 429 | 499)
}

/// Returns true if a status means that there is nothing at the path.
pub(super) fn is_missing(status: u16) -> bool {
    matches!(status, 404 | 410)
}

/// Returns about how many different values have set these bits, each one of 64.
fn different(bits: u64) -> f64 {
    match 64 - bits.count_ones() {
        0 => f64::INFINITY,
        unset => 64.0 * (64.0 / f64::from(unset)).ln(),
    }
}
