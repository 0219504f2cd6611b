//! The habits of each client: how many requests it sends, where they come from, and how the server
//! answers.

use super::agents::has_any;
use super::rows::{NONE, Referer, Row, Rows};

/// The least number of requests, and the least time in nanoseconds, that show a steady pace.
pub(super) const STEADY: (u32, u64) = (8, 600_000_000_000);

/// The time in nanoseconds within which a browser asks for the parts of a page.
pub(super) const QUICK: u64 = 3_000_000_000;

/// The smallest share of different user agents among the requests of a program that chooses one at random for each.
const DRAWN: f64 = 0.7;

/// The number of requests that few visitors send without asking for anything else.
pub(super) const OFTEN: u32 = 6;

/// The number of requests that no visitor sends without a page that it comes from, and hardly any parts of pages.
pub(super) const MANY: u32 = 12;

/// More different paths than a tab in the background asks for.
const POLLED: f64 = 3.5;

/// The number of times that few visitors send one form after the other, none from a page.
const SENT: u32 = 3;

/// Parts of the paths of logins.
const LOGIN_PATHS: [&str; 12] = [
    "login", "logon", "signin", "sign-in", "sign_in", "password", "xmlrpc", "auth", "token",
    "session", "account", "verify",
];

/// The ends of the paths of files that pages consist of.
const FILE_ENDS: [&str; 14] = [
    "js", "mjs", "css", "png", "jpg", "jpeg", "gif", "webp", "avif", "svg", "ico", "woff", "woff2",
    "ttf",
];

/// The facts that the log shows at all.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shown {
    pub status: bool,
    pub agents: bool,
    /// True if most requests of browsers name the page that they come from.
    pub pages: bool,
    /// True if many requests are for the files that pages consist of.
    pub files: bool,
}

/// The facts that the path and the user agent of a request show.
#[derive(Debug, Clone, Copy)]
pub(super) struct Signs {
    pub is_login: bool,
    /// True if the path is one of a file that pages consist of.
    pub is_file: bool,
    /// True if the request may be for a part of a page, such as an image.
    pub may_be_part: bool,
    /// True if several clients ask for the path.
    pub is_shared: bool,
    /// True if no client ever got anything at the path.
    pub is_dead: bool,
    /// The first part of the path.
    pub root: u16,
    /// True if the answer shows whether what was sent was right.
    pub shows_outcome: bool,
    /// True if the server refused the request, or shows the form again.
    pub was_refused: bool,
    /// True if the user agent names a crawler or a monitor.
    pub is_declared: bool,
    /// True if the user agent is one of a browser, or if the log has none.
    pub is_browser: bool,
    /// True if the user agent names a library or a tool with which programs are written, such as curl.
    pub is_script: bool,
    /// The shape of the path, and of the request.
    pub shape: u32,
}

/// The habits of a client in the whole log.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Habits {
    pub requests: u32,
    /// The failed logins.
    pub failed: u32,
    /// The path of the last request, whether it sent something, and whether the answer to it was 401.
    pub last_path: (u16, bool),
    pub is_challenged: bool,
    /// The other requests that were refused, or whose path was missing.
    pub missing: u32,
    /// The missing ones for paths that nobody else asks for.
    pub own_missing: u32,
    /// The requests for paths where the server has nothing for anybody, and the bits of the first parts of these.
    pub dead: u32,
    pub dead_roots: u64,
    /// The requests for logins of which the log does not say whether they failed.
    pub logins: u32,
    /// The requests within three seconds after the client's last, and those for what the client still has or plays.
    pub quick: u32,
    /// True if the last login succeeded.
    pub has_login: bool,
    /// The requests under a user agent that names a crawler or a monitor.
    pub declared: u32,
    /// The requests under a user agent of a browser, and of a library for programs.
    pub browser: u32,
    pub scripts: u32,
    /// The requests that name the page that they come from.
    pub referred: u32,
    /// The number of these whose page is one of another site.
    pub landed: u32,
    /// The user agent of the first request, the shape of its path, and the number of requests for paths of others.
    pub agent: u16,
    pub shape: u32,
    pub strays: u32,
    /// The number of the last of these with another path, too.
    pub elsewhere: u32,
    /// The requests that were refused for any reason, and those for which the client had to log in elsewhere.
    pub refused: u32,
    pub logged_out: u32,
    /// The requests that sent something, the number of them that sent the same as the one before, and what that was.
    pub sent: u32,
    pub sent_again: u32,
    pub last_sent: u32,
    /// The requests that the server could not answer.
    pub broken: u32,
    /// The requests for files that pages consist of.
    pub files: u32,
    /// The requests for what browsers come to from a page, or load the parts of.
    pub of_pages: u32,
    /// The requests for what browsers ask for.
    pub visited: u32,
    /// The requests that name the same user as the one before and were not refused, and the last user.
    pub named: u32,
    pub user: u32,
    /// The time between the last two requests, and the number of times that it was as long as the one before.
    pub pause: u64,
    pub regular: u32,
    /// True if it asks for what is new at a regular pace.
    pub polls: bool,
    /// The bits of the paths, and of the missing ones, by their numbers.
    pub paths: u64,
    pub missing_paths: u64,
    /// The bits of the user agents.
    pub agents: u64,
    pub first: u64,
    pub last: u64,
}

/// The answers of the server to the requests for each path.
pub(super) struct Answers {
    /// True if it refuses some.
    fails_openly: Vec<bool>,
    /// True if it answers some that send something with a redirection. If it refuses none, it shows the form again when
    /// what was sent is wrong.
    redirects: Vec<bool>,
}

impl Answers {
    pub(super) fn of(rows: &Rows) -> Self {
        let mut fails_openly = vec![false; usize::from(NONE) + 1];
        let mut redirects = fails_openly.clone();
        for row in &rows.all {
            let path = usize::from(row.path);
            fails_openly[path] |= is_failure(row.status);
            redirects[path] |= row.sends && (300..400).contains(&row.status);
        }
        Self {
            fails_openly,
            redirects,
        }
    }

    /// Returns true if the answer to a request shows whether what was sent was right.
    pub(super) fn show_outcome(&self, row: &Row) -> bool {
        let path = usize::from(row.path);
        self.fails_openly[path] || self.redirects[path] && row.sends
    }

    /// Returns true if the server refused a request, has nothing there, or shows the form again.
    pub(super) fn refuse(&self, row: &Row) -> bool {
        let path = usize::from(row.path);
        let redirects = self.redirects[path] && !self.fails_openly[path];
        is_refused(row.status) || redirects && row.sends && row.status == 200
    }
}

impl Habits {
    pub(super) fn add(&mut self, row: &Row, signs: Signs) {
        let Signs {
            is_login,
            was_refused,
            ..
        } = signs;
        let shows_form = was_refused && row.status == 200;
        let bit = bit_of(row.path);
        // The form of a login that is shown again is no success.
        let is_allowed = self.is_challenged && self.last_path == (row.path, row.sends);
        match row.status {
            status
                if is_refused_guess(status) || is_login && (is_failure(status) || shows_form) =>
            {
                self.failed += 1;
            }
            // The parts of a page, and the links on it, may be missing.
            status if is_refused(status) && row.referer == Referer::None => {
                self.missing += 1;
                self.own_missing += u32::from(!signs.is_shared);
                self.missing_paths |= bit;
            }
            // Basic and Digest authentication, as of WebDAV, refuse each request once, and then allow it.
            200..300 if is_allowed && is_login => self.failed -= 1,
            200..300 if is_allowed => {
                self.missing = self.missing.saturating_sub(1);
            }
            0 => self.logins += u32::from(is_login && row.user == u32::MAX),
            _ => {}
        }
        self.is_challenged = row.status == 401;
        if is_login && signs.shows_outcome {
            self.has_login = (200..400).contains(&row.status) && !shows_form;
        }
        if signs.is_dead && row.referer == Referer::None {
            self.dead += 1;
            self.dead_roots |= bit_of(signs.root);
        }
        self.refused += u32::from(was_refused);
        if row.sends {
            self.sent += 1;
            self.sent_again += u32::from(self.last_sent == signs.shape);
            self.last_sent = signs.shape;
        }
        self.broken += u32::from(row.status >= 500);
        self.files += u32::from(signs.is_file);
        self.logged_out += u32::from(row.status == 401 && !is_login);
        // A client that names another user each time guesses, or is many people.
        if row.user != u32::MAX {
            let is_same = self.named == 0 || row.user == self.user;
            self.named += u32::from(is_same && !was_refused);
            self.user = row.user;
        }
        self.agents |= bit_of(row.agent);
        if self.requests == 0 {
            self.first = row.time;
            self.agent = row.agent;
            self.shape = signs.shape;
        } else {
            let pause = row.time - self.last;
            // The parts of a page are at other paths.
            let is_same = row.path == self.last_path.0 && row.path != NONE;
            let is_part = pause < QUICK && !is_same && !row.sends && signs.may_be_part;
            self.quick += u32::from(is_part || matches!(row.status, 206 | 304));
            self.regular += u32::from(pause.abs_diff(self.pause) <= pause / 8);
            self.pause = pause;
        }
        self.strays += u32::from(signs.shape != self.shape);
        self.elsewhere += u32::from(signs.shape >> 1 != self.shape >> 1);
        // A form that is sent from another site ends a login or a payment there, and pages of this site follow it. The
        // `Referer` of a script is made up.
        let lands = row.referer == Referer::Elsewhere && !row.sends;
        let is_from_page = (row.referer == Referer::Own || lands) && !signs.is_script;
        self.referred += u32::from(is_from_page);
        self.landed += u32::from(is_from_page && lands);
        self.paths |= bit;
        self.last = row.time;
        self.last_path = (row.path, row.sends);
        self.requests += 1;
        self.declared += u32::from(signs.is_declared);
        self.browser += u32::from(signs.is_browser);
        self.scripts += u32::from(signs.is_script);
    }

    /// Returns true if all requests have agents of browsers.
    pub(super) fn is_browser(&self) -> bool {
        self.browser == self.requests && self.requests > 0
    }

    /// Returns true if the client shows that it was on a page. A visitor comes from another site a few times; a client
    /// that names another site with each of many requests is a program.
    pub(super) fn shows_pages(&self) -> bool {
        match self.requests < OFTEN {
            true => self.referred > 0,
            false => self.referred > self.landed,
        }
    }

    /// Returns true if the requests of a browser show the page that they come from, or parts of a page.
    pub(super) fn is_dressed(&self) -> bool {
        self.shows_pages() || self.quick * 4 >= self.requests
    }

    /// Returns true if nearly all requests of a browser are for paths of one shape, and neither from a page nor for its
    /// parts.
    pub(super) fn is_alone(&self) -> bool {
        !self.shows_pages()
            && self.quick * 2 < self.requests.max(2)
            && self.strays * 10 <= self.requests
    }

    /// Returns true if the client looks like a browser, or is a script, and asks for nothing but paths of one shape.
    /// Four kinds of honest clients do so too and are left out: tabs in the background and apps, which ask at a
    /// regular pace; those that go on after they were logged out; visitors whose last login succeeds; and programs
    /// that name a user, which a log without user agents does not tell from browsers.
    pub(super) fn pretends_alone(&self) -> bool {
        self.pretends() && self.is_alone() && !self.is_known()
    }

    /// Returns true if most requests name a user, or need one.
    pub(super) fn is_known(&self) -> bool {
        let most_have = |count: u32| count * 2 >= self.requests;
        most_have(self.logged_out) || most_have(self.named)
    }

    /// Returns true if most requests are for different paths.
    pub(super) fn reads(&self) -> bool {
        different(self.paths) >= 0.7 * f64::from(self.requests.min(100))
    }

    /// Returns true if the agent is one of a browser or of a script, and nothing shows that it is a browser.
    pub(super) fn pretends(&self) -> bool {
        self.browser + self.scripts == self.requests
            && !self.polls
            && !self.has_login
            && !self.meets_outage()
    }

    /// Notes whether the client asks at a regular pace, as apps do, and tabs in the background: these ask for few paths.
    /// In a log that shows pages, what they send names its page; in one that shows files, the page was loaded with some,
    /// or is named.
    pub(super) fn note_polling(&mut self, shown: Shown) {
        let is_regular = self.requests >= OFTEN && self.regular * 2 >= self.requests;
        let is_bare = shown.pages && shown.files && self.files == 0 && self.referred == 0;
        let is_form = shown.pages && self.sent > 0;
        let is_tab = different(self.paths) < POLLED && !is_form && !is_bare;
        self.polls = is_regular && (self.agent == NONE || is_tab);
    }

    /// Returns true if the server is at fault for what the client does. It cannot answer a flood either, but refuses
    /// none of it.
    pub(super) fn meets_outage(&self) -> bool {
        let share = if self.refused == 0 { 2 } else { 5 };
        self.broken > 0 && self.broken * share >= self.requests
    }

    /// Returns true if the client looks like a browser, or is a script, and sends forms without the pages that they are
    /// on, whatever else it asks for.
    pub(super) fn sends_alone(&self) -> bool {
        self.pretends()
            && !self.is_known()
            && !self.shows_pages()
            && self.quick * 10 <= self.requests
            && self.sent_again + 1 >= SENT
            && self.sent * 5 >= self.requests * 2
    }

    /// Returns true if no visitor sends so many requests without a page that it comes from, and its parts.
    pub(super) fn is_long(&self) -> bool {
        self.requests >= MANY
    }

    /// Returns the shape of what the client sends, or asks for, and how often it did, if it does nothing else and
    /// nearly all of it is refused. The form itself is shown to everybody.
    pub(super) fn refused_alone(&self) -> Option<(u32, u32)> {
        let (sends, attempts) = match self.sent {
            0 => (0, self.requests),
            sent => (1, sent),
        };
        let is_alone = self.elsewhere * 10 <= self.requests && attempts * 5 >= self.requests * 2;
        let is_refused = self.refused * 10 >= attempts * 9;
        (is_alone && is_refused && self.pretends() && !self.is_known())
            .then_some((self.shape >> 1 << 1 | sends, attempts))
    }

    /// Returns true if nearly every request of the client has a different user agent.
    pub(super) fn draws_agents(&self) -> bool {
        let few = f64::from(self.requests.min(100));
        self.requests >= MANY && different(self.agents) >= DRAWN * few
    }

    /// Returns true if the requests are spread over a while, and few are for parts of pages.
    pub(super) fn is_steady(&self) -> bool {
        self.requests >= STEADY.0
            && self.last - self.first >= STEADY.1
            && self.quick * 10 <= self.requests
    }
}

/// Returns true if the last part of a path is one of a login.
pub(super) fn is_login(path: &[u8]) -> bool {
    let mut parts = path.rsplit(|&byte| byte == b'/');
    let last = parts.find(|part| !part.is_empty());
    last.is_some_and(|last| has_any(last, &LOGIN_PATHS))
}

/// Returns true if a path ends like those of the scripts, styles, images and fonts that pages consist of.
pub(super) fn is_file(path: &[u8]) -> bool {
    let end = memchr::memrchr(b'.', path).map_or(&b""[..], |dot| &path[dot + 1..]);
    FILE_ENDS.iter().any(|file| file.as_bytes() == end)
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

/// Returns one of 64 bits for the number of a path or a user agent; [`different`] estimates from such bits how many
/// different ones there were.
fn bit_of(number: u16) -> u64 {
    1 << (u64::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58)
}

/// Returns about how many different values have set these bits, each one of 64.
pub(super) fn different(bits: u64) -> f64 {
    match 64 - bits.count_ones() {
        0 => f64::INFINITY,
        unset => 64.0 * (64.0 / f64::from(unset)).ln(),
    }
}
