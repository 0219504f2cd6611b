//! Ours and other rate limiters, side by side, in one run: medians and ratios as Markdown.
//!
//! `cargo run --release --manifest-path bench/Cargo.toml [-- --rounds N] [--decisions N] [--sizes 1,10000,…]
//! [--only TEXT,…]`
//!
//! A round is a million decisions of every contender in every way, unless `--decisions` says
//! otherwise. `--only` measures the kinds of keys (`u64`, `strings`, `Zipf`, `denied`), the contenders that it
//! names, by a part of their names, `several` rules on one request, and `floods` of new clients; without it, all is
//! measured.

mod contender;
mod floods;
mod floors;
mod ours;
mod peers;
mod report;
mod several;
mod ticking;
mod ways;

use std::alloc::System;
use std::time::Instant;

use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand_distr::{Distribution, Uniform, Zipf};

use contender::{Key, Mode, Runner};
use report::Report;

/// Counts what a contender allocates.
#[global_allocator]
static MEMORY: cap::Cap<System> = cap::Cap::new(System, usize::MAX);

/// Whether nearly all requests are allowed, or nearly all denied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Load {
    Allowed,
    Denied,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Popularity {
    Uniform,
    Zipf,
}

/// One column group of a table.
#[derive(Clone, Copy)]
pub struct Setting {
    pub clients: usize,
    pub load: Load,
    popularity: Popularity,
}

impl Setting {
    /// Room for these clients and a quarter more: our tables are filled to 80 %.
    pub fn capacity(&self) -> usize {
        (self.clients * 5).div_ceil(4)
    }
}

const KINDS: [&str; 4] = [
    "u64 keys",
    "20-byte strings",
    "Zipf 0.99, u64",
    "denied, u64",
];

/// The measurements beside those of the kinds of keys.
const OTHERS: [&str; 2] = ["several", "floods"];

struct Options {
    rounds: usize,
    /// By each thread, in a round.
    decisions: usize,
    sizes: Vec<usize>,
    only: Vec<String>,
}

impl Options {
    /// Returns true if `name` is to be measured: no item of its kind is named, or it is.
    fn wants(&self, name: &str, kind: &[&str]) -> bool {
        let named = |text: &&String| kind.iter().any(|name| name.contains(text.as_str()));
        let mut named = self.only.iter().filter(named).peekable();
        named.peek().is_none() || named.any(|text| name.contains(text.as_str()))
    }

    /// Returns true if one of [`OTHERS`] is named; the kinds of keys are then not measured.
    fn measures_only_others(&self) -> bool {
        let is_other = |text: &String| OTHERS.contains(&text.as_str());
        self.only.iter().any(is_other)
    }
}

fn options() -> Options {
    let mut options = Options {
        rounds: 5,
        decisions: 1_000_000,
        sizes: vec![1, 10_000, 1_000_000, 10_000_000],
        only: Vec::new(),
    };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let value = args.next().unwrap_or_default();
        match arg.as_str() {
            "--rounds" => options.rounds = value.parse().expect("a number of rounds"),
            "--decisions" => options.decisions = value.parse().expect("a number of decisions"),
            "--sizes" => {
                let sizes = value
                    .split(',')
                    .map(|size| size.parse().expect("numbers of clients"));
                options.sizes = sizes.collect();
            }
            "--only" => options.only = value.split(',').map(String::from).collect(),
            _ => {
                eprintln!("unknown option {arg}; known: --rounds, --decisions, --sizes, --only");
                std::process::exit(2);
            }
        }
    }
    options
}

/// What to run, and what it is called.
type Named<K> = (&'static str, Box<dyn Runner<K>>);
type Make<K> = (&'static str, fn(&Setting) -> Box<dyn Runner<K>>);

fn common<K: Key>() -> Vec<Make<K>> {
    vec![
        ("earrrl gcra", |s| Box::new(ours::system("gcra", s))),
        ("earrrl recent-average strict", |s| {
            Box::new(ours::system("recent-average", s))
        }),
        ("earrrl gcra, ticking clock", |s| {
            Box::new(ours::ticking("gcra", s))
        }),
        ("governor", |s| Box::new(peers::governor(s))),
        ("governor, foldhash", |s| {
            Box::new(peers::Keyed::foldhash(peers::quota(s.load)))
        }),
        ("governor, foldhash, ticking clock", |s| {
            Box::new(peers::Keyed::tuned(peers::quota(s.load)))
        }),
        ("ratelimit in a DashMap", |s| {
            Box::new(peers::ratelimiters(s))
        }),
        ("pingora-limits (observes only)", |s| {
            Box::new(peers::pingora(s))
        }),
    ]
}

fn numbers() -> Vec<Make<u64>> {
    let mut all = common::<u64>();
    all.push(("floor: compare-and-swap", |s| {
        Box::new(floors::Floor::new(s.clients, false))
    }));
    all.push(("floor: compare-and-swap and clock", |s| {
        Box::new(floors::Floor::new(s.clients, true))
    }));
    all
}

fn strings() -> Vec<Make<String>> {
    let mut all = common::<String>();
    all.push(("throttlecrab in a Mutex", |s| {
        Box::new(peers::throttlecrab(s))
    }));
    all
}

fn sequence<K: Key>(setting: &Setting, length: usize, seed: u64) -> Vec<K> {
    let mut random = SmallRng::seed_from_u64(seed);
    let clients = setting.clients as u64;
    match setting.popularity {
        Popularity::Uniform => {
            let uniform = Uniform::new(0, clients).expect("a range");
            (0..length)
                .map(|_| K::of(uniform.sample(&mut random)))
                .collect()
        }
        Popularity::Zipf => {
            let zipf = Zipf::new(clients as f64, 0.99).expect("a distribution");
            // Popular clients must not lie next to each other.
            let scattered = |rank: f64| (rank as u64).wrapping_mul(0x9E37_79B9) % clients;
            (0..length)
                .map(|_| K::of(scattered(zipf.sample(&mut random))))
                .collect()
        }
    }
}

/// Builds every contender, fills it with its clients, and measures all of them in turns.
fn group<K: Key>(
    make: &[Make<K>],
    setting: &Setting,
    kind: &str,
    options: &Options,
    to: &mut Report,
) {
    if options.measures_only_others() || !options.wants(kind, &KINDS) {
        return;
    }
    let names: Vec<_> = make.iter().map(|(name, _)| *name).collect();
    let wanted = make.iter().filter(|(name, _)| options.wants(name, &names));
    let rounds = options.rounds;
    // Before the contenders, so that the keys lie one after the other, as in a server's buffer.
    let length = options.decisions;
    let sequences: [Vec<K>; 2] = [sequence(setting, length, 1), sequence(setting, length, 2)];
    let [first, second] = sequences.each_ref().map(Vec::as_slice);
    let contenders: Vec<Named<K>> = wanted
        .map(|(name, make)| {
            let before = MEMORY.allocated();
            let contender = make(setting);
            let newcomers: Vec<K> = (0..setting.clients as u64).map(K::of).collect();
            let start = Instant::now();
            newcomers.iter().for_each(|key| contender.visit(key));
            let nanos = start.elapsed().as_nanos() as f64 / setting.clients as f64;
            to.time(name, kind, setting.clients, "1 thread, new clients", nanos);
            drop(newcomers);
            let bytes = MEMORY.allocated().saturating_sub(before);
            let room = contender.room().unwrap_or(setting.clients);
            to.bytes(name, kind, setting.clients, bytes as f64 / room as f64);
            (*name, contender)
        })
        .collect();
    let ways: [(&str, &[&[K]], Mode); 4] = [
        ("1 thread", &[first], Mode::Single),
        ("2 threads", &[first, second], Mode::Single),
        ("1 thread, batches of 16", &[first], Mode::Batches),
        (
            "1 thread, each after the other",
            &[&first[..length / 4]],
            Mode::Chained,
        ),
    ];
    for round in 0..=rounds {
        for (way, sequences, mode) in ways {
            for (name, contender) in &contenders {
                let time = contender.round(sequences, mode);
                if round > 0 {
                    to.time(name, kind, setting.clients, way, time);
                }
            }
        }
    }
}

fn main() {
    let options = options();
    let mut report = Report::compared_with("governor");
    for &clients in &options.sizes {
        let allowed = Setting {
            clients,
            load: Load::Allowed,
            popularity: Popularity::Uniform,
        };
        group(&numbers(), &allowed, KINDS[0], &options, &mut report);
        group(&strings(), &allowed, KINDS[1], &options, &mut report);
        if clients >= 1_000_000 {
            let zipf = Setting {
                popularity: Popularity::Zipf,
                ..allowed
            };
            group(&numbers(), &zipf, KINDS[2], &options, &mut report);
        }
        let denied = Setting {
            load: Load::Denied,
            ..allowed
        };
        group(&numbers(), &denied, KINDS[3], &options, &mut report);
    }
    if !options.measures_only_others() {
        report.print();
    }
    if options.wants("several", &OTHERS) {
        several::print(options.rounds);
    }
    if options.wants("floods", &OTHERS) {
        floods::print(&options);
    }
    if options.only.is_empty() {
        ways::print_atomic_updates(options.rounds);
        ways::print_sums(options.rounds);
    }
}
