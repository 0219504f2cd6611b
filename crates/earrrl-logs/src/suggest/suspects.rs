//! Finds the clients whose requests mostly fail, those that read page after page at a steady pace, and those that ask
//! for one path as a browser never does.
//!
//! None of this is a reason to limit a client: visitors mistype passwords, too. [`super::group`] looks for what many of
//! these clients share and others do not.

use super::agents::{is_browser, is_declared, is_script};
use super::callers::{Least, callers, shape_of, shapes};
use super::cohorts::cohorts;
use super::habits::{Answers, Habits, STEADY, Shown, Signs, different, is_file, is_login};
use super::networks::Networks;
use super::rows::{NONE, Referer, Row, Rows, Table};

/// The least share of a client's requests that fail.
const FAILING: f64 = 0.4;

/// The least share of a client's requests for missing paths that are guesses.
const GUESSED: f64 = 0.8;

/// The number of requests for a login that a visitor may need, if the log does not say which of them failed.
const LOGINS: u32 = 3;

/// The mean time in nanoseconds between the requests of a client that sends a form slower than a person tries again.
const SLOW: u64 = 30_000_000_000;

/// The time in nanoseconds after which a visitor who mistypes a password has given up.
const PATIENCE: u64 = 600_000_000_000;

/// The number of different refused or missing paths from which on they are guesses; fewer are dead links, or an app
/// whose access has ended.
const GUESSED_PATHS: f64 = 3.0;

/// The number of different folders from which on requests for what nobody gets are guesses: an old app asks for what is
/// gone from one.
const GUESSED_FOLDERS: f64 = 2.0;

/// The reason for which a client is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Suspicion {
    /// Most of its requests fail.
    Fails,
    /// Most of its requests fail, but the last login succeeds, or it stops after minutes: as visitors do who mistype
    /// their passwords.
    Mistypes,
    /// Nearly all of its requests are for missing paths that nobody else asks for.
    Guesses,
    /// It asks for paths of one shape alone, which visitors reach from other pages.
    Alone,
    /// It reads page after page at a steady pace, or one path as a browser never does.
    Reads,
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
    pub(super) fn of(rows: &Rows, networks: &Networks) -> Self {
        let answers = Answers::of(rows);
        // The first client of each path.
        let mut owners: Vec<Option<u32>> = vec![None; usize::from(NONE) + 1];
        let mut is_shared = vec![false; usize::from(NONE) + 1];
        let mut is_alive = is_shared.clone();
        let paths = rows.paths.names();
        let is_file: Vec<bool> = paths.iter().map(|path| is_file(path)).collect();
        let is_file = |row: &Row| is_file.get(usize::from(row.path)) == Some(&true);
        let mut referred = 0;
        let mut files = 0;
        for row in &rows.all {
            let path = usize::from(row.path);
            is_alive[path] |= matches!(row.status, 0..300 | 304 | 500..);
            referred += usize::from(row.referer != Referer::None);
            files += usize::from(is_file(row));
            is_shared[path] |= *owners[path].get_or_insert(row.client) != row.client;
        }
        // Where requests name the pages that they come from, those for the parts of a page do.
        let shows_referers = referred * 10 >= rows.all.len();
        let logins: Vec<bool> = paths.iter().map(|path| is_login(path)).collect();
        let shapes = shapes(&paths);
        let roots = roots(&paths);
        let agents = |is: fn(&[u8]) -> bool| -> Vec<bool> {
            rows.agents.names().into_iter().map(is).collect()
        };
        let declared = agents(is_declared);
        let browsers = agents(is_browser);
        let scripts = agents(is_script);
        let has_agents = !browsers.is_empty();
        let mut habits: Vec<Habits> = Vec::new();
        for row in &rows.all {
            let place = row.client as usize;
            if place >= habits.len() {
                habits.resize(place + 1, Habits::default());
            }
            let path = usize::from(row.path);
            let agent = usize::from(row.agent);
            let is_file = is_file(row);
            let signs = Signs {
                is_login: logins.get(path) == Some(&true),
                is_file,
                may_be_part: !shows_referers || row.referer != Referer::None || is_file,
                is_shared: row.path != NONE && is_shared[path],
                is_dead: row.path != NONE && !is_alive[path],
                root: roots.get(path).copied().unwrap_or(NONE),
                shows_outcome: answers.show_outcome(row),
                was_refused: answers.refuse(row),
                is_declared: declared.get(agent) == Some(&true),
                is_browser: !has_agents || browsers.get(agent) == Some(&true),
                is_script: scripts.get(agent) == Some(&true),
                shape: shape_of(row, &shapes),
            };
            habits[place].add(row, signs);
        }
        let of_browsers = habits
            .iter()
            .filter(|habits| habits.is_browser() && !habits.is_alone());
        let (visits, referred) = of_browsers.fold((0, 0), |(visits, referred), habits| {
            (visits + habits.requests, referred + habits.referred)
        });
        let pages = has_agents && referred * 2 >= visits && visits > 0;
        let shown = Shown {
            status: rows.all.iter().any(|row| row.status != 0),
            agents: has_agents,
            pages,
            files: files * 5 >= rows.all.len(),
        };
        habits
            .iter_mut()
            .for_each(|habits| habits.note_polling(shown));
        let callers = callers(rows, &habits, &shapes, &answers);
        for row in &rows.all {
            if let Some(callers) = callers.get(shape_of(row, &shapes) as usize) {
                let habits = &mut habits[row.client as usize];
                habits.of_pages += u32::from(callers.show_pages());
                habits.visited += u32::from(callers.are_visitors());
            }
        }
        let least: Vec<Least> = (0..)
            .zip(&callers)
            .map(|(shape, callers)| callers.least(shape, shown))
            .collect();
        let is_in_cohort = cohorts(&habits, &callers, networks, shown);
        let measured = |habits: &&Habits| habits.requests >= STEADY.0;
        Self {
            measured: habits.iter().filter(measured).count(),
            of: habits
                .iter()
                .zip(is_in_cohort)
                .map(|(habits, is_in_cohort)| match is_in_cohort {
                    true => Some(Suspicion::Alone),
                    false => habits.suspicion(shown, &least),
                })
                .collect(),
        }
    }

    /// Returns the suspicion against a client.
    pub(super) fn against(&self, client: u32) -> Option<Suspicion> {
        self.of.get(client as usize).copied().flatten()
    }

    /// Returns the path that at least half of a client's requests are for, of each client under suspicion.
    pub(super) fn main_paths(&self, rows: &[Row]) -> Table<u32, u16> {
        let mut requests = vec![0; self.of.len()];
        let mut asked: Table<(u32, u16), u32> = Table::default();
        for row in rows.iter().filter(|row| self.against(row.client).is_some()) {
            requests[row.client as usize] += 1;
            *asked.entry((row.client, row.path)).or_default() += 1;
        }
        let mut main: Table<u32, u16> = Table::default();
        for ((client, path), count) in asked {
            if count * 2 >= requests[client as usize] {
                // A client may have two such paths. The greater number is the same choice in every run.
                let chosen = main.entry(client).or_insert(path);
                *chosen = path.max(*chosen);
            }
        }
        main.retain(|_, path| *path != NONE);
        main
    }
}

/// Returns the number of the first part of each path.
fn roots(paths: &[&[u8]]) -> Vec<u16> {
    let mut numbers: Table<&[u8], u16> = Table::default();
    let mut found = Vec::new();
    for path in paths {
        let next = numbers.len() as u16;
        let root = path.split(|&byte| byte == b'/').nth(1).unwrap_or_default();
        found.push(*numbers.entry(root).or_insert(next));
    }
    found
}

impl Habits {
    /// Returns true if the client asks for paths of one shape more often than any visitor who does nothing else, or is
    /// refused there more often.
    fn exceeds(&self, least: &[Least]) -> bool {
        let of_shape = |shape: u32| least.get(shape as usize);
        let is_slow = self.last - self.first >= SLOW * u64::from(self.requests - 1);
        let takes_time = self.is_long() || is_slow;
        if let Some((shape, attempts)) = self.refused_alone()
            && let Some(least) = of_shape(shape).and_then(|least| least.refused)
            && attempts >= least
            && takes_time
        {
            return true;
        }
        let Some(least) = of_shape(self.shape).filter(|_| self.pretends_alone()) else {
            return false;
        };
        let has = |least: Option<u32>| least.is_some_and(|least| self.requests >= least);
        // A customer's program asks for data as an app does, and sends some, but not for pages or forms of visitors.
        let pretends_visit =
            self.sent > 0 || self.scripts == 0 || self.of_pages * 10 >= self.requests * 9;
        let exceeds = pretends_visit && has(least.alone) && (least.alone == Some(1) || takes_time);
        self.asks_as_visitors() && (exceeds || self.reads() && has(least.reading))
    }

    /// Returns true unless the client is a script, and visitors hardly ever ask for its paths.
    fn asks_as_visitors(&self) -> bool {
        self.scripts == 0 || self.visited * 10 >= self.requests * 9
    }

    /// Returns true if most requests come soon after another, as those for the parts of a page do.
    fn is_quick(&self) -> bool {
        self.quick * 2 >= self.requests
    }

    /// Returns true if nearly all requests are for paths that nobody else asks for, or where nobody gets anything.
    fn guesses_paths(&self, shown: Shown) -> bool {
        let folders = different(self.dead_roots);
        let searches = match shown.agents {
            true => folders >= GUESSED_FOLDERS && self.pretends(),
            false => folders >= GUESSED_PATHS && !self.is_quick(),
        };
        let nearly_all = |count: u32| count * 10 >= self.requests * 9;
        searches && nearly_all(self.dead) || !self.is_quick() && nearly_all(self.own_missing)
    }

    /// Returns the reason to look at the client, given what the log shows, and the bounds of each shape of paths.
    fn suspicion(&self, shown: Shown, least: &[Least]) -> Option<Suspicion> {
        // If the server is at fault, visitors try again.
        if self.declared * 2 >= self.requests || self.meets_outage() {
            return None;
        }
        let guesses = different(self.missing_paths) >= GUESSED_PATHS;
        if guesses && self.guesses_paths(shown) {
            return Some(Suspicion::Guesses);
        }
        if shown.pages && self.asks_as_visitors() && self.sends_alone() {
            return Some(Suspicion::Alone);
        }
        if self.exceeds(least) || self.draws_agents() && !self.is_quick() {
            return Some(Suspicion::Alone);
        }
        // Programs that look for updates ask for what is not there yet, too.
        let guesses = guesses && f64::from(self.missing) >= GUESSED * f64::from(self.requests);
        let missing = if guesses { self.missing } else { 0 };
        let failed = self.failed + missing + self.logins.saturating_sub(LOGINS);
        if failed > 0 && f64::from(failed) >= FAILING * f64::from(self.requests) {
            return Some(match self.has_login || self.last - self.first < PATIENCE {
                true => Suspicion::Mistypes,
                false => Suspicion::Fails,
            });
        }
        // Without user agents, crawlers are not known.
        if !shown.agents {
            return None;
        }
        // Where others load the parts of pages, or show how they come to a page, a browser that does not is a program.
        let is_bare = match shown.files {
            true => self.files == 0 && !self.shows_pages(),
            false => !self.is_dressed() && (shown.pages || self.is_steady() && shown.status),
        };
        if is_bare
            && self.is_long()
            && !self.is_alone()
            && self.pretends()
            && (self.scripts == 0 || !self.is_known())
            && different(self.paths) >= GUESSED_PATHS
            && self.of_pages * 10 >= self.requests * 9
        {
            return Some(Suspicion::Alone);
        }
        if !shown.status || !self.is_steady() {
            return None;
        }
        let paths = different(self.paths);
        // A browser asks for the parts of a page, too. Programs that say what they are may poll one path, and those of
        // users read what these pay for.
        let reads =
            paths < 1.5 && self.pretends() || paths >= 0.7 * f64::from(self.requests.min(200));
        let reads = reads && (self.is_browser() || self.visited * 10 >= self.requests * 9);
        // Nobody reads what is missing; an old app asks for it all the same.
        let most_are = |count: u32| count * 2 >= self.requests;
        let reads = reads && !most_are(self.named) && !most_are(self.missing);
        reads.then_some(Suspicion::Reads)
    }
}
