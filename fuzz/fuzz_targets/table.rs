//! The table and the limiter over it, against the reference engine: any operations on a few clients,
//! with room for all, in answers and in what is left.
#![no_main]

use std::collections::HashMap;
use std::sync::Arc;

use arbitrary::Arbitrary;
use earrrl::internal::table::{Change, KeyHash, MIN_WORD, Table, Word};
use earrrl::{Charge, Cost, Engine, ManualClock, MemoryEngine, Mode, Nanos, Rule, RuleId};
use earrrl_testing::{ReferenceEngine, block_on};
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
struct Input {
    words: Vec<(u8, Operation)>,
    requests: Vec<Request>,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Operation {
    Store(i64, u8),
    Add(i32),
    Keep,
    Remove,
}

#[derive(Arbitrary, Debug)]
struct Request {
    gap: u32,
    rule: u8,
    key: u8,
    cost: u16,
    kind: Kind,
}

#[derive(Arbitrary, Debug)]
enum Kind {
    Check,
    Both,
    Peek,
    Refund,
    Reset,
    Change,
}

/// The smallest table has 32 slots, open to every key.
fn a_table_is_a_map(words: &[(u8, Operation)]) {
    let table = Table::new(1).expect("memory");
    let mut map: HashMap<u8, Word> = HashMap::new();
    for &(name, operation) in words {
        let name = name % 32;
        let change = |word: Option<Word>| match operation {
            Operation::Store(word, shift) => Change::Store(Word::from(word) << (shift % 20)),
            Operation::Add(by) => Change::Store(word.unwrap_or(0) + Word::from(by)),
            Operation::Keep => Change::Keep,
            Operation::Remove => Change::Remove,
        };
        let hash = KeyHash::from_bits(u64::from(name + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let seen = table.update(hash, || MIN_WORD, |word| (change(word), word));
        assert_eq!(seen, map.get(&name).copied());
        match change(seen) {
            Change::Store(word) => drop(map.insert(name, word)),
            Change::Remove => drop(map.remove(&name)),
            Change::Keep => {}
        }
        assert_eq!(table.get(hash), map.get(&name).copied());
    }
    assert_eq!(table.len(), map.len());
}

const RULES: [[&str; 2]; 4] = [
    [
        "recent-average 2/s half-life=5s strict",
        "recent-average 3/s half-life=9s leaky",
    ],
    ["gcra 2/s burst=7", "token-bucket 9 refill=7/m"],
    ["fixed-window 20/10s", "fixed-window 9/10s strict"],
    ["sliding-log 20/10s", "sliding-log 30/20s"],
];

fn rule(place: usize, version: usize) -> Rule {
    RULES[place][version % 2].parse().expect("a rule")
}

fn an_engine_is_the_reference(requests: &[Request]) {
    let clock = Arc::new(ManualClock::new(Nanos::from_secs(1_800_000_000)));
    let engine = MemoryEngine::with_clock(1000, clock.clone()).expect("memory");
    let reference = ReferenceEngine::new(clock.clone());
    for place in 0..RULES.len() {
        for prepared in [
            engine.prepare(&format!("rule-{place}"), &rule(place, 0)),
            reference.prepare(&format!("rule-{place}"), &rule(place, 0)),
        ] {
            assert_eq!(prepared, Ok(RuleId(place as u32)));
        }
    }
    for request in requests {
        clock.advance(std::time::Duration::from_micros(u64::from(request.gap)));
        answer_alike(&engine, &reference, request);
    }
}

fn answer_alike(engine: &MemoryEngine<Arc<ManualClock>>, reference: &ReferenceEngine, r: &Request) {
    let place = usize::from(r.rule) % RULES.len();
    let key = [r.key % 32];
    let next = RuleId((place as u32 + 1) % 4);
    let cost = Cost::from_billionths(u128::from(r.cost) * 100_000_000);
    let one = Charge {
        rule: RuleId(place as u32),
        key: &key,
        cost,
    };
    let both = [one, Charge { rule: next, ..one }];
    match r.kind {
        Kind::Check => same(
            block_on(engine.decide(&[one], Mode::Check, None)),
            block_on(reference.decide(&[one], Mode::Check, None)),
        ),
        Kind::Both => same(
            block_on(engine.decide(&both, Mode::Check, None)),
            block_on(reference.decide(&both, Mode::Check, None)),
        ),
        Kind::Peek => same(
            block_on(engine.decide(&both, Mode::Peek, None)),
            block_on(reference.decide(&both, Mode::Peek, None)),
        ),
        Kind::Refund => same(
            block_on(engine.refund(&one, None, None)),
            block_on(reference.refund(&one, None, None)),
        ),
        Kind::Reset => same(
            block_on(engine.reset(one.rule, &key)),
            block_on(reference.reset(one.rule, &key)),
        ),
        Kind::Change => {
            let name = format!("rule-{place}");
            let rule = rule(place, usize::from(r.cost));
            same(
                engine.prepare(&name, &rule),
                reference.prepare(&name, &rule),
            );
        }
    }
}

fn same<T: PartialEq + std::fmt::Debug>(got: T, expected: T) {
    assert_eq!(got, expected);
}

fuzz_target!(|input: Input| {
    a_table_is_a_map(&input.words);
    an_engine_is_the_reference(&input.requests);
});
