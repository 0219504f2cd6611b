//! Fleets of servers with near or exact rules, beside the same requests judged in one place. The servers are real
//! engines that share a real Redis. Requests and rounds of exchanges are given their times, so an hour of a thousand
//! servers takes as long as its calls of scripts do.

mod fleet;
pub mod scale;
pub mod scenes;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use earrrl::random::Random;
use earrrl::{Cost, Mode, Nanos, Rule, State};
use earrrl_redis::Consistency;

use crate::support::Server;
use fleet::Fleet;

/// The time at which simulations begin.
const START: Nanos = Nanos::from_secs(1_800_000_000);

/// Some clients with the same behaviour.
#[derive(Clone, Copy, Debug)]
struct Load {
    clients: usize,
    /// The requests of a client in a second.
    rate: f64,
    /// The number of requests that come at once.
    burst: usize,
    /// The part of a client's requests that one server gets; the others share the rest equally. `None` if a client's
    /// requests go to all servers at random.
    home: Option<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Time {
    /// Given with every request and every round.
    Simulated,
    /// The machine's, with the engines' own rounds.
    Real,
    /// The machine's, from the start of the servers, which do not know each other yet.
    Started,
}

#[derive(Clone, Copy, Debug)]
struct Scene<'a> {
    rule: &'a str,
    consistency: Consistency,
    servers: usize,
    sync: Duration,
    loads: &'a [Load],
    lasts: Duration,
    /// The seconds in which the first server does not reach Redis.
    partitioned: Option<(u64, u64)>,
    time: Time,
}

/// What a scene's clients were admitted, in one place and here, and what it took.
#[derive(Debug, Default)]
struct Outcome {
    requests: u64,
    admitted: u64,
    one_place: u64,
    /// The calls of scripts, the requests that waited for one, and the commands that scripts have called.
    calls: u64,
    trips: u64,
    commands: u64,
    /// For each client that would be banned in one place, the seconds until its last admitted request after that.
    stale: Vec<f64>,
    /// The bytes of Redis a client, of its records and of the servers' claims.
    record: f64,
    claims: f64,
    /// The microseconds of Redis for a call, without those of its sockets.
    micros: f64,
}

impl Outcome {
    fn share(&self) -> f64 {
        self.admitted as f64 / self.one_place.max(1) as f64
    }

    fn each(&self, count: u64) -> f64 {
        count as f64 / self.requests.max(1) as f64
    }
}

/// The requests of one client so far.
struct Simulated {
    load: Load,
    home: usize,
    state: Option<State>,
    /// The time of the first denial in one place since the last admission there, and of the last admission here.
    banned: Option<Nanos>,
    last: Option<Nanos>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Round(usize),
    Request(usize),
    Cut(bool),
}

struct Simulation<'a> {
    scene: Scene<'a>,
    rule: Rule,
    fleet: Fleet<'a>,
    clients: Vec<Simulated>,
    events: BinaryHeap<Reverse<(Nanos, Event)>>,
    random: Random,
    outcome: Outcome,
}

/// Runs a scene in a database of its own.
async fn run<'a>(server: &'a Server, scene: Scene<'a>, seed: u64) -> Outcome {
    for words in [&["FLUSHALL"][..], &["CONFIG", "RESETSTAT"]] {
        server
            .command::<String>(words)
            .expect("Redis can be emptied");
    }
    let fleet = Fleet::start(server, &scene).await;
    let mut random = Random::new(seed);
    let loads = scene
        .loads
        .iter()
        .flat_map(|load| std::iter::repeat_n(*load, load.clients));
    let client = |load| Simulated {
        load,
        home: random.below(scene.servers as u64) as usize,
        state: None,
        banned: None,
        last: None,
    };
    let clients: Vec<Simulated> = loads.map(client).collect();
    let rule = scene.rule.parse().expect("a rule");
    let events = BinaryHeap::new();
    let outcome = Outcome::default();
    let mut simulation = Simulation {
        scene,
        rule,
        fleet,
        clients,
        events,
        random,
        outcome,
    };
    simulation.schedule();
    simulation.run().await;
    simulation.finish()
}

impl Simulation<'_> {
    /// Schedules every client's first request, every server's first round, and the partition.
    fn schedule(&mut self) {
        for client in 0..self.clients.len() {
            let load = self.clients[client].load;
            let first = self.random.unit() * load.burst as f64 / load.rate;
            self.at(START, first, Event::Request(client));
        }
        if self.scene.time == Time::Simulated {
            for server in 0..self.scene.servers {
                let first = self.random.unit() * self.scene.sync.as_secs_f64();
                self.at(START, first, Event::Round(server));
            }
        }
        if let Some((from, to)) = self.scene.partitioned {
            self.at(START, from as f64, Event::Cut(true));
            self.at(START, to as f64, Event::Cut(false));
        }
    }

    fn at(&mut self, from: Nanos, seconds: f64, event: Event) {
        let micros = Duration::from_micros((seconds * 1e6) as u64);
        self.events.push(Reverse((from + micros, event)));
    }

    async fn run(&mut self) {
        let begun = tokio::time::Instant::now();
        let end = START + self.scene.lasts;
        let before = self.fleet.used();
        while let Some(Reverse((now, event))) = self.events.pop() {
            if now > end {
                break;
            }
            if self.scene.time != Time::Simulated {
                tokio::time::sleep_until(begun + now.since(START)).await;
            }
            match event {
                Event::Round(server) => {
                    self.fleet.exchange_due(server, now).await;
                    self.at(now, self.scene.sync.as_secs_f64(), event);
                }
                Event::Request(client) => self.request(client, now).await,
                Event::Cut(cut) => self.fleet.cut(cut).await,
            }
        }
        let used = self.fleet.used();
        self.outcome.calls = used.calls - before.calls;
        self.outcome.trips = used.trips - before.trips;
        self.outcome.commands = used.commands - before.commands;
        self.outcome.micros = used.micros;
    }

    async fn request(&mut self, client: usize, now: Nanos) {
        let Simulated { load, home, .. } = self.clients[client];
        for _ in 0..load.burst {
            let server = self.server(load, home);
            let given = (self.scene.time == Time::Simulated).then_some(now);
            let allowed = self.fleet.decide(server, client, given).await;
            self.note(client, now, allowed);
        }
        let pause = (0.5 + self.random.unit()) * load.burst as f64 / load.rate;
        self.at(now, pause, Event::Request(client));
    }

    fn server(&mut self, load: Load, home: usize) -> usize {
        let servers = self.scene.servers as u64;
        match load.home {
            Some(part) if servers == 1 || self.random.unit() < part => home,
            Some(_) => (home + 1 + self.random.below(servers - 1) as usize) % servers as usize,
            None => self.random.below(servers) as usize,
        }
    }

    fn note(&mut self, client: usize, now: Nanos, allowed: bool) {
        let known = &mut self.clients[client];
        let one_place = self
            .rule
            .limit()
            .admit(&mut known.state, now, Cost::ONE, Mode::Check);
        match one_place {
            true => known.banned = None,
            false => drop(known.banned.get_or_insert(now)),
        }
        if allowed {
            known.last = Some(now);
        }
        self.outcome.requests += 1;
        self.outcome.admitted += u64::from(allowed);
        self.outcome.one_place += u64::from(one_place);
    }

    fn finish(mut self) -> Outcome {
        let banned = self
            .clients
            .iter()
            .filter_map(|client| Some((client.banned?, client.last?)));
        self.outcome.stale = banned
            .map(|(from, last)| last.since(from).as_secs_f64())
            .collect();
        self.outcome.stale.sort_by(f64::total_cmp);
        let clients = self.clients.len() as f64;
        let (records, claims) = self.fleet.bytes();
        (self.outcome.record, self.outcome.claims) = (records / clients, claims / clients);
        self.outcome
    }
}
