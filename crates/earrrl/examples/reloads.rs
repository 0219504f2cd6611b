//! How long decisions take while rules change: five million clients, one thread that decides without a
//! pause, another that changes one thing after the other. Beside it the same without a change, and nothing at
//! all for as long as a decision usually takes: its tail is the machine's, which takes the processor away
//! for its timer and for other work, the likelier the longer something takes. How often the thread that decides
//! went to sleep by itself, which is at a lock, and met a page that the system had to find, does not depend
//! on that.
//!
//! `cargo run --release -p earrrl --example reloads [-- CLIENTS SECONDS]`, 5 000 000 and 10 of each by default.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use earrrl::{Charge, Cost, Engine, MemoryEngine, Mode, Rule, RuleId};
use earrrl_testing::Random;

/// What is changed: the text of the rule and the clients it is meant for, by the count of changes.
type Change = fn(u32, usize) -> (String, usize);

const NOTHING: &str = "no change";
/// Walks over all clients, one after the other.
const SURVEY: &str = "survey";

/// Each over and over, for its share of the time.
const CHANGES: [(&str, Option<Change>); 7] = [
    (NOTHING, None),
    (SURVEY, None),
    (
        "limit",
        Some(|nth, clients| (average(1 + nth % 9, 10), clients)),
    ),
    (
        "half-life",
        Some(|nth, clients| (average(1, 10 + nth % 9), clients)),
    ),
    (
        "capacity",
        Some(|nth, clients| (average(1, 10), clients + clients / 4 * (nth as usize % 2))),
    ),
    ("rule added", None),
    ("rule removed", None),
];

fn average(limit: u32, half_life: u32) -> String {
    format!("recent-average {limit}/s half-life={half_life}m strict")
}

fn main() {
    let mut arguments = std::env::args()
        .skip(1)
        .map(|argument| argument.parse().unwrap());
    let clients: usize = arguments.next().unwrap_or(5_000_000);
    let seconds: usize = arguments.next().unwrap_or(10);
    let engine = MemoryEngine::new(clients).unwrap();
    let id = engine
        .prepare("changing", &average(1, 10).parse().unwrap())
        .unwrap();
    let other = engine
        .prepare("other", &average(1, 10).parse().unwrap())
        .unwrap();
    for key in 0..clients as u64 {
        decide(&engine, id, key);
        decide(&engine, other, key);
    }
    println!("{clients} clients of each rule; nanoseconds a decision");
    println!("| while | rule | changes | p50 | p99 | p99.9 | p99.99 | longest | slept | pages |");
    println!("|---|---|---|---|---|---|---|---|---|---|");
    for (name, change) in CHANGES {
        let over = AtomicBool::new(false);
        let span = Duration::from_secs(seconds as u64);
        let mut count = 0;
        let taken = thread::scope(|scope| {
            let deciding = scope.spawn(|| measure(&engine, [id, other], clients as u64, &over));
            let began = Instant::now();
            while began.elapsed() < span {
                match (name, change) {
                    (NOTHING, _) => {}
                    (SURVEY, _) => drop(engine.survey(id, 100).unwrap()),
                    (_, Some(change)) => {
                        let (rule, room) = change(count, clients);
                        prepare(&engine, "changing", &rule, room);
                    }
                    // Little clients, so that there is memory for all of them.
                    ("rule added", None) => {
                        prepare(&engine, &format!("more-{count}"), &average(1, 10), 10_000);
                    }
                    _ => prepare(&engine, &format!("more-{count}"), &average(1, 10), 1),
                }
                count += 1;
                thread::sleep(Duration::from_millis(5));
            }
            over.store(true, Relaxed);
            deciding.join().unwrap()
        });
        let count = if name == NOTHING { 0 } else { count };
        let (taken, [slept, pages]) = taken;
        for (rule, mut nanos) in ["that changes", "beside it", "nothing"]
            .into_iter()
            .zip(taken)
        {
            nanos.sort_unstable();
            let at = |share: f64| nanos[((nanos.len() - 1) as f64 * share) as usize];
            let [p50, p99, p999, p9999] = [0.5, 0.99, 0.999, 0.9999].map(at);
            let longest = at(1.0);
            println!(
                "| {name} | {rule} | {count} | {p50} | {p99} | {p999} | {p9999} | {longest} \
                 | {slept} | {pages} |"
            );
        }
        engine.tidy();
    }
}

fn prepare(engine: &MemoryEngine, name: &str, rule: &str, room: usize) {
    let rule: Rule = rule.parse().unwrap();
    engine.prepare_with(name, &rule, room).unwrap();
}

fn decide(engine: &MemoryEngine, rule: RuleId, key: u64) {
    let charge = Charge {
        rule,
        key: &key.to_le_bytes(),
        cost: Cost::ONE,
    };
    engine
        .decide(&[charge], Mode::Check, None)
        .into_inner()
        .unwrap();
}

/// What each decision took under the rule that changes, and under another, and nothing; and what
/// befell the thread.
fn measure(
    engine: &MemoryEngine,
    rules: [RuleId; 2],
    clients: u64,
    over: &AtomicBool,
) -> ([Vec<u32>; 3], [u64; 2]) {
    let mut random = Random::new(1);
    // Touched before: else each thousandth decision would show a page that the system has to find.
    let mut taken = [(); 3].map(|()| vec![1; 15_000_000]);
    taken.iter_mut().for_each(Vec::clear);
    let [changing, beside, nothing] = &mut taken;
    let before = befallen();
    let mut usual = 0_u32;
    while !over.load(Relaxed) {
        let key = random.below(clients);
        let took = nanos(|_| decide(engine, rules[0], key));
        // Half are above it.
        usual = if took > usual {
            usual + 2
        } else {
            usual.saturating_sub(2)
        };
        changing.push(took);
        let key = random.below(clients);
        beside.push(nanos(|_| decide(engine, rules[1], key)));
        nothing.push(nanos(
            |began| while (began.elapsed().as_nanos() as u32) < usual {},
        ));
    }
    let after = befallen();
    (taken, [after[0] - before[0], after[1] - before[1]])
}

fn nanos(act: impl FnOnce(Instant)) -> u32 {
    let began = Instant::now();
    act(began);
    began.elapsed().as_nanos().min(u32::MAX.into()) as u32
}

/// How often this thread has gone to sleep by itself, and has met a page that was not there.
fn befallen() -> [u64; 2] {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap_or_default();
    // The name, in parentheses, may hold anything.
    let faults = stat
        .rsplit(')')
        .next()
        .and_then(|fields| fields.split_whitespace().nth(7));
    [line, faults].map(|count| count.map_or(0, |count| count.trim().parse().unwrap()))
}
