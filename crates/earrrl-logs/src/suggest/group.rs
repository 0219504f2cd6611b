//! Finds groups of many clients that attack together: what they share, and a rule that limits them and nobody else.
//!
//! Each of these clients may send so little that no limit by address can find it. So the suspects are compared with all
//! others by user agent, network, user, and by how often they ask for one path.

use std::collections::BTreeSet;
use std::panic::resume_unwind;
use std::time::Duration;

use earrrl::RuleError;
use foldhash::fast::RandomState;
use hashbrown::HashSet;
use ipnet::IpNet;

use super::candidates::{JudgedLimit, limit_within};
use super::habits::{is_failure, is_missing};
use super::networks::Networks;
use super::peaks::{Gap, RateMeter, Sweep};
use super::rows::{Clients, Mark, NONE, Row, Rows, Table, Values as ValueNumbers, logged};
use super::suspects::{Suspects, Suspicion};
use crate::reading::ClientNumbers;

/// The least number of clients of a group.
const FEWEST: usize = 10;

/// The least number of suspects that share a value; a network has few addresses.
const FEWEST_ALIKE: usize = 5;
const FEWEST_IN_NETWORK: usize = 3;

/// The least share of the requests that a group must have sent, or of the clients that it must have, unless most of its
/// requests fail.
const SHARE: f64 = 0.05;

/// The most other clients with the same value, as a share of the suspects that have it.
const OTHERS: f64 = 0.1;

/// The most clients that a rule exempts, and the most values that it names.
const MOST_NAMED: usize = 32;

/// The most addresses that a rule names: as many as a condition can have.
const MOST_ADDRESSES: usize = 1000;

/// The number of suspects that each exempted client must add to those that a rule finds.
const WORTH: usize = 3;

/// The least number of requests of a client that is told by its rate alone.
const FEWEST_FAILURES: u32 = 5;

/// The most rules for one path.
const MOST_RULES: usize = 3;

/// The half-lives in seconds under which the clients of a group are compared with others.
const HALF_LIVES: [u64; 4] = [60, 600, 3600, 86_400];

/// A group of clients that attack together, and the rule that limits them.
pub struct Group {
    /// The paths that the rule is for; empty if it is for all.
    pub paths: Vec<Vec<u8>>,
    /// The number of requests for the group's main path, or else of the log.
    pub requests: u64,
    /// The number of these requests that the group sent.
    pub sent: u64,
    /// The number of the group's requests that failed.
    pub failed: u64,
    /// The user agents that most of the group share, if they are few.
    pub agents: Vec<Vec<u8>>,
    /// The networks with at least three clients of the group and few others.
    pub networks: Vec<IpNet>,
    /// The number of the group's clients in these networks.
    pub in_networks: usize,
    /// The property that the rule is about.
    pub mark: Mark,
    /// The rule, and the number of clients and requests that it limits.
    pub limit: JudgedLimit,
    /// The clients that the rule limits, by their numbers.
    pub touched: Vec<u32>,
    /// The clients that the rule would limit as well, and exempts.
    pub exempt: Vec<u32>,
    /// The number of other clients with requests for the path, or in the log.
    pub others: usize,
}

/// The requests among which a group is looked for.
struct Scope<'a> {
    rows: &'a Rows,
    path: Option<u16>,
    /// True if the suspects are those that read at a steady pace; of one path, if they ask for no other.
    reads: bool,
    suspects: &'a Suspects,
    /// The suspects that no rule limits so far.
    left: Clients,
    /// The number of each client's network.
    networks: &'a Networks,
    sweep: &'a Sweep,
}

/// The values of a mark, by their numbers. The number of an agent in a network has the agent's in its upper half.
type Values = HashSet<u64, RandomState>;

/// A limit that parts suspects from others.
struct Parted {
    mark: Mark,
    values: Values,
    limit: JudgedLimit,
    touched: Vec<u32>,
    exempt: Vec<u32>,
}

/// The peak of each client's rate, with the number of requests that count together, by its number, and that of a client
/// with one request.
struct ClientPeaks {
    peaks: Vec<(f64, u32)>,
    one: f64,
}

/// The clients whose requests look like an attack, by the habits of all clients, with the networks of all.
pub struct Suspected {
    networks: Networks,
    suspects: Suspects,
}

impl Rows {
    /// Finds the suspects among requests that are sorted. `clients` are the names of the clients.
    pub fn suspected(&self, clients: &ClientNumbers) -> Suspected {
        let networks = Networks::of(clients);
        let suspects = Suspects::of(self, &networks);
        Suspected { networks, suspects }
    }
}

/// Finds the groups among requests, which must be in the order of their times, which `sweep` has measured and of whose
/// clients some are suspected. `known` are the clients that other rules limit.
///
/// # Errors
/// Returns an error if a computed limit is not valid in a rule.
pub(super) fn groups(
    rows: &Rows,
    Suspected { networks, suspects }: &Suspected,
    sweep: &Sweep,
    known: &Clients,
) -> Result<Vec<Group>, RuleError> {
    let suspected = suspects.of.iter().flatten().count();
    // If nearly everybody fails, the server is at fault, and there is nobody to compare a client with.
    let ordinary = suspects.of.len() - suspected;
    if suspected < FEWEST || ordinary < 2 * FEWEST || ordinary * 10 < suspects.of.len() {
        return Ok(Vec::new());
    }
    let mut found = Vec::new();
    for (path, reads, mut left) in scopes(rows, suspects) {
        left.retain(|client| !known.contains(client));
        let scope = Scope {
            rows,
            path,
            reads,
            suspects,
            left,
            networks,
            sweep,
        };
        found.extend(scope.groups()?);
    }
    found.sort_by_key(|group| usize::MAX - group.touched.len());
    Ok(found)
}

/// Returns the suspects by the path that most of their requests are for; those that fail or read elsewhere are apart.
fn scopes(rows: &Rows, suspects: &Suspects) -> Vec<(Option<u16>, bool, Clients)> {
    let main = suspects.main_paths(&rows.all);
    let mut by_path: Table<(Option<u16>, bool), Clients> = Table::default();
    for (client, suspicion) in (0..).zip(&suspects.of) {
        let Some(suspicion) = suspicion else { continue };
        let reads = *suspicion == Suspicion::Reads;
        let path = main.get(&client).copied();
        by_path.entry((path, reads)).or_default().insert(client);
    }
    // Suspects whose paths have few suspects each are compared with the others together.
    let few = by_path.extract_if(|(path, _), some| path.is_some() && some.len() < FEWEST);
    let rest: Vec<u32> = few
        .flat_map(|((_, reads), some)| some.into_iter().filter(move |_| !reads))
        .collect();
    by_path.entry((None, false)).or_default().extend(rest);
    let mut scopes: Vec<_> = by_path.into_iter().collect();
    scopes.sort_by_key(|(scope, _)| *scope);
    let scopes = scopes
        .into_iter()
        .map(|((path, reads), some)| (path, reads, some));
    scopes.filter(|(.., some)| some.len() >= FEWEST).collect()
}

impl Scope<'_> {
    /// Returns the requests of the scope.
    fn requests(&self) -> impl Iterator<Item = &Row> {
        let asks = |row: &&Row| self.path.is_none_or(|path| row.path == path);
        self.rows.all.iter().filter(asks)
    }

    /// Returns the value of a request that a mark is about; `None` if it has none.
    fn value(&self, mark: Mark, row: &Row) -> Option<u64> {
        let known = |number: u32| (number != u32::MAX).then_some(u64::from(number));
        let short = |number: u16| (number != NONE).then_some(u64::from(number));
        let network = || known(self.networks.of[row.client as usize]);
        match mark {
            Mark::Agent => short(row.agent),
            Mark::Network => network(),
            Mark::AgentInNetwork => Some(short(row.agent)? << 32 | network()?),
            Mark::Path => short(row.path).filter(|_| self.path.is_none()),
            Mark::Address => {
                let is_sure = self.is_sure(row.client);
                network().and(known(row.client)).filter(|_| is_sure)
            }
            Mark::Client => known(row.client),
            Mark::User | Mark::ApiKey => known(row.user),
        }
    }

    /// Returns true if what a client does is no visit, whatever it shares with others.
    fn is_sure(&self, client: u32) -> bool {
        let suspicion = self.suspects.against(client);
        matches!(suspicion, Some(Suspicion::Guesses | Suspicion::Alone))
    }

    /// Returns true if a client is under no suspicion of the kind that is looked for.
    fn is_other(&self, client: u32) -> bool {
        match self.suspects.against(client) {
            Some(Suspicion::Reads) => !self.reads,
            suspicion => suspicion.is_none(),
        }
    }

    /// Returns the marks that may tell a group from others.
    fn marks(&self) -> impl Iterator<Item = Mark> {
        let marks = [
            Mark::Agent,
            Mark::Network,
            Mark::Client,
            self.rows.user_mark(),
            Mark::AgentInNetwork,
            Mark::Path,
            Mark::Address,
        ];
        // Tabs in the background ask at a steady pace, too, and so does a program that many install.
        let any = !self.reads;
        let has_users = !self.rows.users.is_empty();
        let is_there = move |mark: &Mark| has_users || !matches!(mark, Mark::User | Mark::ApiKey);
        let marks = marks.into_iter().filter(is_there);
        marks.filter(move |mark| any || mark.is_named())
    }

    /// Returns the groups that most of the suspects belong to.
    fn groups(mut self) -> Result<Vec<Group>, RuleError> {
        let mut found = Vec::new();
        while found.len() < MOST_RULES && self.left.len() >= FEWEST {
            let mut best: Option<Parted> = None;
            for (mark, parted) in self.parts() {
                let parted = parted?;
                let most = best
                    .as_ref()
                    .map_or(FEWEST - 1, |best| self.newly_limited(best));
                // A mark that comes earlier is preferred unless a later one finds clearly more, since a list of
                // addresses does not last.
                let more = most / if mark == Mark::Address { 4 } else { 20 };
                if let Some(parted) = parted.filter(|next| self.newly_limited(next) > most + more) {
                    best = Some(parted);
                }
            }
            let is_group =
                |best: &Parted| self.newly_limited(best) >= FEWEST && !self.is_usual(best);
            let Some(best) = best.filter(is_group) else {
                break;
            };
            best.touched.iter().for_each(|client| {
                self.left.remove(client);
            });
            let group = self.described(best);
            let clients = group.touched.len() + group.others;
            let are_sure = group.touched.iter().all(|&client| self.is_sure(client));
            // A path that nobody else asks for may be one of an app.
            let is_large = group.others >= FEWEST
                && (group.sent as f64 >= SHARE * group.requests as f64
                    || group.touched.len() as f64 >= SHARE * clients as f64);
            if group.failed * 2 >= group.sent || are_sure || is_large {
                // This rule may limit all that an earlier one limits, and further clients.
                let is_new = |client: &u32| group.touched.binary_search(client).is_err();
                found.retain(|earlier: &Group| earlier.touched.iter().any(is_new));
                found.push(group);
            }
        }
        Ok(found)
    }

    /// Returns the number of suspects that a rule limits and no earlier one.
    fn newly_limited(&self, parted: &Parted) -> usize {
        let touched = parted.touched.iter();
        touched.filter(|client| self.left.contains(*client)).count()
    }

    /// Returns true if many clients outside a group read at a steady pace as well.
    fn is_usual(&self, group: &Parted) -> bool {
        let outside = self.suspects.measured.saturating_sub(group.touched.len());
        self.reads && (self.left.len() - self.newly_limited(group)) * 5 > outside
    }

    /// Returns the values of a mark that suspects have and hardly anybody else.
    fn own_values(&self, mark: Mark) -> Values {
        let mut is_left = vec![false; self.networks.of.len()];
        for &client in &self.left {
            is_left[client as usize] = true;
        }
        let of_suspects = self.requests().filter(|row| is_left[row.client as usize]);
        let with_value = |row: &Row| Some((self.value(mark, row)?, row.client));
        // Most requests of a client have the value of the one before.
        let mut last = vec![None; self.networks.of.len()];
        let is_other =
            |&(value, client): &(u64, u32)| last[client as usize].replace(value) != Some(value);
        let pairs = of_suspects.filter_map(with_value).filter(is_other);
        let pairs: HashSet<(u64, u32), RandomState> = pairs.collect();
        // The number of suspects with each value, and the other clients that have it, too.
        let mut shared: Table<u64, (usize, Clients)> = Table::default();
        for (value, _) in pairs {
            shared.entry(value).or_default().0 += 1;
        }
        let fewest = match mark {
            Mark::Address => 1,
            Mark::Network => FEWEST_IN_NETWORK,
            _ => FEWEST_ALIKE,
        };
        shared.retain(|_, (suspects, _)| *suspects >= fewest);
        for row in self.requests() {
            // Nearly all values that suspects share are soon known to belong to others.
            if shared.is_empty() {
                break;
            }
            let Some(value) = self.value(mark, row).filter(|_| self.is_other(row.client)) else {
                continue;
            };
            if let Some((suspects, others)) = shared.get_mut(&value) {
                others.insert(row.client);
                if others.len() as f64 > OTHERS * *suspects as f64 {
                    shared.remove(&value);
                }
            }
        }
        // Sorted, so that every run names the same values.
        let mut own: Vec<u64> = shared.into_keys().collect();
        own.sort_unstable();
        own.into_iter().take(MOST_ADDRESSES).collect()
    }

    /// Returns the values that a rule names, and the other clients with one of them, which it exempts; `None` if these
    /// are too many.
    fn values_and_exempt(&self, mark: Mark) -> Option<(Values, Clients)> {
        if !mark.is_named() {
            return Some((Values::default(), Clients::default()));
        }
        let mut values = self.own_values(mark);
        let are_few = values.len() <= MOST_NAMED || mark == Mark::Address;
        if values.is_empty() || !are_few {
            return None;
        }
        if mark == Mark::AgentInNetwork {
            values = crossed(&values);
        }
        let mut exempt = self.others(mark, &values);
        if exempt.len() > MOST_NAMED {
            // A client whose requests succeed belongs to the group too if it sends a value that occurs nowhere else.
            exempt = self.others(mark, &self.elsewhere(mark, &values));
        }
        (exempt.len() <= MOST_NAMED).then_some((values, exempt))
    }

    /// Finds the limit by each mark, on all cores.
    fn parts(&self) -> Vec<(Mark, Result<Option<Parted>, RuleError>)> {
        std::thread::scope(|scope| {
            let start = |mark| (mark, scope.spawn(move || self.part(mark)));
            let started: Vec<_> = self.marks().map(start).collect();
            let found = started.into_iter().map(|(mark, thread)| {
                let parted = thread.join();
                (mark, parted.unwrap_or_else(|panic| resume_unwind(panic)))
            });
            found.collect()
        })
    }

    /// Finds the limit by a mark that touches the most suspects.
    fn part(&self, mark: Mark) -> Result<Option<Parted>, RuleError> {
        let Some((values, exempt)) = self.values_and_exempt(mark) else {
            return Ok(None);
        };
        let mut best: Option<Parted> = None;
        // Many honest clients read steadily, or ask for paths that few others do, so that a slow rate shows nothing.
        let half_lives = match mark.is_named() && (self.reads || mark == Mark::Path) {
            true => &HALF_LIVES[..1],
            false => &HALF_LIVES,
        };
        for &seconds in half_lives {
            let half_life = Duration::from_secs(seconds);
            let parted = self.threshold(mark, self.peaks(mark, half_life, &values, &exempt)?);
            let Some((gap, more)) = parted.filter(|(gap, more)| {
                let most = best.as_ref().map_or(0, |best| best.touched.len());
                // A longer half-life is worth its slower forgiveness only if it limits a twentieth more clients.
                let enough = if mark.is_named() { most / 20 } else { 0 };
                gap.clients > most + enough + WORTH * more.len()
            }) else {
                continue;
            };
            let limit = limit_within(gap, half_life)?;
            let mut parted = Parted {
                mark,
                values: values.clone(),
                limit,
                touched: Vec::new(),
                exempt: exempt.iter().copied().chain(more).collect(),
            };
            self.count(&mut parted)?;
            let most = best.as_ref().map_or(0, |best| best.touched.len());
            if !mark.is_named() || parted.touched.len() > most {
                best = Some(parted);
            }
        }
        Ok(best)
    }

    /// Returns the clients beside the suspects that send one of these values.
    fn others(&self, mark: Mark, values: &Values) -> Clients {
        let has_one = |row: &&Row| {
            self.value(mark, row)
                .is_some_and(|value| values.contains(&value))
        };
        let clients = self.requests().filter(has_one).map(|row| row.client);
        clients.filter(|&client| self.is_other(client)).collect()
    }

    /// Returns those of these values that requests for other paths have.
    fn elsewhere(&self, mark: Mark, values: &Values) -> Values {
        let other = self
            .rows
            .all
            .iter()
            .filter(|row| Some(row.path) != self.path);
        let found: Values = other.filter_map(|row| self.value(mark, row)).collect();
        match self.path {
            Some(_) => &found & values,
            None => values.clone(),
        }
    }

    /// Returns the peak of each client's rate, or of what it shares with others, and the greatest number of requests
    /// that count together with one of its own. If `values` are named, only requests with one of them count, without
    /// those of the exempted clients.
    fn peaks(
        &self,
        mark: Mark,
        half_life: Duration,
        values: &Values,
        exempt: &Clients,
    ) -> Result<ClientPeaks, RuleError> {
        let mut meter = RateMeter::new(half_life)?;
        let mut peaks: Vec<(f64, u32)> = vec![(0.0, 0); self.networks.of.len()];
        let measured = self.sweep.under(half_life);
        if let Some(known) = measured.filter(|_| mark == Mark::Client && self.path.is_none()) {
            self.requests()
                .for_each(|row| peaks[row.client as usize].1 += 1);
            for (client, (peak, _)) in (0..).zip(&mut peaks) {
                *peak = known.peak(client);
            }
            return Ok(ClientPeaks {
                peaks,
                one: known.of_one_request,
            });
        }
        // By the numbers of what is counted together, which are small.
        let mut counts: Vec<u32> = Vec::new();
        for row in self.requests().filter(|row| !exempt.contains(&row.client)) {
            let Some(value) = self.counted_as(mark, row, values) else {
                continue;
            };
            let rate = meter.add(logged(row, value));
            let place = value as usize;
            if place >= counts.len() {
                counts.resize(place + 1, 0);
            }
            counts[place] += 1;
            let (peak, most) = &mut peaks[row.client as usize];
            *peak = peak.max(rate);
            *most = counts[place].max(*most);
        }
        Ok(ClientPeaks {
            peaks,
            one: meter.of_one_request(),
        })
    }

    /// Returns the number under which a request counts; `None` if it does not count. All requests with one of the named
    /// values count together.
    fn counted_as(&self, mark: Mark, row: &Row, named: &Values) -> Option<u32> {
        let value = self.value(mark, row)?;
        match mark.is_named() {
            true => named.contains(&value).then_some(0),
            false => Some(value as u32),
        }
    }

    /// Returns the gap between the peaks of suspects and those of others, with the others above it, which the rule
    /// must exempt.
    fn threshold(
        &self,
        mark: Mark,
        ClientPeaks { peaks, one }: ClientPeaks,
    ) -> Option<(Gap, Vec<u32>)> {
        let mut suspects = Vec::new();
        let mut others = Vec::new();
        let seen = (0..).zip(peaks).filter(|(_, (_, count))| *count > 0);
        for (client, (peak, count)) in seen {
            // By its rate alone, a client or a user that fails a few times is no attacker: visitors mistype passwords.
            let fewest = match self.suspects.against(client) {
                Some(Suspicion::Alone) => 1,
                Some(Suspicion::Mistypes) => FEWEST_FAILURES + 4,
                _ => FEWEST_FAILURES,
            };
            let fails_seldom = !mark.is_named() && count < fewest;
            if self.left.contains(&client) && !fails_seldom {
                suspects.push(peak);
            } else if self.is_other(client) || fails_seldom {
                others.push((peak, client));
            }
        }
        suspects.sort_unstable_by(f64::total_cmp);
        let greatest_first =
            |a: &(f64, u32), b: &(f64, u32)| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1));
        if others.len() > MOST_NAMED {
            others.select_nth_unstable_by(MOST_NAMED, greatest_first);
            others.truncate(MOST_NAMED + 1);
        }
        others.sort_unstable_by(greatest_first);
        if mark.is_named() {
            // All of them count together, so that the rate of a single request matters to none.
            let above = suspects.get(suspects.len() / 10)?.max(one);
            let gap = Gap {
                clients: suspects.len(),
                above,
                below: above / 16.0,
            };
            return Some((gap, Vec::new()));
        }
        let mut best: Option<(Gap, usize)> = None;
        for exempt in 0..=others.len().min(MOST_NAMED) {
            let below = others.get(exempt).map_or(0.0, |other| other.0).max(one);
            let first = suspects.partition_point(|&peak| peak <= below * 1.5);
            // Among the suspects are visitors that mistyped their passwords: the limit keeps away from the least.
            let clients = (suspects.len() - first) * 9 / 10;
            let Some(&above) = suspects.get(suspects.len() - clients) else {
                continue;
            };
            let needed = best.map_or(0, |(gap, before)| gap.clients + WORTH * (exempt - before));
            if clients > needed {
                best = Some((
                    Gap {
                        clients,
                        above,
                        below,
                    },
                    exempt,
                ));
            }
        }
        let (gap, exempt) = best?;
        let exempt = others[..exempt].iter().map(|other| other.1).collect();
        Some((gap, exempt))
    }

    /// Counts the clients and requests that a rule limits, as a server would.
    fn count(&self, parted: &mut Parted) -> Result<(), RuleError> {
        let exempt: Clients = parted.exempt.iter().copied().collect();
        let mut meter = RateMeter::new(parted.limit.half_life)?;
        let mut touched = Clients::default();
        for row in self.requests().filter(|row| !exempt.contains(&row.client)) {
            let Some(value) = self.counted_as(parted.mark, row, &parted.values) else {
                continue;
            };
            if meter.add(logged(row, value)) > parted.limit.limit {
                parted.limit.requests += 1;
                touched.insert(row.client);
            }
        }
        parted.limit.clients = touched.len();
        parted.touched = touched.into_iter().collect();
        parted.touched.sort_unstable();
        Ok(())
    }

    /// Describes the clients that a rule limits.
    fn described(&self, parted: Parted) -> Group {
        let touched: Clients = parted.touched.iter().copied().collect();
        let (mut requests, mut sent, mut failed) = (0, 0, 0);
        let mut others = Clients::default();
        let mut agents: Table<u16, u64> = Table::default();
        for row in self.requests() {
            requests += 1;
            if touched.contains(&row.client) {
                sent += 1;
                failed += u64::from(is_failure(row.status) || is_missing(row.status));
                *agents.entry(row.agent).or_default() += 1;
            } else {
                others.insert(row.client);
            }
        }
        let agents = self.shared_agents(&parted, agents, sent);
        let (networks, in_networks) = self.shared_networks(&parted, touched);
        let mut exempt = parted.exempt;
        exempt.sort_unstable();
        let paths = match parted.mark {
            Mark::Path => parted.values.iter().map(|&path| path as u16).collect(),
            _ => Vec::from_iter(self.path),
        };
        Group {
            paths: named(&paths, &self.rows.paths),
            requests,
            sent,
            failed,
            agents,
            networks,
            in_networks,
            mark: parted.mark,
            limit: parted.limit,
            touched: parted.touched,
            exempt,
            others: others.len(),
        }
    }

    /// Returns the user agents that the rule names, or that most of the requests of the group share.
    fn shared_agents(&self, parted: &Parted, agents: Table<u16, u64>, sent: u64) -> Vec<Vec<u8>> {
        let mut common: Vec<(u16, u64)> = agents.into_iter().collect();
        common.retain(|&(agent, count)| agent != NONE && count * 10 >= sent);
        let covered: u64 = common.iter().map(|(_, count)| count).sum();
        let are_few = common.len() <= 3 && covered * 10 >= sent * 9;
        let values = parted.values.iter();
        let chosen: Vec<u16> = match parted.mark {
            Mark::Agent => values.map(|&value| value as u16).collect(),
            Mark::AgentInNetwork => values.map(|value| (value >> 32) as u16).collect(),
            _ if are_few => common.iter().map(|&(agent, _)| agent).collect(),
            _ => Vec::new(),
        };
        named(&chosen, &self.rows.agents)
    }

    /// Returns the networks with several clients of the group and few others, and the number of the group's clients in
    /// them.
    fn shared_networks(&self, parted: &Parted, touched: Clients) -> (Vec<IpNet>, usize) {
        let own: Clients = match parted.mark {
            Mark::Network | Mark::AgentInNetwork => {
                parted.values.iter().map(|&value| value as u32).collect()
            }
            _ => {
                let scope = Scope {
                    left: touched.clone(),
                    ..*self
                };
                let own = scope.own_values(Mark::Network).into_iter();
                own.map(|value| value as u32).collect()
            }
        };
        let is_inside = |client: &&u32| own.contains(&self.networks.of[**client as usize]);
        let inside = touched.iter().filter(is_inside).count();
        let all = &self.networks.all;
        let mut networks: Vec<IpNet> = own.iter().map(|&number| all[number as usize]).collect();
        networks.sort_unstable();
        (networks, inside)
    }
}

/// Returns the pairs of each of these agents with each of these networks. A rule has a list of agents and a list of
/// networks, so it limits every such pair.
fn crossed(pairs: &Values) -> Values {
    let with = |one: &u64| {
        let agent = one >> 32 << 32;
        pairs
            .iter()
            .map(move |other| agent | other & u64::from(u32::MAX))
    };
    pairs.iter().flat_map(with).collect()
}

/// Returns the values with these numbers in the order of their bytes, each once.
fn named(numbers: &[u16], values: &ValueNumbers) -> Vec<Vec<u8>> {
    let of = |&number: &u16| values.name(number).to_vec();
    let found: BTreeSet<Vec<u8>> = numbers.iter().map(of).collect();
    found.into_iter().collect()
}
