//! The requests of a log, held in memory: the time, client, user, path, user agent and status of each.

use std::io;

use earrrl::Cost;
use foldhash::fast::RandomState;
use hashbrown::{HashMap, HashSet};

use super::agents::is_declared;
use crate::format::{Field, path_of};
use crate::reading::{ClientNumbers, HeldBack, LoggedRequest, Requests, sort_by_time, too_many};

/// The most requests that are held, at 24 bytes each.
const MOST_REQUESTS: usize = 1 << 28;

/// The most bytes of a path or a user agent that a rule can name.
const MOST_BYTES: usize = 240;

/// The fields in which logs have the host name of a client's address.
const HOSTS: [&str; 7] = [
    "c-dns",
    "remote_host",
    "hostname",
    "client.domain",
    "source.domain",
    "reverse_dns",
    "rdns",
];

/// The API key of a request, as a rule names it.
const API_KEY: &str = "header:x-api-key";

/// A set of clients, by their numbers.
pub(super) type Clients = HashSet<u32, RandomState>;

/// A hash table.
pub(super) type Table<K, V> = HashMap<K, V, RandomState>;

/// The number of a value that is missing, or that no rule can name.
pub(super) const NONE: u16 = u16::MAX;

/// The property that tells a group from all others, which becomes the key of the rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// Its user agents.
    Agent,
    /// Its networks: /24 of IPv4, /48 of IPv6.
    Network,
    /// Its user agents within its networks, where others share either.
    AgentInNetwork,
    /// Its paths, which hardly anybody else asks for.
    Path,
    /// Its addresses, which guess paths that nobody else asks for, or ask for nothing but what visitors reach from
    /// other pages.
    Address,
    /// The rate of each client.
    Client,
    /// The rate of the requests for each user.
    User,
    /// The rate of the requests with each API key.
    ApiKey,
}

impl Mark {
    /// Returns the part of a rule's key that is the user, or the API key.
    pub(super) fn user_part(self) -> &'static str {
        match self {
            Self::ApiKey => API_KEY,
            _ => "user",
        }
    }

    /// Returns true if a rule names the values of the mark.
    pub(super) fn is_named(self) -> bool {
        !matches!(self, Self::Client | Self::User | Self::ApiKey)
    }
}

/// The page that a request says it comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Referer {
    None,
    /// One of another site, as of a search or of a link there.
    Elsewhere,
    /// One of the site itself.
    Own,
}

/// A request by the numbers of its values.
#[derive(Debug, Clone, Copy)]
pub(super) struct Row {
    /// The time in nanoseconds since the epoch.
    pub time: u64,
    pub client: u32,
    /// The user's number; `u32::MAX` if the request has none.
    pub user: u32,
    pub path: u16,
    pub agent: u16,
    /// The status of the response; 0 if the log has none.
    pub status: u16,
    /// The page that the request says it comes from.
    pub referer: Referer,
    /// True if the request sends data to the server, as a form does: its method is not one that only reads.
    pub sends: bool,
}

/// The different values of a field, numbered in the order of their first requests; values beyond the first 65,535 have
/// no number.
#[derive(Debug, Default)]
pub(super) struct Values(ClientNumbers);

/// The requests of a log. Without `--cost` nearly all logs have requests that cost 1, and then their values are held;
/// of other logs, only times, clients and costs.
#[derive(Default)]
pub struct Rows {
    pub(super) all: Vec<Row>,
    pub(super) paths: Values,
    pub(super) agents: Values,
    /// The users, or else the API keys.
    pub(super) users: ClientNumbers,
    has_users: bool,
    /// The sites that requests name in `Referer`, and by their numbers how many of the named pages are in the log.
    sites: Values,
    known_pages: Vec<u32>,
    /// The number of the site of the page that each request comes from, in the order of the lines.
    referers: Vec<u16>,
    /// The host name of each declared crawler's address.
    pub(super) hosts: Table<u32, Box<[u8]>>,
    /// All requests, if one of them does not cost 1.
    costly: Option<HeldBack>,
}

/// The values of a request that describe its client.
#[derive(Default)]
pub(super) struct RequestValues<'a> {
    pub agent: Option<&'a [u8]>,
    pub status: Option<&'a [u8]>,
    pub path: Option<&'a [u8]>,
    pub user: Option<&'a [u8]>,
    pub api_key: Option<&'a [u8]>,
    pub method: Option<&'a [u8]>,
    pub referer: Option<&'a [u8]>,
    pub host: Option<&'a [u8]>,
    pub is_forwarded: bool,
}

/// Returns the fields whose texts [`Rows::extend`] and [`super::Profiles`] need, from a function that returns the fields
/// of an attribute, in order of preference.
pub fn profile_texts(fields: impl Fn(&str) -> Vec<Field>) -> Vec<Vec<Field>> {
    let hosts = HOSTS.map(|name| Field::Named(name.into())).into();
    // In the order in which most lines have them.
    let first = [
        "method",
        "status",
        "header:referer",
        "header:user-agent",
        API_KEY,
    ];
    let first = first.map(fields);
    let path = vec![Field::Path];
    let user = vec![Field::User];
    [path]
        .into_iter()
        .chain(first)
        .chain([hosts, user])
        .collect()
}

impl<'a> RequestValues<'a> {
    /// Creates the values from the texts of [`profile_texts`], with the address and those in X-Forwarded-For behind them
    /// if the profile asks for them.
    pub(super) fn of(mut texts: impl Iterator<Item = Option<&'a [u8]>>) -> Self {
        let mut next = || texts.next().flatten();
        let values = Self {
            path: next(),
            method: next(),
            status: next(),
            referer: next(),
            agent: next(),
            api_key: next(),
            host: next(),
            user: next(),
            is_forwarded: false,
        };
        let client = next();
        let forwarded = next();
        Self {
            is_forwarded: forwarded.is_some() && forwarded != client,
            ..values
        }
    }
}

impl Values {
    /// Returns the number of a value; [`NONE`] if there are too many, or if no rule can name it.
    pub(super) fn number(&mut self, value: &[u8]) -> u16 {
        match self.0.known(value) {
            Some(number) => number as u16,
            // Only a new value is examined, since most requests repeat one.
            None if self.0.len() >= usize::from(NONE) || !can_be_named(value) => NONE,
            None => self.0.number(value).map_or(NONE, |number| number as u16),
        }
    }

    /// Returns the value with this number.
    pub(super) fn name(&self, number: u16) -> &[u8] {
        self.0.key(u32::from(number))
    }

    /// Returns the values by their numbers.
    pub(super) fn names(&self) -> Vec<&[u8]> {
        let numbers = 0..self.0.len() as u32;
        numbers.map(|number| self.0.key(number)).collect()
    }
}

impl Rows {
    /// Adds requests with the texts of [`profile_texts`].
    ///
    /// # Errors
    /// Returns [`io::ErrorKind::OutOfMemory`] if too many requests are held.
    pub fn extend(&mut self, requests: &Requests<'_>) -> io::Result<()> {
        for (place, &request) in requests.iter().enumerate() {
            if let Some(costly) = &mut self.costly {
                costly.push(request)?;
            } else if request.cost == Cost::ONE {
                self.add(request, &RequestValues::of(requests.texts(place)))?;
            } else {
                let mut costly = HeldBack::default();
                let before = std::mem::take(&mut self.all);
                let mut before = before.iter().map(|row| logged(row, row.client));
                before.try_for_each(|request| costly.push(request))?;
                costly.push(request)?;
                self.costly = Some(costly);
            }
        }
        Ok(())
    }

    /// Adds a request. API keys count as users until the first request that names a user.
    fn add(&mut self, request: LoggedRequest, values: &RequestValues<'_>) -> io::Result<()> {
        if self.all.len() >= MOST_REQUESTS {
            return Err(too_many());
        }
        if values.user.is_some() && !self.has_users {
            self.has_users = true;
            self.users = ClientNumbers::new();
            self.all.iter_mut().for_each(|row| row.user = u32::MAX);
        }
        let path = values.path.filter(|path| path.starts_with(b"/"));
        let user = match self.has_users {
            true => values.user,
            false => values.api_key,
        };
        let user = user.and_then(|user| self.users.number(user));
        if let (Some(host), Some(agent)) = (values.host, values.agent)
            && is_declared(agent)
        {
            self.hosts
                .entry(request.client)
                .or_insert_with(|| host.into());
        }
        self.note_referer(values.referer);
        self.all.push(Row {
            time: request.time,
            client: request.client,
            user: user.unwrap_or(u32::MAX),
            path: path.map_or(NONE, |path| self.paths.number(path)),
            agent: values.agent.map_or(NONE, |agent| self.agents.number(agent)),
            status: values.status.and_then(status).unwrap_or(0),
            referer: match values.referer {
                Some(_) => Referer::Own,
                None => Referer::None,
            },
            sends: values.method.is_some_and(sends),
        });
        Ok(())
    }

    /// Notes the site of the page that a request comes from.
    fn note_referer(&mut self, referer: Option<&[u8]>) {
        let Some(referer) = referer else {
            self.referers.push(NONE);
            return;
        };
        let site = self.sites.number(site_of(referer));
        self.referers.push(site);
        let page = path_of(referer);
        // Every eighth request tells as much as all.
        let is_sample = self.referers.len().is_multiple_of(8);
        if is_sample && page.len() > 1 && self.paths.0.known(page).is_some() {
            let place = usize::from(site);
            if place >= self.known_pages.len() {
                self.known_pages.resize(place + 1, 0);
            }
            self.known_pages[place] += 1;
        }
    }

    /// Tells the requests that come from the site's own pages from all others. The site is the one most of whose pages
    /// are in the log.
    fn find_own_site(&mut self) {
        let known = (0..).zip(&self.known_pages);
        let own = known.max_by_key(|(_, known)| **known).map(|(site, _)| site);
        for (row, site) in self.all.iter_mut().zip(std::mem::take(&mut self.referers)) {
            if row.referer != Referer::None && own.is_some_and(|own: u16| site != own) {
                row.referer = Referer::Elsewhere;
            }
        }
    }

    /// Puts the requests in the order of their times; those with equal times keep the order of their lines.
    pub fn sort(&mut self) {
        self.find_own_site();
        if let Some(costly) = &mut self.costly {
            costly.sort();
        }
        sort_by_time(&mut self.all, |row| row.time);
    }

    /// Returns the requests in the order of their times, after [`Rows::sort`].
    pub fn requests(&self) -> impl Iterator<Item = LoggedRequest> {
        let costly = self.costly.iter().flat_map(HeldBack::requests);
        self.all
            .iter()
            .map(|row| logged(row, row.client))
            .chain(costly)
    }

    /// Returns the mark of the users: their names, or the API keys of a log that names nobody.
    pub(super) fn user_mark(&self) -> Mark {
        match self.has_users {
            true => Mark::User,
            false => Mark::ApiKey,
        }
    }

    /// Returns the word for the unit of the summed costs: `requests` if each request costs 1.
    pub fn unit(&self) -> &'static str {
        self.costly.as_ref().map_or("requests", HeldBack::unit)
    }
}

/// Returns true if a rule's condition can name a value of a log: as UTF-8, without a `*`, which would be any text, and
/// without what a log may have escaped. A client chooses what it sends.
fn can_be_named(value: &[u8]) -> bool {
    let is_plain = |byte: &u8| !byte.is_ascii_control() && !b"*\"\\".contains(byte);
    value.len() <= MOST_BYTES
        && value.iter().all(is_plain)
        && value.trim_ascii().len() == value.len()
        && std::str::from_utf8(value).is_ok()
}

/// Returns the last two labels of the host of a page's address, which hosts such as `www.` and `shop.` share.
fn site_of(referer: &[u8]) -> &[u8] {
    let start = memchr::memmem::find(referer, b"://").map_or(0, |at| at + 3);
    let host = &referer[start..];
    let end = memchr::memchr3(b'/', b'?', b':', host).unwrap_or(host.len());
    let host = &host[..end];
    let mut dots = memchr::memrchr_iter(b'.', host);
    dots.nth(1).map_or(host, |at| &host[at + 1..])
}

/// Returns the number of a status.
fn status(text: &[u8]) -> Option<u16> {
    text.iter().try_fold(0_u16, |number, digit| {
        let digit = char::from(*digit).to_digit(10)?;
        number.checked_mul(10)?.checked_add(digit as u16)
    })
}

/// Returns true if requests with a method send something. Browsers ask with `OPTIONS` whether they may.
fn sends(method: &[u8]) -> bool {
    !matches!(method, b"GET" | b"HEAD" | b"OPTIONS")
}

/// Returns a request as one of the client, or of the user, with this number.
pub(super) fn logged(row: &Row, number: u32) -> LoggedRequest {
    LoggedRequest {
        time: row.time,
        client: number,
        cost: Cost::ONE,
    }
}
