//! Suggests rules for a single path, and for each user.
//!
//! A client that guesses passwords may send fewer requests than a reader of many pages, and stands
//! out only among the clients of the login's path.

use std::time::Duration;

use earrrl::{Cost, RuleError};
use foldhash::fast::RandomState;
use hashbrown::{HashMap, HashSet};

use super::{JudgedAdvice, SeenClient, Sweep, judge};
use crate::format::{Field, Record};
use crate::reading::{ClientNumbers, LoggedRequest};

/// The most paths that are told apart; later ones get no rule.
const MOST_PATHS: usize = 1 << 16;

/// The most bytes of a path that gets a rule.
const MOST_BYTES: usize = 160;

/// The most requests that are held, at 16 bytes each.
const MOST_REQUESTS: usize = 1 << 28;

/// The least number of clients of a path; fewer show too little of what is usual.
const FEWEST_CLIENTS: usize = 20;

/// The most rules for single paths that are suggested.
const MOST_RULES: usize = 3;

/// A request for a path, by the numbers of the path and of the client.
#[derive(Debug, Clone, Copy)]
struct PathRequest {
    time: u64,
    path: u32,
    client: u32,
}

/// The requests of a log by path and by user.
#[derive(Debug, Default)]
pub(super) struct PartRequests {
    /// The number of each path, in the order of their first requests.
    paths: HashMap<Box<[u8]>, u32, RandomState>,
    by_path: Vec<PathRequest>,
    users: ClientNumbers,
    by_user: Vec<LoggedRequest>,
}

/// A suggested rule for the requests for one path.
pub struct PathRule {
    /// The path, without the query.
    pub path: Vec<u8>,
    /// The number of clients that requested the path.
    pub clients: usize,
    /// The limit, and the clients that it affects.
    pub judged: JudgedAdvice,
}

/// Suggested rules that judge less than a client's whole traffic.
#[derive(Default)]
pub struct PartRules {
    /// Rules for single paths, each of which affects a client that no rule for all paths affects.
    /// The rule that affects the most such clients comes first.
    pub paths: Vec<PathRule>,
    /// A rule for each user; `None` if the log names no users or if no user stands out.
    pub user: Option<JudgedAdvice>,
    /// The names of the users, by the numbers in [`PartRules::user`].
    pub users: ClientNumbers,
}

impl PartRequests {
    /// Adds a request of a client.
    pub(super) fn add(&mut self, record: &Record<'_>, client: u32) {
        let time = record.time();
        if let Some(path) = record.get(&Field::Path)
            && may_be_a_condition(&path)
            && self.by_path.len() < MOST_REQUESTS
            && let Some(path) = self.path(&path)
        {
            self.by_path.push(PathRequest { time, path, client });
        }
        if let Some(user) = record.get(&Field::User)
            && self.by_user.len() < MOST_REQUESTS
            && let Some(client) = self.users.number(&user)
        {
            self.by_user.push(LoggedRequest {
                time,
                client,
                cost: Cost::ONE,
            });
        }
    }

    /// Returns the number of a path; `None` if it is new and too many paths are known.
    fn path(&mut self, path: &[u8]) -> Option<u32> {
        let next = self.paths.len();
        match self.paths.get(path) {
            Some(&number) => Some(number),
            None if next >= MOST_PATHS => None,
            None => Some(*self.paths.entry(path.into()).or_insert(next as u32)),
        }
    }

    /// Finds the rules. `most` returns the number of clients, of so many, that a rule may affect;
    /// `known` are the clients that the rules for all paths affect.
    ///
    /// # Errors
    /// Returns an error if a computed limit is not valid in a rule.
    pub(super) fn rules(
        mut self,
        half_lives: &[Duration],
        most: &impl Fn(usize) -> usize,
        known: impl Iterator<Item = u32>,
    ) -> Result<PartRules, RuleError> {
        let known: HashSet<u32, RandomState> = known.collect();
        self.by_path
            .sort_unstable_by_key(|request| (request.path, request.time));
        let mut found = Vec::new();
        for requests in self.by_path.chunk_by(|one, next| one.path == next.path) {
            let Some(judged) = judge_path(requests, half_lives, most)? else {
                continue;
            };
            let new = |client: &&SeenClient| !known.contains(&client.number);
            let further = judged.1.touched.iter().filter(new).count();
            if further > 0 {
                found.push((further, requests, judged));
            }
        }
        found.sort_by_key(|&(further, requests, _)| (usize::MAX - further, requests[0].path));
        let mut paths: Vec<&[u8]> = vec![&[]; self.paths.len()];
        self.paths
            .iter()
            .for_each(|(path, &number)| paths[number as usize] = path);
        let rule = |(_, requests, (clients, judged)): (usize, &[PathRequest], _)| PathRule {
            path: paths[requests[0].path as usize].to_vec(),
            clients,
            judged,
        };
        let paths = found.into_iter().take(MOST_RULES).map(rule).collect();
        self.by_user.sort_by_key(|request| request.time);
        let user = standing_out(half_lives, most, || self.by_user.iter().copied())?;
        Ok(PartRules {
            paths,
            user,
            users: self.users,
        })
    }
}

/// Returns true if a rule's condition can name the path: as UTF-8 from its slash on, and without a `*`,
/// which would be any text. A client may send other paths.
fn may_be_a_condition(path: &[u8]) -> bool {
    path.len() <= MOST_BYTES
        && path.starts_with(b"/")
        && !path.contains(&b'*')
        && std::str::from_utf8(path).is_ok()
}

/// Judges the requests for one path, if it has enough clients and some of them stand out. Returns
/// the number of clients, and the limit.
fn judge_path(
    requests: &[PathRequest],
    half_lives: &[Duration],
    most: &impl Fn(usize) -> usize,
) -> Result<Option<(usize, JudgedAdvice)>, RuleError> {
    if requests.len() < FEWEST_CLIENTS {
        return Ok(None);
    }
    // The clients of the path are numbered anew, so that their peaks take little memory.
    let mut numbers = HashMap::<u32, u32, RandomState>::default();
    let mut clients = Vec::new();
    let mut number = |client: u32| {
        *numbers.entry(client).or_insert_with(|| {
            clients.push(client);
            clients.len() as u32 - 1
        })
    };
    let renumbered: Vec<LoggedRequest> = requests
        .iter()
        .map(|&PathRequest { time, client, .. }| LoggedRequest {
            time,
            client: number(client),
            cost: Cost::ONE,
        })
        .collect();
    if clients.len() < FEWEST_CLIENTS {
        return Ok(None);
    }
    let judged = standing_out(half_lives, most, || renumbered.iter().copied())?;
    Ok(judged.map(|mut judged| {
        judged
            .named()
            .for_each(|client| client.number = clients[client.number as usize]);
        (clients.len(), judged)
    }))
}

/// Returns the limit that parts those who stand out from all others; `None` if nobody does.
fn standing_out<I: Iterator<Item = LoggedRequest>>(
    half_lives: &[Duration],
    most: &impl Fn(usize) -> usize,
    requests: impl Fn() -> I,
) -> Result<Option<JudgedAdvice>, RuleError> {
    let sweep = Sweep::new(half_lives, most, &requests)?;
    sweep.gap().map(|_| judge(&sweep, requests())).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    /// Creates the requests of 50 readers of many pages, of 30 clients that log in once, and of one
    /// that tries to log in twice a second.
    fn requests() -> PartRequests {
        let mut all = PartRequests::default();
        let pages: Vec<u32> = (0..40)
            .filter_map(|page| all.path(format!("/{page}").as_bytes()))
            .collect();
        let login = all.path(b"/login").unwrap();
        for second in 0..600 {
            for reader in 0..50 {
                let path = pages[(second * 7 + reader) as usize % pages.len()];
                let time = u64::from(second) * SECOND;
                all.by_path.push(PathRequest {
                    time,
                    path,
                    client: reader,
                });
            }
            let time = u64::from(second) * SECOND;
            if second % 20 == 0 {
                all.by_path.push(PathRequest {
                    time,
                    path: login,
                    client: 100 + second / 20,
                });
            }
            all.by_path.extend(
                [PathRequest {
                    time,
                    path: login,
                    client: 200,
                }; 2],
            );
        }
        all
    }

    #[test]
    fn a_path_has_a_rule_for_clients_that_stand_out_there_alone() {
        let half_lives = [Duration::from_secs(10), Duration::from_secs(60)];
        let rules = |known: &[u32]| {
            requests()
                .rules(&half_lives, &|_| 2, known.iter().copied())
                .unwrap()
        };
        let found = rules(&[]);
        assert_eq!(found.paths.len(), 1);
        let rule = &found.paths[0];
        let touched: Vec<u32> = rule
            .judged
            .touched
            .iter()
            .map(|client| client.number)
            .collect();
        assert_eq!((&rule.path[..], rule.clients), (&b"/login"[..], 31));
        assert_eq!(touched, [200]);
        assert_eq!(rule.judged.touched[0].requests, 1200);
        assert!(found.user.is_none());
        assert!(
            rules(&[200]).paths.is_empty(),
            "another rule affects the client already"
        );
    }
}
