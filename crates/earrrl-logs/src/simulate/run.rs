//! The simulation of several clients under one rule.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use earrrl::algorithm::State;
use earrrl::internal::Random;
use earrrl::{Cost, Decision, Mode, Nanos, Rule, RuleError};

use super::client::{Client, Pattern, Reaction};

/// The greatest number of requests in a simulation.
pub const MAX_ATTEMPTS: u64 = 20_000_000;

/// One request of a simulated client.
///
/// ```
/// use earrrl_logs::simulate::{Attempt, Client, run};
/// use earrrl::{Nanos, Rule};
/// use std::time::Duration;
///
/// let rule: Rule = "gcra 1/s burst=1".parse()?;
/// let clients: [Client; 1] = ["alice steady 2/s".parse()?];
/// let mut denied = Vec::new();
/// let note = |attempt: &Attempt<'_>| {
///     if !attempt.decision.allowed {
///         denied.push(attempt.time);
///     }
/// };
/// run(&rule, &clients, 1, Duration::from_secs(2), note)?;
/// assert_eq!(denied, [Nanos::new(500_000_000), Nanos::new(1_500_000_000)]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Attempt<'a> {
    /// The time of the request since the start of the simulation.
    pub time: Nanos,
    /// The index of the request's client. Clients with the same name have the index of the first of
    /// them.
    pub client: usize,
    /// The number of the worker that sends the request, counted over the workers of all clients.
    pub worker: usize,
    /// The cost of the request.
    pub cost: Cost,
    /// The decision on the request.
    pub decision: &'a Decision,
    /// The client's state after the request.
    pub state: Option<&'a State>,
}

/// Simulates the requests that `clients` send before `duration`, and decides each under `rule`.
/// Calls `each` for every request, in the order of their times, and at equal times in the order of
/// the clients and their workers. Clients with the same name share one state under the rule, so that
/// a client can change its pattern; so do the workers of a client.
///
/// # Errors
/// Returns an error if there are more than [`MAX_ATTEMPTS`] requests.
pub fn run(
    rule: &Rule,
    clients: &[Client],
    seed: u64,
    duration: Duration,
    mut each: impl FnMut(&Attempt<'_>),
) -> Result<(), RuleError> {
    let end = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    let workers = clients
        .iter()
        .flat_map(|client| (0..client.workers).map(move |worker| (client, worker)));
    let schedule =
        |(place, (client, worker))| Schedule::new(client, worker, seed.wrapping_add(place));
    let mut schedules: Vec<_> = (0u64..).zip(workers).map(schedule).collect();
    let first_named = |client: &Client| clients.iter().position(|c| c.name == client.name);
    let whose: Vec<usize> = schedules
        .iter()
        .filter_map(|schedule| first_named(schedule.client))
        .collect();
    let mut states: Vec<Option<State>> = clients.iter().map(|_| None).collect();
    let first = schedules
        .iter_mut()
        .enumerate()
        .filter_map(|(worker, s)| Some(Reverse((s.after(None)?, worker))));
    let mut due: BinaryHeap<_> = first.collect();
    let mut attempts = 0;
    while let Some(Reverse((time, worker))) = due.pop() {
        if time >= end {
            break;
        }
        attempts += 1;
        if attempts > MAX_ATTEMPTS {
            return Err(RuleError::new(format!(
                "more than {MAX_ATTEMPTS} requests to simulate"
            )));
        }
        let now = Nanos::new(time);
        let cost = schedules[worker].client.cost;
        let place = whose[worker];
        let (state, decision) = rule
            .limit()
            .decide(states[place].take(), now, cost, Mode::Check);
        each(&Attempt {
            time: now,
            client: place,
            worker,
            cost,
            decision: &decision,
            state: state.as_ref(),
        });
        states[place] = state;
        let wish = next(&mut schedules[worker], time, &decision);
        due.extend(wish.map(|at| Reverse((at, worker))));
    }
    Ok(())
}

/// Returns the next instant at which a worker sends, after the decision on its request at `now`.
fn next(schedule: &mut Schedule<'_>, now: u64, decision: &Decision) -> Option<u64> {
    let client = schedule.client;
    let wait = match client.reaction {
        Reaction::Ignore => return schedule.after(None),
        _ if decision.allowed => return schedule.after(Some(now)),
        Reaction::Retry(wait) => wait,
        Reaction::Obey => decision.retry_after.duration()?,
    };
    let at = Duration::from_nanos(now).checked_add(wait)?;
    before_end(client, at)
}

/// Returns a time in nanoseconds; `None` if the client no longer sends then.
fn before_end(client: &Client, at: Duration) -> Option<u64> {
    let ended = client.until.is_some_and(|until| at >= until);
    u64::try_from(at.as_nanos()).ok().filter(|_| !ended)
}

/// The instants at which one worker of a client wants to send, in order, in nanoseconds since the
/// start of the simulation.
struct Schedule<'a> {
    client: &'a Client,
    /// The number of this worker among those of its client.
    worker: u32,
    random: Random,
    sent: u64,
    /// The last instant of a random client. The instants of other clients follow from their
    /// sequence numbers.
    last: f64,
}

impl<'a> Schedule<'a> {
    /// Returns the schedule of a worker. Only random clients use `seed`.
    fn new(client: &'a Client, worker: u32, seed: u64) -> Self {
        Self {
            client,
            worker,
            random: Random::new(seed),
            sent: 0,
            last: 0.0,
        }
    }

    /// Returns the client's next instant; if `now` is given, the next one that is not before `now`.
    fn after(&mut self, now: Option<u64>) -> Option<u64> {
        loop {
            let at = self.next()?;
            if now.is_none_or(|now| at >= now) {
                return Some(at);
            }
        }
    }

    fn next(&mut self) -> Option<u64> {
        let number = u128::from(self.sent);
        self.sent += 1;
        // The starts of the workers are spread over the first gap, or over the time between two bursts.
        let (worker, workers) = (u128::from(self.worker), u128::from(self.client.workers));
        let offset = match self.client.pattern {
            Pattern::Steady(rate) => {
                // Computed from the number of requests, so that a rate of 5/3s has gaps of 0.6 s
                // without accumulating an error.
                let (amount, per) = rate.parts();
                let of_all = number * workers + worker;
                of_all.checked_mul(per.as_nanos() * 1_000_000_000)?
                    / (amount.billionths() * workers)
            }
            Pattern::Random(rate) => {
                self.last -= (1.0 - self.random.unit()).ln() / rate.per_second_f64() * 1e9;
                self.last as u128
            }
            Pattern::Bursty { size, every, gap } => {
                let burst = number / u128::from(size);
                let place = number % u128::from(size);
                (burst * workers + worker) * every.as_nanos() / workers + place * gap.as_nanos()
            }
        };
        let at = Duration::from_nanos(u64::try_from(offset).ok()?).checked_add(self.client.from)?;
        before_end(self.client, at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the times in seconds at which a client sends, each with true if the request was
    /// allowed.
    fn attempts(rule: &str, client: &str, seconds: u64) -> Vec<(f64, bool)> {
        let (rule, client): (Rule, Client) = (rule.parse().unwrap(), client.parse().unwrap());
        let mut found = Vec::new();
        run(
            &rule,
            &[client],
            7,
            Duration::from_secs(seconds),
            |attempt| {
                found.push((attempt.time.get() as f64 / 1e9, attempt.decision.allowed));
            },
        )
        .unwrap();
        found
    }

    #[test]
    fn patterns() {
        let times = |client| {
            attempts("fixed-window 1000/1h", client, 10)
                .into_iter()
                .map(|a| a.0)
        };
        assert!(times("a steady 5/3s from=7s").eq([7.0, 7.6, 8.2, 8.8, 9.4]));
        assert!(times("a steady 1/s until=3s").eq([0.0, 1.0, 2.0]));
        assert!(times("a bursty 2 every=4s gap=500ms").eq([0.0, 0.5, 4.0, 4.5, 8.0, 8.5]));
        assert!(times("a steady 1/4s workers=2").eq([0.0, 2.0, 4.0, 6.0, 8.0]));
        assert!(times("a bursty 2 every=8s workers=2").eq([0.0, 0.0, 4.0, 4.0, 8.0, 8.0]));
        let random: Vec<f64> = times("a random 40/s").collect();
        assert!((340..460).contains(&random.len()), "{}", random.len());
        assert!(random.is_sorted());
        assert!(times("a random 40/s").eq(random));
    }

    #[test]
    fn reactions() {
        let rule = "fixed-window 1/4s";
        let ignoring = [
            (0.0, true),
            (1.0, false),
            (2.0, false),
            (3.0, false),
            (4.0, true),
        ];
        assert_eq!(attempts(rule, "a steady 1/s", 5), ignoring);
        let retrying = [
            (0.0, true),
            (1.0, false),
            (2.5, false),
            (4.0, true),
            (4.0, false),
            (5.5, false),
        ];
        assert_eq!(attempts(rule, "a steady 1/s retry=1500ms", 6), retrying);
        let obeying = [
            (0.0, true),
            (1.0, false),
            (4.0, true),
            (4.0, false),
            (8.0, true),
            (8.0, false),
        ];
        assert_eq!(attempts(rule, "a steady 1/s obey", 9), obeying);
        assert_eq!(
            attempts(rule, "a steady 1/s cost=2 obey", 9),
            [(0.0, false)]
        );
    }

    #[test]
    fn clients_of_one_name_are_one_to_the_rule() {
        let rule = "fixed-window 2/1m".parse().unwrap();
        let clients = [
            "a steady 1/s until=2s",
            "b steady 1/s until=2s",
            "a steady 1/s from=2s",
        ]
        .map(|client| client.parse().unwrap());
        let mut denied = Vec::new();
        run(&rule, &clients, 1, Duration::from_secs(4), |attempt| {
            denied.extend((!attempt.decision.allowed).then_some(attempt.client));
        })
        .unwrap();
        assert_eq!(denied, [0, 0]);
    }

    #[test]
    fn workers_share_the_key_and_wait_each_for_itself() {
        let rule = "fixed-window 1/8s";
        let shared = [(0.0, true), (4.0, false), (8.0, true), (8.0, false)];
        assert_eq!(attempts(rule, "a steady 1/8s obey workers=2", 9), shared);
    }

    #[test]
    fn endless_simulations_are_refused() {
        let rule = "gcra 1/s burst=1".parse().unwrap();
        let client = "a steady 1e9/s".parse().unwrap();
        assert!(run(&rule, &[client], 1, Duration::MAX, |_| ()).is_err());
    }
}
