//! Finds the clients whose requests mostly fail, those that read page after page at a steady pace, and those that ask
//! for one path as a browser never does.
//!
//! None of this is a reason to limit a client: visitors mistype passwords, too. [`super::group`] looks for what many of
//! these clients share and others do not.

use super::agents::{has_any, is_browser, is_declared};
use super::rows::{NONE, Row, Rows, Table};

/// The least share of a client's requests that fail.
const FAILING: f64 = 0.4;

/// The least share of a client's requests for missing paths that are guesses.
const GUESSED: f64 = 0.8;

/// The number of requests for a login that a visitor may need, if the log does not say which of them failed.
const LOGINS: u32 = 3;

/// The number of different refused or missing paths from which on they are guesses; fewer are dead links, or an app
/// whose access has ended.
const GUESSED_PATHS: f64 = 3.0;

/// The least number of requests, and the least time in nanoseconds, that show a steady pace.
const STEADY: (u32, u64) = (8, 600_000_000_000);

/// The time in nanoseconds within which a browser asks for the parts of a page.
const QUICK: u64 = 3_000_000_000;

/// The least number of visitors' requests for paths of one shape, and of clients that ask for nothing else, that are
/// compared.
const COMPARED: u32 = 10;

/// The number of requests that few visitors send without asking for anything else.
const OFTEN: u32 = 6;

/// The number of requests that no visitor sends without a page that it comes from, and hardly any parts of pages.
const MANY: u32 = 12;

/// The number of different paths in a folder from which on they have one shape.
const ALIKE_IN_FOLDER: u32 = 20;

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
    /// It asks for paths of one shape alone, which visitors reach from other pages.
    Alone,
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
    /// The shape of the path.
    shape: u16,
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
    /// The requests that name the page that they come from.
    referred: u32,
    /// The shape of the first path, and the number of requests for paths of others.
    shape: u16,
    strays: u32,
    /// The time between the last two requests, and the number of times that it was as long as the one before.
    pause: u64,
    regular: u32,
    /// The bits of the paths, and of the missing ones, by their numbers.
    paths: u64,
    missing_paths: u64,
    first: u64,
    last: u64,
}

/// The clients of browsers that ask for paths of one shape.
#[derive(Debug, Clone, Copy, Default)]
struct Callers {
    /// The clients that ask for nothing else, and those of them that do so often.
    alone: u32,
    often: u32,
    /// The requests of all others, and the number of these clients whose first request is one of them.
    visits: u32,
    entries: u32,
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
        let shapes = shapes(&rows.paths.names());
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
                shape: shapes.get(path).copied().unwrap_or(NONE),
            };
            habits[place].add(row, signs);
        }
        let callers = callers(rows, &habits, &shapes);
        let measured = |habits: &&Habits| habits.requests >= STEADY.0;
        Self {
            measured: habits.iter().filter(measured).count(),
            of: habits
                .iter()
                .map(|habits| habits.suspicion(has_status, &callers))
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

/// Returns the shape of each path: paths that differ in numbers, or in the last part if their folder has many, have the
/// same.
fn shapes(paths: &[&[u8]]) -> Vec<u16> {
    let without_numbers = |path: &&[u8]| {
        let parts = path.split(|&byte| byte == b'/');
        let parts = parts.map(|part| match part.iter().any(u8::is_ascii_digit) {
            true => b"#",
            false => part,
        });
        parts.collect::<Vec<_>>().join(&b'/')
    };
    let named: Vec<Vec<u8>> = paths.iter().map(without_numbers).collect();
    let folder = |path: &Vec<u8>| memchr::memrchr(b'/', path).filter(|&end| end > 0);
    let mut sizes: Table<&[u8], u32> = Table::default();
    for path in &named {
        if let Some(end) = folder(path) {
            *sizes.entry(&path[..end]).or_default() += 1;
        }
    }
    let shape = |path| {
        let end = folder(path).filter(|&end| sizes[&path[..end]] >= ALIKE_IN_FOLDER);
        &path[..end.unwrap_or(path.len())]
    };
    let mut numbers: Table<&[u8], u16> = Table::default();
    let mut shapes = Vec::new();
    for path in &named {
        let next = numbers.len() as u16;
        shapes.push(*numbers.entry(shape(path)).or_insert(next));
    }
    shapes
}

/// Counts the callers of each shape of paths; of none if the log does not show what visitors differ in from programs:
/// the pages that they come from, or the parts of pages.
fn callers(rows: &Rows, habits: &[Habits], shapes: &[u16]) -> Vec<Callers> {
    let mut of_shapes = vec![Callers::default(); usize::from(NONE) + 1];
    let mut visitors = 0;
    let mut dressed = 0;
    for habits in habits.iter().filter(|habits| habits.is_browser()) {
        let callers = &mut of_shapes[usize::from(habits.shape)];
        let often = habits.requests >= OFTEN;
        if habits.is_alone() {
            callers.alone += 1;
            callers.often += u32::from(often);
        } else {
            callers.entries += 1;
            visitors += u32::from(often);
            dressed += u32::from(often && habits.is_dressed());
        }
    }
    if dressed * 2 < visitors {
        return Vec::new();
    }
    for row in &rows.all {
        let habits = &habits[row.client as usize];
        if habits.is_browser() && !habits.is_alone() {
            let shape = shapes.get(usize::from(row.path)).copied();
            of_shapes[usize::from(shape.unwrap_or(NONE))].visits += 1;
        }
    }
    of_shapes[usize::from(NONE)] = Callers::default();
    of_shapes
}

impl Callers {
    /// Returns the number of requests from which on a client that asks for nothing else is no visitor; `None` if
    /// visitors do so, too.
    fn suspicious(&self) -> Option<u32> {
        if self.visits < COMPARED || self.alone < COMPARED {
            return None;
        }
        if self.alone >= COMPARED * self.entries {
            return Some(1);
        }
        (self.often >= COMPARED && self.often * 2 >= self.alone).then_some(OFTEN)
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
            status if is_refused_guess(status) || is_login && is_failure(status) => {
                self.failed += 1;
            }
            // The parts of a page, and the links on it, may be missing.
            status if (is_failure(status) || is_missing(status)) && !row.has_referer => {
                self.missing += 1;
                self.own_missing += u32::from(!signs.is_shared);
                self.missing_paths |= bit;
            }
            // Basic and Digest authentication, as of WebDAV, refuse each request once, and then allow it.
            200..300 if self.challenged == Some(row.path) && is_login => self.failed -= 1,
            200..300 if self.challenged == Some(row.path) => {
                self.missing = self.missing.saturating_sub(1);
            }
            _ => self.logins += u32::from(is_login && !fails_openly && row.user == u32::MAX),
        }
        self.challenged = (row.status == 401).then_some(row.path);
        if is_login && fails_openly {
            self.has_login = (200..400).contains(&row.status);
        }
        if self.requests == 0 {
            self.first = row.time;
            self.shape = signs.shape;
        } else {
            let pause = row.time - self.last;
            self.quick += u32::from(pause < QUICK || row.status == 304);
            self.regular += u32::from(pause.abs_diff(self.pause) <= pause / 8);
            self.pause = pause;
        }
        self.strays += u32::from(signs.shape != self.shape);
        self.referred += u32::from(row.has_referer);
        self.paths |= bit;
        self.last = row.time;
        self.requests += 1;
        self.declared += u32::from(signs.is_declared);
        self.browser += u32::from(signs.is_browser);
    }

    /// Returns true if all requests have agents of browsers.
    fn is_browser(&self) -> bool {
        self.browser == self.requests && self.requests > 0
    }

    /// Returns true if the requests of a browser show the page that they come from, or parts of a page.
    fn is_dressed(&self) -> bool {
        self.referred > 0 || self.quick * 4 >= self.requests
    }

    /// Returns true if nearly all requests of a browser are for paths of one shape, and neither from a page nor for its
    /// parts.
    fn is_alone(&self) -> bool {
        self.referred == 0
            && self.quick * 2 < self.requests.max(2)
            && self.strays * 10 <= self.requests
    }

    /// Returns true if the requests are spread over a while, and few are for parts of pages.
    fn is_steady(&self) -> bool {
        self.requests >= STEADY.0
            && self.last - self.first >= STEADY.1
            && self.quick * 10 <= self.requests
    }

    /// Returns the reason to look at the client, given the callers of each shape of paths.
    fn suspicion(&self, has_status: bool, callers: &[Callers]) -> Option<Suspicion> {
        if self.declared * 2 >= self.requests {
            return None;
        }
        let guesses = different(self.missing_paths) >= GUESSED_PATHS;
        let is_quick = self.quick * 2 >= self.requests;
        if guesses && !is_quick && self.own_missing * 10 >= self.requests * 9 {
            return Some(Suspicion::Guesses);
        }
        let of_shape = callers.get(usize::from(self.shape));
        let least = of_shape.and_then(Callers::suspicious);
        // Tabs in the background, and apps, ask at a regular pace; visitors log in at last.
        let is_regular = self.requests >= OFTEN && self.regular * 2 >= self.requests;
        let pretends = self.is_browser() && !is_regular && !self.has_login;
        if pretends && self.is_alone() && least.is_some_and(|least| self.requests >= least) {
            return Some(Suspicion::Alone);
        }
        // Programs that look for updates ask for what is not there yet, too.
        let guesses = guesses && f64::from(self.missing) >= GUESSED * f64::from(self.requests);
        let missing = if guesses { self.missing } else { 0 };
        let failed = self.failed + missing + self.logins.saturating_sub(LOGINS);
        if failed > 0 && f64::from(failed) >= FAILING * f64::from(self.requests) {
            return Some(match self.has_login {
                true => Suspicion::LogsIn,
                false => Suspicion::Fails,
            });
        }
        if !has_status || !self.is_steady() {
            return None;
        }
        // Where the log shows how visitors come to a page, a browser without that is a program.
        let is_long = self.requests >= MANY && !self.is_alone();
        if !callers.is_empty() && pretends && self.referred == 0 && is_long {
            return Some(Suspicion::Alone);
        }
        let paths = different(self.paths);
        // A browser asks for the parts of a page, too. Programs that say what they are may poll one path.
        let reads = paths < 1.5 && pretends || paths >= 0.7 * f64::from(self.requests.min(200));
        reads.then_some(Suspicion::Reads)
    }
}

/// Returns true if a status means that the request was refused. Missing paths are counted apart; what the server could
/// not do, or limits already, is no failure of the client.
pub(super) fn is_failure(status: u16) -> bool {
    (400..500).contains(&status) && !matches!(status, 404 | 408 | 410 | 429 | 499)
}

/// Returns true if a status means that what was sent is wrong: a card, a code, or an entry of a form.
fn is_refused_guess(status: u16) -> bool {
    matches!(status, 402 | 409 | 422)
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
