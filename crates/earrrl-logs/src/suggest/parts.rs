//! Suggests rules for a single path, and for each user.
//!
//! A client that guesses passwords may send fewer requests than a reader of many pages, and stands
//! out only among the clients of the login's path.

use std::time::Duration;

use earrrl::RuleError;

use super::crowds::crowds;
use super::group::{Group, Suspected, groups};
use super::habits::is_file;
use super::peaks::FEW;
use super::rows::{Clients, NONE, Row, Rows, logged};
use super::{JudgedAdvice, SeenClient, Sweep, judge};
use crate::reading::{ClientNumbers, LoggedRequest};

/// The least number of clients of a path; fewer show too little of what is usual.
const FEWEST_CLIENTS: usize = 20;

/// The most rules for single paths that are suggested.
const MOST_RULES: usize = 3;

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
    /// Groups of many clients that attack together; the largest comes first.
    pub groups: Vec<Group>,
    /// Rules for single paths, each of which affects a client that no rule for all paths affects.
    /// The rule that affects the most such clients comes first.
    pub paths: Vec<PathRule>,
    /// A rule for each user; `None` if the log names no users or if no user stands out.
    pub user: Option<JudgedAdvice>,
    /// The names of the users, by the numbers in [`PartRules::user`]; API keys if the log names no users.
    pub users: ClientNumbers,
    /// The part of a rule's key that is the user.
    pub user_part: &'static str,
}

/// Rules for users and single paths that may affect the same clients as a rule for all requests.
#[derive(Default)]
pub struct FoundParts {
    user: Option<JudgedAdvice>,
    /// In the order of the numbers of the paths.
    paths: Vec<PathRule>,
}

impl Rows {
    /// Finds rules for users and for single paths among requests that are sorted; none for the files that pages consist
    /// of, which clients load with the pages. `most` returns the number of clients, of so many, that a rule may affect.
    ///
    /// # Errors
    /// Returns an error if a computed limit is not valid in a rule.
    pub fn parts(
        &self,
        half_lives: &[Duration],
        most: &impl Fn(usize) -> usize,
    ) -> Result<FoundParts, RuleError> {
        let of_users = || {
            let rows = self.all.iter().filter(|row| row.user != u32::MAX);
            rows.map(|row| logged(row, row.user))
        };
        let user = standing_out(&Sweep::new(half_lives, most, of_users)?, of_users())?;
        let mut paths = Vec::new();
        let mut numbers = Vec::new();
        for (path, places) in (0..NONE).zip(places_by_path(&self.all)) {
            if places.is_empty() || is_file(self.paths.name(path)) {
                continue;
            }
            let Some(rows) = renumbered(&self.all, &places, &mut numbers) else {
                continue;
            };
            if let Some((clients, judged)) = judge_path(rows, half_lives, most)? {
                paths.push(PathRule {
                    path: self.paths.name(path).to_vec(),
                    clients,
                    judged,
                });
            }
        }
        Ok(FoundParts { user, paths })
    }

    /// Finds rules for groups of the suspected clients among requests that `sweep` has measured, and keeps those of the
    /// found parts that affect a client other than `known`, which the rules for all paths affect.
    ///
    /// # Errors
    /// Returns an error if a computed limit is not valid in a rule.
    pub fn rules(
        self,
        suspected: Option<&Suspected>,
        FoundParts { user, mut paths }: FoundParts,
        sweep: &Sweep,
        known: impl Iterator<Item = u32>,
    ) -> Result<PartRules, RuleError> {
        // An address of many people is known, too.
        let known: Clients = known.chain(sweep.crowds.iter().copied()).collect();
        let groups = suspected.map(|suspected| groups(&self, suspected, sweep, &known));
        let is_new = |client: &&SeenClient| !known.contains(&client.number);
        let further = |rule: &PathRule| rule.judged.touched.iter().filter(is_new).count();
        paths.retain(|rule| further(rule) > 0);
        paths.sort_by_key(|rule| usize::MAX - further(rule));
        paths.truncate(MOST_RULES);
        Ok(PartRules {
            groups: groups.transpose()?.unwrap_or_default(),
            paths,
            user,
            user_part: self.user_mark().user_part(),
            users: self.users,
        })
    }
}

/// Returns the places and clients of the requests for each path, by its number; none for paths with few requests.
fn places_by_path(rows: &[Row]) -> Vec<Vec<(u32, u32)>> {
    let mut counts = vec![0; usize::from(NONE) + 1];
    rows.iter()
        .for_each(|row| counts[usize::from(row.path)] += 1);
    let is_enough = |count: usize| count >= FEWEST_CLIENTS;
    let sizes = counts
        .iter()
        .map(|&count| if is_enough(count) { count } else { 0 });
    let mut places: Vec<Vec<(u32, u32)>> = sizes.map(Vec::with_capacity).collect();
    for (place, row) in (0..).zip(rows) {
        let path = usize::from(row.path);
        if is_enough(counts[path]) {
            places[path].push((place, row.client));
        }
    }
    places
}

/// The requests for one path, whose clients are numbered anew, so that their peaks take little memory.
struct OfPath {
    rows: Vec<Row>,
    /// The number in the whole log of each client, by its new number.
    clients: Vec<u32>,
}

/// Returns the requests at these places, each with its client; `None` if they have few clients, or none with many
/// requests. `numbers` has the new number of each client, and is left with none.
fn renumbered(rows: &[Row], places: &[(u32, u32)], numbers: &mut Vec<u32>) -> Option<OfPath> {
    let mut clients = Vec::new();
    let mut counts = Vec::new();
    for &(_, client) in places {
        let client = client as usize;
        if client >= numbers.len() {
            numbers.resize(client + 1, u32::MAX);
        }
        if numbers[client] == u32::MAX {
            numbers[client] = clients.len() as u32;
            clients.push(client as u32);
            counts.push(0);
        }
        counts[numbers[client] as usize] += 1;
    }
    let are_many = clients.len() >= FEWEST_CLIENTS;
    let of_path = (are_many && counts.iter().any(|&count| f64::from(count) > FEW)).then(|| {
        let renumber = |&(place, client): &(u32, u32)| Row {
            client: numbers[client as usize],
            ..rows[place as usize]
        };
        places.iter().map(renumber).collect()
    });
    for &client in &clients {
        numbers[client as usize] = u32::MAX;
    }
    of_path.map(|rows| OfPath { rows, clients })
}

/// Judges the requests for one path, if some of its clients stand out. Returns the number of clients, and the limit.
fn judge_path(
    OfPath { rows, clients }: OfPath,
    half_lives: &[Duration],
    most: &impl Fn(usize) -> usize,
) -> Result<Option<(usize, JudgedAdvice)>, RuleError> {
    let requests = || rows.iter().map(|row| logged(row, row.client));
    let mut sweep = Sweep::new(half_lives, most, requests)?;
    sweep.spare(crowds(&rows, &sweep, None)?);
    let judged = standing_out(&sweep, requests())?;
    Ok(judged.map(|mut judged| {
        judged
            .named()
            .for_each(|client| client.number = clients[client.number as usize]);
        (clients.len(), judged)
    }))
}

/// Returns the limit that parts those who stand out from all others; `None` if nobody does.
fn standing_out(
    sweep: &Sweep,
    requests: impl Iterator<Item = LoggedRequest>,
) -> Result<Option<JudgedAdvice>, RuleError> {
    sweep.gap().map(|_| judge(sweep, requests)).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suggest::rows::Referer;

    const SECOND: u64 = 1_000_000_000;

    /// Creates the requests of 50 readers of many pages, of 30 clients that log in once, and of one
    /// that tries to log in twice a second.
    fn requests() -> Rows {
        let mut all = Rows::default();
        let pages: Vec<u16> = (0..40)
            .map(|page| all.paths.number(format!("/{page}").as_bytes()))
            .collect();
        let login = all.paths.number(b"/login");
        for second in 0..600 {
            let mut add = |client, path| {
                all.all.push(Row {
                    time: u64::from(second) * SECOND,
                    client,
                    user: u32::MAX,
                    path,
                    agent: NONE,
                    status: 0,
                    referer: Referer::None,
                    sends: false,
                });
            };
            for reader in 0..50 {
                add(reader, pages[(second * 7 + reader) as usize % pages.len()]);
            }
            if second % 20 == 0 {
                add(100 + second / 20, login);
            }
            add(200, login);
            add(200, login);
        }
        all
    }

    #[test]
    fn a_path_has_a_rule_for_clients_that_stand_out_there_alone() {
        let half_lives = [Duration::from_secs(10), Duration::from_secs(60)];
        let rules = |known: &[u32]| {
            let rows = requests();
            let sweep = Sweep::new(&half_lives, |_| 2, || rows.requests()).unwrap();
            let parts = rows.parts(&half_lives, &|_| 2).unwrap();
            rows.rules(None, parts, &sweep, known.iter().copied())
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
