//! Floods: clients that come for the first time, into limiters with room and into full ones, beside caches of a fixed
//! size that keep the same state.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use earrrl::{Limiter, SystemClock};
use foldhash::fast::RandomState;
use governor::Quota;

use crate::Options;
use crate::contender::{Contender, Mode, Runner};
use crate::floors::Floor;
use crate::ours::Ours;
use crate::peers::Keyed;
use crate::report::Report;
use crate::ticking::TickingClock;

/// The clients that come, and those that are in the table already.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Flood {
    /// New clients, as many as there is room for.
    Fresh,
    /// Clients that ask once each. All clients that came before are idle by then.
    Idle,
    /// The same, but all clients that came before still count.
    Active,
    /// Three of four requests as in `Active`, the fourth by one of a thousand clients that stay.
    Mixed,
}

impl Flood {
    const ALL: [(Self, &'static str); 4] = [
        (Self::Fresh, "new clients"),
        (Self::Idle, "full of idle clients"),
        (Self::Active, "full of active clients"),
        (Self::Mixed, "attackers and honest clients"),
    ];

    /// The requests a second that each client has. With a billion, it is idle a nanosecond later.
    fn rate(self) -> u32 {
        match self {
            Self::Fresh | Self::Idle => 1_000_000_000,
            Self::Active | Self::Mixed => 1,
        }
    }

    /// The next keys: all of them new, but for the clients who stay.
    fn keys(self, next: &mut u64, count: usize) -> Vec<u64> {
        const STAYING: u64 = 1_000;
        let mut key = |nth: u64| {
            *next += 1;
            match self {
                Self::Mixed if nth % 4 == 0 => u64::MAX - *next % STAYING,
                _ => *next,
            }
        };
        (0..count as u64).map(&mut key).collect()
    }
}

type Make = (&'static str, fn(Flood, usize) -> Box<dyn Runner<u64>>);

const CONTENDERS: [Make; 8] = [
    ("earrrl gcra", |flood, room| {
        let limiter = Limiter::builder(rule(flood)).capacity(room).build();
        Box::new(Ours::<u64, SystemClock>::of(limiter, room))
    }),
    ("earrrl gcra, ticking clock", |flood, room| {
        let clock = TickingClock::new(Duration::from_millis(1)).expect("a thread");
        let limiter = Limiter::builder(rule(flood)).capacity(room).clock(clock);
        Box::new(Ours::<u64, _>::of(limiter.build(), room))
    }),
    ("governor, foldhash", |flood, _| {
        Box::new(Keyed::foldhash(quota(flood)))
    }),
    ("governor, foldhash, ticking clock", |flood, _| {
        Box::new(Keyed::tuned(quota(flood)))
    }),
    ("quick_cache", |_, room| {
        Box::new(QuickCache {
            cache: quick_cache::sync::Cache::with(
                room,
                room as u64,
                quick_cache::UnitWeighter,
                RandomState::default(),
                quick_cache::sync::DefaultLifecycle::default(),
            ),
            clock: quanta::Clock::new(),
        })
    }),
    ("moka", |_, room| {
        let cache = moka::sync::Cache::builder().max_capacity(room as u64);
        Box::new(Moka {
            cache: cache.build_with_hasher(RandomState::default()),
            clock: quanta::Clock::new(),
        })
    }),
    ("scc::HashCache", |_, room| {
        Box::new(SccCache {
            cache: scc::HashCache::with_capacity_and_hasher(room, room, RandomState::default()),
            clock: quanta::Clock::new(),
        })
    }),
    ("floor: compare-and-swap", |_, room| {
        Box::new(Floor::new(room, false))
    }),
];

fn rule(flood: Flood) -> earrrl::Rule {
    let rate = flood.rate();
    let text = format!("gcra {rate}/s burst={}", rate.max(10));
    text.parse().expect("a valid rule")
}

fn quota(flood: Flood) -> Quota {
    let rate = flood.rate();
    let burst = NonZeroU32::new(rate.max(10)).expect("above 0");
    Quota::per_second(NonZeroU32::new(rate).expect("above 0")).allow_burst(burst)
}

/// Moves a client's theoretical arrival time ahead by one request.
fn charge(time: &AtomicU64, now: u64) -> bool {
    time.fetch_update(Relaxed, Relaxed, |time| Some(time.max(now) + 1))
        .is_ok()
}

struct QuickCache {
    cache: quick_cache::sync::Cache<u64, Arc<AtomicU64>, quick_cache::UnitWeighter, RandomState>,
    clock: quanta::Clock,
}

impl Contender<u64> for QuickCache {
    fn decide(&self, key: &u64) -> bool {
        let now = self.clock.raw();
        if let Some(time) = self.cache.get(key) {
            return charge(&time, now);
        }
        let new = || Ok::<_, ()>(Arc::new(AtomicU64::new(now + 1)));
        self.cache.get_or_insert_with(key, new).is_ok()
    }
}

struct Moka {
    cache: moka::sync::Cache<u64, Arc<AtomicU64>, RandomState>,
    clock: quanta::Clock,
}

impl Contender<u64> for Moka {
    fn decide(&self, key: &u64) -> bool {
        let now = self.clock.raw();
        if let Some(time) = self.cache.get(key) {
            return charge(&time, now);
        }
        self.cache.insert(*key, Arc::new(AtomicU64::new(now + 1)));
        true
    }
}

struct SccCache {
    cache: scc::HashCache<u64, u64, RandomState>,
    clock: quanta::Clock,
}

impl Contender<u64> for SccCache {
    fn decide(&self, key: &u64) -> bool {
        let now = self.clock.raw();
        match self.cache.entry_sync(*key) {
            scc::hash_cache::Entry::Occupied(mut entry) => {
                let time = (*entry.get()).max(now) + 1;
                *entry.get_mut() = time;
            }
            scc::hash_cache::Entry::Vacant(entry) => drop(entry.put_entry(now + 1)),
        }
        true
    }
}

/// Measures all contenders in turns, and prints the medians.
pub fn print(options: &Options) {
    let mut report = Report::compared_with("governor, foldhash");
    for &clients in options.sizes.iter().filter(|clients| **clients > 1) {
        for (flood, kind) in Flood::ALL {
            if flood == Flood::Fresh {
                fresh(clients, kind, options, &mut report);
            } else {
                full(flood, clients, kind, options, &mut report);
            }
        }
    }
    report.print();
}

fn wanted(options: &Options) -> impl Iterator<Item = Make> {
    let names = CONTENDERS.map(|(name, _)| name);
    CONTENDERS
        .into_iter()
        .filter(move |(name, _)| options.wants(name, &names))
}

/// Measures the filling of contenders that were just built, with room for a quarter more.
fn fresh(clients: usize, kind: &str, options: &Options, report: &mut Report) {
    // A small one is filled in less than a millisecond.
    let repeated = (200_000 / clients).max(1);
    let mut next = 0;
    let keys = Flood::Fresh.keys(&mut next, clients);
    for _ in 0..options.rounds {
        for (way, mode) in [("1 thread", Mode::Single), ("batches of 16", Mode::Batches)] {
            for (name, make) in wanted(options) {
                let fill = |_| make(Flood::Fresh, clients * 5 / 4).round(&[&keys], mode);
                let nanos = (0..repeated).map(fill).sum::<f64>() / repeated as f64;
                report.time(name, kind, clients, way, nanos);
            }
        }
    }
}

/// Measures new clients of contenders that have seen twice as many as they have room for. Those without a bound are
/// asked to forget idle clients in every fourth round, which counts.
fn full(flood: Flood, clients: usize, kind: &str, options: &Options, report: &mut Report) {
    let mut next = 0;
    let contenders: Vec<_> = wanted(options)
        .map(|(name, make)| (name, make(flood, clients)))
        .collect();
    let before = flood.keys(&mut next, 2 * clients);
    for (_, contender) in &contenders {
        before.iter().for_each(|key| contender.visit(key));
        contender.tidy();
    }
    let count = (clients / 4).max(10_000);
    let mut swept = vec![0.0; contenders.len()];
    for round in 0..4 * options.rounds {
        if round % 4 == 0 {
            for ((_, contender), swept) in contenders.iter().zip(&mut swept) {
                let start = std::time::Instant::now();
                contender.tidy();
                *swept = start.elapsed().as_nanos() as f64 / (16 * count) as f64;
            }
        }
        for (way, threads, mode) in [
            ("1 thread", 1, Mode::Single),
            ("2 threads", 2, Mode::Single),
            ("batches of 16", 1, Mode::Batches),
        ] {
            let keys: Vec<_> = (0..threads).map(|_| flood.keys(&mut next, count)).collect();
            let keys: Vec<&[u64]> = keys.iter().map(Vec::as_slice).collect();
            for ((name, contender), swept) in contenders.iter().zip(&swept) {
                let nanos = swept + contender.round(&keys, mode);
                report.time(name, kind, clients, way, nanos);
            }
        }
    }
}
