//! Finds addresses of many people, such as those of offices and carriers, among the clients that stand out.

use earrrl::RuleError;

use super::Sweep;
use super::habits::{is_failure, is_login};
use super::peaks::RateMeter;
use super::profile::CROWD;
use super::rows::{NONE, Referer, Row, Rows, Table, logged};

/// The people behind one address, who are told apart by their user agents, or by the users that requests name.
#[derive(Debug, Clone, Copy, Default)]
struct Visitors {
    people: usize,
    requests: u64,
    failed: u64,
    /// The requests that name a user and are not refused.
    named: u64,
    /// The requests of the same person as the client's last.
    same: u64,
    /// The sum of the squares of the numbers of each person's requests.
    squares: u64,
    last_person: u32,
    /// The greatest rate of one person.
    peak: f64,
    /// The requests that name the page that they come from.
    referred: u64,
    /// The logins that succeed.
    logins: u64,
}

impl Rows {
    /// Returns the clients above the gaps of a sweep that are many people behind one address, of whom none stands out:
    /// users who are not refused, with user agents of their own; user agents that no program draws at random, since the
    /// requests under one come one after the other, as those for a page and its parts do, or since nearly all requests
    /// name the page that they come from; or those who log in, each of whom asks for much more.
    ///
    /// # Errors
    /// Returns an error if no rule can have one of the half-lives.
    pub fn crowds(&self, sweep: &Sweep) -> Result<Vec<u32>, RuleError> {
        if sweep.tried.iter().all(|(_, gap)| gap.is_none()) {
            return Ok(Vec::new());
        }
        let paths = self.paths.names();
        let logins: Vec<bool> = paths.into_iter().map(is_login).collect();
        crowds(&self.all, sweep, Some(&logins))
    }
}

/// Finds crowds as [`Rows::crowds`] does. `logins` are the paths of logins; `None` if all requests are for one path, for
/// which each of many people asks once.
pub(super) fn crowds(
    rows: &[Row],
    sweep: &Sweep,
    logins: Option<&[bool]>,
) -> Result<Vec<u32>, RuleError> {
    let has_agents = rows.iter().any(|row| row.agent != NONE);
    let mut found = Vec::new();
    for (peaks, gap) in &sweep.tried {
        let Some(gap) = gap else { continue };
        let above = peaks.worst(gap.clients).into_iter();
        // By user agents, and by users.
        let mut above: Table<u32, [Visitors; 2]> = above
            .map(|client| (client, <[Visitors; 2]>::default()))
            .collect();
        let mut meter = RateMeter::new(peaks.half_life)?;
        let mut seen: Table<(u32, bool, u32), (u32, u64)> = Table::default();
        for row in rows {
            let Some(visitors) = above.get_mut(&row.client) else {
                continue;
            };
            let is_login = logins.is_some_and(|all| all.get(usize::from(row.path)) == Some(&true));
            visitors[0].logins += u64::from(is_login && row.sends && is_success(row.status));
            let names = [u32::from(row.agent), row.user];
            for ((visitors, name), by_user) in visitors.iter_mut().zip(names).zip([false, true]) {
                let next = (seen.len() as u32, 0);
                let (number, before) = seen.entry((row.client, by_user, name)).or_insert(next);
                visitors.add(row, (*number, *before), meter.add(logged(row, *number)));
                *before += 1;
            }
        }
        let middle = gap.middle();
        let is_crowd = |(client, [agents, users]): &(&u32, &[Visitors; 2])| {
            let are_users = users.are_many(middle) && users.named * 2 >= users.requests;
            // A program with many stolen accounts has one user agent.
            let are_different = !has_agents || agents.people * 4 >= users.people;
            let are_agents = agents.are_many(middle) && (logins.is_none() || agents.are_people());
            let log_in = agents.log_in() && peaks.peak(**client) < middle * agents.logins as f64;
            are_users && are_different || are_agents || log_in
        };
        found.extend(above.iter().filter(is_crowd).map(|(&client, _)| client));
    }
    Ok(found)
}

impl Visitors {
    /// Adds a request of a person, who has this rate and has sent so many requests before.
    fn add(&mut self, row: &Row, (person, before): (u32, u64), rate: f64) {
        self.same += u64::from(self.requests > 0 && person == self.last_person);
        self.last_person = person;
        self.people += usize::from(before == 0);
        self.requests += 1;
        self.squares += 2 * before + 1;
        self.failed += u64::from(is_failure(row.status));
        // A client chooses the names that it guesses with.
        self.named += u64::from(row.user != u32::MAX && is_success(row.status));
        self.referred += u64::from(row.referer != Referer::None);
        self.peak = self.peak.max(rate);
    }

    /// Returns true if these are many, each slower than the middle of a gap: more like the visitors below it than like
    /// those above.
    fn are_many(&self, middle: f64) -> bool {
        self.people >= CROWD && self.peak < middle && self.failed * 10 <= self.requests
    }

    /// Returns true if many log in, few logins fail, and each is followed by more than a program asks for between two.
    fn log_in(&self) -> bool {
        let people = self.logins as usize;
        people >= CROWD && self.logins * 5 <= self.requests && self.failed * 10 <= self.requests
    }

    /// Returns true unless a program may have drawn these user agents: nearly all requests show how they come about.
    fn are_people(&self) -> bool {
        self.come_one_by_one() || self.referred * 10 >= self.requests * 9
    }

    /// Returns true if the requests of one person come one after the other, as those for a page and its parts do. A
    /// program that draws its user agents at random repeats the last one as seldom as chance has it.
    fn come_one_by_one(&self) -> bool {
        self.same * self.requests >= 4 * self.squares
    }
}

/// Returns true if a request succeeded: what it asked for is there, or elsewhere.
fn is_success(status: u16) -> bool {
    (200..400).contains(&status)
}
