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
const COMPARED: usize = 10;

/// How many times as many clients send a form and nothing else as all others that send it as often, if they are no
/// visitors; and of clients that ask for a page, which people reload.
const OUTNUMBERED: usize = 2;
const FLOODED: usize = 6;

/// The number of clients by which they must outnumber others beside that.
const SURPLUS: usize = 20;

/// The mean time in nanoseconds between the requests of a client that sends a form slower than a person tries again.
const SLOW: u64 = 30_000_000_000;

/// The most visitors that begin with a shape of paths, as a share of those that ask for it, if they come to it from
/// other pages.
const ENTRIES: f64 = 0.2;

/// The smallest share of different user agents among the requests of a program that chooses one at random for each.
const DRAWN: f64 = 0.7;

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
    /// True if the server answers some requests that send something to the path with a redirection, and refuses none:
    /// then it shows the form again if what was sent is wrong.
    redirects: bool,
    /// True if the user agent names a crawler or a monitor.
    is_declared: bool,
    /// True if the user agent is one of a browser, or if the log has none.
    is_browser: bool,
    /// The shape of the path, and of the request.
    shape: u32,
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
    shape: u32,
    strays: u32,
    /// The requests that were refused for any reason, and those for which the client had to log in elsewhere.
    refused: u32,
    logged_out: u32,
    /// The requests that the server could not answer.
    broken: u32,
    /// The requests for what browsers come to from a page, or load the parts of.
    of_pages: u32,
    /// The requests that name a user.
    named: u32,
    /// The time between the last two requests, and the number of times that it was as long as the one before.
    pause: u64,
    regular: u32,
    /// The bits of the paths, and of the missing ones, by their numbers.
    paths: u64,
    missing_paths: u64,
    /// The bits of the user agents.
    agents: u64,
    first: u64,
    last: u64,
}

/// The clients that ask for paths of one shape.
#[derive(Debug, Default)]
struct Callers {
    /// The numbers of requests of those that ask for nothing else, and of those of them that are only refused.
    alone: Vec<u32>,
    refused: Vec<u32>,
    /// The numbers of requests for the shape of all others, and of those that were refused.
    others: Vec<u32>,
    others_refused: Vec<u32>,
    /// The requests of others with browsers, those of them from a page or followed by its parts, and the number of these
    /// clients whose first request is one of them.
    visits: usize,
    dressed: usize,
    entries: usize,
}

/// The numbers of requests from which on clients that ask for nothing but paths of one shape are no visitors, and those
/// of clients that are only refused; `None` if visitors do so, too.
#[derive(Debug, Clone, Copy)]
struct Least {
    alone: Option<u32>,
    refused: Option<u32>,
}

/// The facts that the log shows at all.
#[derive(Debug, Clone, Copy)]
struct Shown {
    status: bool,
    agents: bool,
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
        let mut fails_openly = vec![false; usize::from(NONE) + 1];
        let mut redirects = vec![false; usize::from(NONE) + 1];
        // The first client of each path.
        let mut owners: Vec<Option<u32>> = vec![None; usize::from(NONE) + 1];
        let mut is_shared = vec![false; usize::from(NONE) + 1];
        for row in &rows.all {
            let path = usize::from(row.path);
            fails_openly[path] |= is_failure(row.status);
            redirects[path] |= row.sends && (300..400).contains(&row.status);
            is_shared[path] |= *owners[path].get_or_insert(row.client) != row.client;
        }
        let paths = rows.paths.names().into_iter();
        let logins: Vec<bool> = paths.map(is_login).collect();
        let shapes = shapes(&rows.paths.names());
        let declared: Vec<bool> = rows.agents.names().into_iter().map(is_declared).collect();
        let agents = rows.agents.names().into_iter();
        let browsers: Vec<bool> = agents.map(is_browser).collect();
        let has_agents = !browsers.is_empty();
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
                redirects: redirects[path] && !fails_openly[path],
                is_declared: declared.get(agent) == Some(&true),
                is_browser: !has_agents || browsers.get(agent) == Some(&true),
                shape: shape_of(row, &shapes),
            };
            habits[place].add(row, signs);
        }
        let shown = Shown {
            status: rows.all.iter().any(|row| row.status != 0),
            agents: has_agents,
        };
        let callers = callers(rows, &habits, &shapes);
        let of_pages = |row: &&Row| {
            let callers = callers.get(shape_of(row, &shapes) as usize);
            callers.is_some_and(Callers::show_pages)
        };
        for row in rows.all.iter().filter(of_pages) {
            habits[row.client as usize].of_pages += 1;
        }
        let least: Vec<Least> = (0..)
            .zip(&callers)
            .map(|(shape, callers)| callers.least(shape, shown))
            .collect();
        let measured = |habits: &&Habits| habits.requests >= STEADY.0;
        Self {
            measured: habits.iter().filter(measured).count(),
            of: habits
                .iter()
                .map(|habits| habits.suspicion(shown, &least))
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

/// Returns the shape of a request: that of its path, apart for requests that send something.
fn shape_of(row: &Row, shapes: &[u16]) -> u32 {
    let path = shapes.get(usize::from(row.path)).copied();
    u32::from(path.unwrap_or(NONE)) << 1 | u32::from(row.sends)
}

/// Counts the callers of each shape.
fn callers(rows: &Rows, habits: &[Habits], shapes: &[u16]) -> Vec<Callers> {
    let last = shapes
        .iter()
        .max()
        .map_or(0, |&shape| usize::from(shape) + 1);
    let mut of_shapes: Vec<Callers> = Vec::new();
    of_shapes.resize_with(2 * last, Callers::default);
    for habits in habits.iter().filter(|habits| habits.pretends_alone()) {
        let Some(callers) = of_shapes.get_mut(habits.shape as usize) else {
            continue;
        };
        callers.alone.push(habits.requests);
        if habits.is_refused() {
            callers.refused.push(habits.requests);
        }
    }
    let mut counts: Table<(u32, u32), (u32, u32)> = Table::default();
    // The last request of each client, unless it shows the page that it comes from.
    let mut last: Vec<Option<(u32, u64)>> = vec![None; habits.len()];
    for row in &rows.all {
        let place = row.client as usize;
        let habits = &habits[place];
        if habits.pretends_alone() || habits.declared > 0 {
            continue;
        }
        if let Some((shape, time)) = last[place].take()
            && row.time - time < QUICK
        {
            of_shapes[shape as usize].dressed += 1;
        }
        let shape = shape_of(row, shapes);
        let Some(callers) = of_shapes.get_mut(shape as usize) else {
            continue;
        };
        let mut is_first = false;
        if callers.alone.len() >= COMPARED {
            let (count, refused) = counts.entry((shape, row.client)).or_default();
            *count += 1;
            *refused += u32::from(is_refused(row.status));
            is_first = *count == 1;
        }
        if !habits.is_browser() || habits.is_long() && !habits.is_dressed() {
            continue;
        }
        callers.visits += 1;
        callers.entries += usize::from(is_first && habits.shape == shape);
        match row.has_referer {
            true => callers.dressed += 1,
            false => last[place] = Some((shape, row.time)),
        }
    }
    for ((shape, _), (count, refused)) in counts {
        let callers = &mut of_shapes[shape as usize];
        callers.others.push(count);
        callers.others_refused.push(refused);
    }
    of_shapes
}

/// Returns how many of these numbers are at least `least`.
fn at_least(numbers: &[u32], least: u32) -> usize {
    numbers.iter().filter(|&&number| number >= least).count()
}

impl Callers {
    /// Returns true if most requests of browsers are from a page, or for one whose parts they load.
    fn show_pages(&self) -> bool {
        self.visits >= COMPARED && self.dressed * 3 >= self.visits * 2
    }

    /// Returns the numbers of requests that no visitor sends.
    fn least(&self, shape: u32, shown: Shown) -> Least {
        let are_compared = self.visits >= COMPARED && self.alone.len() >= COMPARED;
        let alone = are_compared.then(|| self.least_alone(shape & 1 == 1, shown));
        Least {
            alone: alone.flatten(),
            refused: self.least_refused(),
        }
    }

    /// Returns the number of requests that no visitor sends without asking for anything else.
    fn least_alone(&self, sends: bool, shown: Shown) -> Option<u32> {
        let alone = |least| at_least(&self.alone, least);
        let others = |least| at_least(&self.others, least);
        if shown.agents && self.show_pages() {
            if self.alone.len() >= COMPARED * self.entries {
                return Some(1);
            }
            if sends {
                // Few visitors keep secret where they come from.
                return (2..=MANY)
                    .find(|&least| alone(least) * 10 >= others(least) + 10 * COMPARED);
            }
            let often = alone(OFTEN);
            return (often >= COMPARED && often * 2 >= self.alone.len()).then_some(OFTEN);
        }
        let are_many = |least, times| alone(least) >= times * others(least) + SURPLUS;
        if sends {
            let others = self.others.len();
            let come_from_elsewhere =
                others >= COMPARED && self.entries as f64 <= ENTRIES * others as f64;
            let least = (2..=MANY).find(|&least| are_many(least, OUTNUMBERED));
            return least.filter(|_| come_from_elsewhere);
        }
        // People reload a page that they know, but most of them seldom. Without user agents, crawlers are not known.
        let is_plateau = |least| alone(least) * 3 >= alone(2) * 2;
        let least = (MANY..=2 * MANY).find(|&least| are_many(least, FLOODED) && is_plateau(least));
        least.filter(|_| shown.agents)
    }

    /// Returns the number of refused requests that no visitor sends: those who are refused and ask for nothing else
    /// outnumber all that are refused as often and go on.
    fn least_refused(&self) -> Option<u32> {
        let allowed = self.others.len() + self.alone.len() - self.refused.len();
        let outnumber = |least: &u32| {
            let refused = at_least(&self.refused, *least);
            let alone = at_least(&self.alone, *least) - refused;
            let others = at_least(&self.others_refused, *least);
            refused >= OUTNUMBERED * (alone + others) + SURPLUS
        };
        (2..=MANY)
            .find(outnumber)
            .filter(|_| allowed >= 2 * COMPARED)
    }
}

impl Habits {
    fn add(&mut self, row: &Row, signs: Signs) {
        let Signs {
            is_login,
            fails_openly,
            redirects,
            ..
        } = signs;
        let shows_form = redirects && row.sends && row.status == 200;
        let bit = bit_of(row.path);
        match row.status {
            status
                if is_refused_guess(status) || is_login && (is_failure(status) || shows_form) =>
            {
                self.failed += 1;
            }
            // The parts of a page, and the links on it, may be missing.
            status if is_refused(status) && !row.has_referer => {
                self.missing += 1;
                self.own_missing += u32::from(!signs.is_shared);
                self.missing_paths |= bit;
            }
            // Basic and Digest authentication, as of WebDAV, refuse each request once, and then allow it.
            200..300 if self.challenged == Some(row.path) && is_login => self.failed -= 1,
            200..300 if self.challenged == Some(row.path) => {
                self.missing = self.missing.saturating_sub(1);
            }
            0 => self.logins += u32::from(is_login && row.user == u32::MAX),
            _ => {}
        }
        self.challenged = (row.status == 401).then_some(row.path);
        if is_login && (fails_openly || redirects && row.sends) {
            self.has_login = (200..400).contains(&row.status) && !shows_form;
        }
        self.refused += u32::from(is_refused(row.status));
        self.broken += u32::from(row.status >= 500);
        self.logged_out += u32::from(row.status == 401 && !is_login);
        self.named += u32::from(row.user != u32::MAX);
        self.agents |= bit_of(row.agent);
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

    /// Returns true if the client looks like a browser and asks for nothing but paths of one shape. Four kinds of
    /// honest clients do so too and are left out: tabs in the background and apps, which ask at a regular pace; those
    /// that go on after they were logged out; visitors whose last login succeeds; and programs that name a user, which
    /// a log without user agents does not tell from browsers.
    fn pretends_alone(&self) -> bool {
        let most_have = |count: u32| count * 2 >= self.requests;
        self.pretends() && self.is_alone() && !most_have(self.logged_out) && !most_have(self.named)
    }

    /// Returns true if the agent is one of a browser, and nothing shows that it is one.
    fn pretends(&self) -> bool {
        let is_regular = self.requests >= OFTEN && self.regular * 2 >= self.requests;
        self.is_browser() && !is_regular && !self.has_login && self.broken * 5 < self.requests
    }

    /// Returns true if no visitor sends so many requests without a page that it comes from, and its parts.
    fn is_long(&self) -> bool {
        self.requests >= MANY
    }

    /// Returns true if nearly all requests were refused.
    fn is_refused(&self) -> bool {
        self.refused * 10 >= self.requests * 9
    }

    /// Returns true if nearly each request has a user agent of its own.
    fn draws_agents(&self) -> bool {
        let few = f64::from(self.requests.min(100));
        self.requests >= MANY && different(self.agents) >= DRAWN * few
    }

    /// Returns true if the requests are spread over a while, and few are for parts of pages.
    fn is_steady(&self) -> bool {
        self.requests >= STEADY.0
            && self.last - self.first >= STEADY.1
            && self.quick * 10 <= self.requests
    }

    /// Returns the reason to look at the client, given what the log shows, and the bounds of each shape of paths.
    fn suspicion(&self, shown: Shown, least: &[Least]) -> Option<Suspicion> {
        // If the server is at fault, visitors try again.
        if self.declared * 2 >= self.requests || self.broken * 5 >= self.requests {
            return None;
        }
        let guesses = different(self.missing_paths) >= GUESSED_PATHS;
        let is_quick = self.quick * 2 >= self.requests;
        if guesses && !is_quick && self.own_missing * 10 >= self.requests * 9 {
            return Some(Suspicion::Guesses);
        }
        let is_slow = self.last - self.first >= SLOW * u64::from(self.requests - 1);
        let reaches =
            |least: u32| self.requests >= least && (least == 1 || self.is_long() || is_slow);
        let exceeds = |least: &Least| {
            least.alone.is_some_and(reaches)
                || self.is_refused() && least.refused.is_some_and(reaches)
        };
        if self.pretends_alone() && least.get(self.shape as usize).is_some_and(exceeds)
            || self.draws_agents() && !is_quick
        {
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
        // Without user agents, crawlers are not known.
        if !shown.status || !shown.agents || !self.is_steady() {
            return None;
        }
        // Where others show how they come to a page, a browser that does not is a program.
        let is_bare = self.is_long() && !self.is_dressed() && !self.is_alone();
        if is_bare && self.pretends() && self.of_pages * 10 >= self.requests * 9 {
            return Some(Suspicion::Alone);
        }
        let paths = different(self.paths);
        // A browser asks for the parts of a page, too. Programs that say what they are may poll one path, and those of
        // users read what these pay for.
        let reads =
            paths < 1.5 && self.pretends() || paths >= 0.7 * f64::from(self.requests.min(200));
        (reads && self.named * 2 < self.requests).then_some(Suspicion::Reads)
    }
}

/// Returns true if the last part of a path is one of a login.
fn is_login(path: &[u8]) -> bool {
    let mut parts = path.rsplit(|&byte| byte == b'/');
    let last = parts.find(|part| !part.is_empty());
    last.is_some_and(|last| has_any(last, &LOGIN_PATHS))
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

/// Returns true if a status means that a request was refused, or that there is nothing at the path.
fn is_refused(status: u16) -> bool {
    is_failure(status) || is_missing(status)
}

/// Returns the bit of a path or a user agent with this number.
fn bit_of(number: u16) -> u64 {
    1 << (u64::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58)
}

/// Returns about how many different values have set these bits, each one of 64.
fn different(bits: u64) -> f64 {
    match 64 - bits.count_ones() {
        0 => f64::INFINITY,
        unset => 64.0 * (64.0 / f64::from(unset)).ln(),
    }
}
