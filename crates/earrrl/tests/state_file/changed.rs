//! Files whose rule changed between two starts: the clients go on under the new rule.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use earrrl::{
    Action, Charge, Cost, Engine, Limiter, ManualClock, MemoryEngine, Mode, Nanos, Outcome, Rule,
    StateDirectory,
};

use super::process::{decider, idle_ledger};
use super::{BUCKET, CAPACITY, Scratch, open, pruned};
use crate::starts::{no_starts, start};

/// Returns the limit of the only file.
fn listed(scratch: &Scratch) -> Rule {
    let [only] = &StateDirectory::list(&scratch.0).unwrap()[..] else {
        panic!()
    };
    only.as_ref().unwrap().limit.parse().unwrap()
}

/// The text of the rule follows changes that need no other file, whichever process makes them.
#[test]
fn a_file_has_the_text_of_its_latest_rule() {
    let scratch = Scratch::alone();
    let text = |nth: usize| format!("recent-average {}/30d period=30d leaky", nth + 4);
    let rule = |nth: usize| text(nth).parse::<Rule>().unwrap();
    let mut first = open(&text(0), &scratch.path(), 100).unwrap();
    assert_eq!(listed(&scratch), rule(0));
    first.change(rule(1)).unwrap();
    assert_eq!(listed(&scratch), rule(1));
    let second = open(&text(2), &scratch.path(), 100).unwrap();
    assert_eq!(listed(&scratch), rule(2));
    drop((first, second));
    drop(open(&text(3), &scratch.path(), 100).unwrap());
    assert_eq!(listed(&scratch), rule(3));
    // Damage brings back the text before, which means the same states.
    let file = fs::OpenOptions::new()
        .write(true)
        .open(scratch.file())
        .unwrap();
    for (record, left) in [(7168, 2), (6144, 0)] {
        file.write_all_at(&[0xFF], record + 20).unwrap();
        assert_eq!(listed(&scratch), rule(left));
    }
}

/// Pairs of rules whose states have different meanings, and whose quotas come back too slowly to
/// matter within a test.
const CHANGES: [[&str; 2]; 7] = [
    [
        "token-bucket 9 refill=1/365d",
        "token-bucket 9 refill=2/365d",
    ],
    [
        "token-bucket 9 refill=1/365d",
        "token-bucket 12 refill=1/365d",
    ],
    ["gcra 1/365d burst=9", "gcra 1/100d burst=7"],
    [
        "recent-average 4/30d period=30d leaky",
        "recent-average 4/30d period=60d leaky",
    ],
    [
        "recent-average 4/30d period=60d strict",
        "recent-average 4/30d period=30d strict",
    ],
    ["fixed-window 9/3650d", "fixed-window 9/3000d"],
    ["sliding-counter 9/3650d", "sliding-counter 9/3000d"],
];

/// Pairs of rules of different algorithms.
const ALGORITHMS: [[&str; 2]; 4] = [
    ["token-bucket 9 refill=1/365d", "fixed-window 9/3650d"],
    ["gcra 1/365d burst=9", "sliding-counter 9/3000d"],
    [
        "recent-average 4/30d period=30d strict",
        "gcra 1/365d burst=9",
    ],
    ["fixed-window 9/3650d", "sliding-counter 9/3650d"],
];

/// Asserts that the clients of a limiter have what remains to those of another one.
fn assert_same(found: &Limiter<u64>, wanted: &Limiter<u64>, what: &str) {
    for client in 0..1001 {
        let [found, wanted] =
            [found, wanted].map(|limiter| limiter.peek(&client, Cost::ONE).unwrap().remaining());
        assert_eq!(found, wanted, "{what}: {client}");
    }
}

/// Returns a limiter in the file and one in memory whose clients have been charged alike.
fn charged(rule: &str, scratch: &Scratch) -> [Limiter<u64>; 2] {
    let parsed: Rule = rule.parse().unwrap();
    let in_memory = Limiter::builder(parsed).capacity(CAPACITY).build().unwrap();
    let in_file = open(rule, &scratch.path(), CAPACITY).unwrap();
    for client in 0..1000 {
        for _ in 0..client % 12 {
            let allowed = [&in_file, &in_memory].map(|one| one.check(&client).is_allowed());
            assert_eq!(allowed[0], allowed[1], "{rule}");
        }
    }
    [in_file, in_memory]
}

/// A limiter in a file that is opened again under another rule is like a limiter in memory whose
/// rule changes.
#[test]
fn clients_go_on_under_the_new_rule() {
    for [old, new] in CHANGES.into_iter().flat_map(|[a, b]| [[a, b], [b, a]]) {
        let scratch = Scratch::alone();
        let [first, mut expected] = charged(old, &scratch);
        drop(first);
        expected.change(new.parse().unwrap()).unwrap();
        for _ in 0..2 {
            let second = open(new, &scratch.path(), CAPACITY).unwrap();
            assert_same(&second, &expected, &format!("{old} to {new}"));
        }
        let [only] = &StateDirectory::list(&scratch.0).unwrap()[..] else {
            panic!()
        };
        let only = only.as_ref().unwrap();
        assert_eq!(
            (only.generation, only.limit.parse()),
            (2, new.parse::<Rule>())
        );
    }
}

/// A process that uses a file goes on under the rule that another one, or its own change, gives it.
#[test]
fn clients_go_on_under_the_new_rule_in_all_processes() {
    let changes = CHANGES.into_iter().chain(ALGORITHMS);
    for [old, new] in changes.flat_map(|[a, b]| [[a, b], [b, a]]) {
        let scratch = Scratch::alone();
        let [mut first, mut expected] = charged(old, &scratch);
        expected.change(new.parse().unwrap()).unwrap();
        let second = open(new, &scratch.path(), CAPACITY).unwrap();
        // Each client is met by the other process first in half of the cases.
        for client in (0..1000).filter(|client| client % 24 < 12) {
            let both = [&second, &expected].map(|one| one.check(&client).is_allowed());
            assert_eq!(both[0], both[1], "{old} to {new}: {client}");
        }
        for client in 0..1000 {
            let both = [&first, &expected].map(|one| one.check(&client).is_allowed());
            assert_eq!(both[0], both[1], "{old} to {new}: {client}");
        }
        assert_same(&second, &expected, &format!("{old} to {new}"));
        assert_same(&first, &expected, &format!("{old} to {new}"));
        assert_eq!((first.len(), first.state_fault()), (second.len(), None));
        expected.change(old.parse().unwrap()).unwrap();
        first.change(old.parse().unwrap()).unwrap();
        assert_same(&second, &expected, &format!("{old} to {new} and back"));
        assert_same(&first, &expected, &format!("{old} to {new} and back"));
        drop((first, second));
        let last = open(old, &scratch.path(), CAPACITY).unwrap();
        assert_same(&last, &expected, &format!("{old} to {new} and back, alone"));
    }
}

/// Under another algorithm, clients begin afresh. A change back finds those that were not
/// met meanwhile.
#[test]
fn clients_begin_afresh_under_another_algorithm() {
    for [old, new] in ALGORITHMS.into_iter().flat_map(|[a, b]| [[a, b], [b, a]]) {
        for capacity in [CAPACITY, 2 * CAPACITY] {
            let scratch = Scratch::alone();
            let [first, _] = charged(old, &scratch);
            let remaining = |limiter: &Limiter<u64>, client| {
                limiter.peek(&client, Cost::ONE).unwrap().remaining()
            };
            let [met, unmet] = [5, 7].map(|client| remaining(&first, client));
            let fresh = remaining(&first, 0);
            assert!(met < fresh && unmet < fresh);
            drop(first);
            let second = open(new, &scratch.path(), capacity).unwrap();
            let unseen = remaining(&second, 0);
            assert!(
                (7..1000).all(|client| remaining(&second, client) == unseen),
                "a peek"
            );
            assert!(second.check(&5).is_allowed());
            drop(second);
            let third = open(old, &scratch.path(), capacity).unwrap();
            assert_eq!(
                (remaining(&third, 5), remaining(&third, 7)),
                (fresh, unmet),
                "{old}"
            );
        }
    }
}

/// A client that sends nothing stays in its generation. Those without clients are removed, also if it is
/// older than they.
#[test]
fn a_client_that_stays_keeps_no_other_generation() {
    let [bucket, other] =
        [BUCKET, "fixed-window 9/3650d"].map(|rule| rule.parse::<Rule>().unwrap());
    let scratch = Scratch::alone();
    let mut first = open(BUCKET, &scratch.path(), CAPACITY).unwrap();
    assert!(first.check(&7).is_allowed());
    let left = first.peek(&7, Cost::ONE).unwrap().remaining();
    for _ in 0..3 {
        for rule in [&other, &bucket] {
            first.change(rule.clone()).unwrap();
            assert!(
                StateDirectory::list(&scratch.0).unwrap().len() <= 3,
                "{rule}"
            );
        }
    }
    drop(first);
    StateDirectory::prune(&scratch.0, &[]).unwrap();
    assert_eq!(StateDirectory::list(&scratch.0).unwrap().len(), 2);
    let again = open(BUCKET, &scratch.path(), CAPACITY).unwrap();
    assert_eq!(again.peek(&7, Cost::ONE).unwrap().remaining(), left);
}

/// A rule that delays goes on as one that denies under an algorithm that cannot delay.
#[test]
fn a_rule_does_not_delay_under_an_algorithm_that_cannot() {
    let scratch = Scratch::alone();
    let max = Duration::from_secs(86_400);
    let delays = "gcra 1/m burst=1".parse::<Rule>().unwrap();
    let delays = delays.with_action(Action::Delay { max }).unwrap();
    let first: Limiter<u64> = Limiter::builder(delays)
        .state_file(scratch.path())
        .build()
        .unwrap();
    assert_eq!(
        [(); 2].map(|()| first.check(&7).outcome()),
        [Outcome::Allow, Outcome::Delay]
    );
    let _second = open("fixed-window 1/1d", &scratch.path(), 100_000).unwrap();
    assert_eq!(
        [(); 2].map(|()| first.check(&7).outcome()),
        [Outcome::Allow, Outcome::Deny]
    );
}

/// An engine names the rules to which it has given another algorithm, once.
#[test]
fn an_engine_names_the_rules_of_another_algorithm() {
    let scratch = Scratch::alone();
    let engine = || MemoryEngine::with_state_for(100, &scratch.0).unwrap();
    let [bucket, window]: [Rule; 2] =
        [BUCKET, "fixed-window 5/1d"].map(|rule| rule.parse().unwrap());
    let first = engine();
    let second = engine();
    let login = first.prepare("login", &bucket).unwrap();
    second.prepare("login", &bucket).unwrap();
    let charge = Charge {
        rule: login,
        key: b"alice",
        cost: "5".parse().unwrap(),
    };
    let allows = |engine: &MemoryEngine| {
        engine
            .decide(&[charge], Mode::Check, None)
            .into_inner()
            .unwrap()
            .allowed
    };
    assert!(allows(&first) && !allows(&second));
    first.prepare("login", &window).unwrap();
    assert_eq!(
        first.survey(login, 9).unwrap().rates.clients(),
        0,
        "of the former algorithm"
    );
    assert_eq!(first.superseded(), [("login".to_string(), bucket.clone())]);
    assert_eq!((first.superseded(), second.superseded()), (vec![], vec![]));
    assert!(allows(&second) && !allows(&first));
    second.tidy();
    assert_eq!(second.followed(), [("login".to_string(), Ok(window))]);
    drop((first, second));
    let third = engine();
    third.prepare("login", &bucket).unwrap();
    assert_eq!(third.superseded().len(), 1);
}

/// Clients move to a table of another size, and the file before is removed once all of them have.
#[test]
fn a_capacity_changes_in_all_processes() {
    let scratch = Scratch::alone();
    let first = open(BUCKET, &scratch.path(), 100).unwrap();
    let admitted = |limiter: &Limiter<u64>, client| {
        (0..9)
            .filter(|_| limiter.check(&client).is_allowed())
            .count()
    };
    assert!((0..100).all(|client| admitted(&first, client) == 5));
    let second = open(BUCKET, &scratch.path(), 10_000).unwrap();
    assert!((0..100).all(|client| admitted([&first, &second][client as usize % 2], client) == 0));
    assert!((100..200).all(|client| admitted(&second, client) == 5));
    assert!((100..200).all(|client| admitted(&first, client) == 0));
    let names = || fs::read_dir(&scratch.0).unwrap().count();
    assert_eq!((names(), pruned(&scratch, &[])), (2, vec![]));
    drop((first, second));
    let third = open(BUCKET, &scratch.path(), 10_000).unwrap();
    assert_eq!((names(), third.len(), admitted(&third, 7)), (1, 200, 0));
}

/// Rules before and after a change, and the units that are charged before it. The states fit words
/// before and, because they have too many digits, not afterwards.
const UNFIT: [[&str; 3]; 2] = [
    ["sliding-counter 10/1h", "10", "sliding-counter 10/2h"],
    ["fixed-window 20000000000/1d", "2e10", "fixed-window 7/1m"],
];

/// The time between charge and change: more than one window, at an odd nanosecond.
const ODD: Duration = Duration::new(5400, 123_456_789);

type Timed = Limiter<u64, Arc<ManualClock>>;

fn clock() -> Arc<ManualClock> {
    Arc::new(ManualClock::new(Nanos::from_secs(1_800_000_000)))
}

fn limiter(rule: &str, clock: &Arc<ManualClock>, path: Option<PathBuf>) -> Timed {
    let builder = Limiter::builder(rule.parse::<Rule>().unwrap()).capacity(100);
    let builder = builder.clock(Arc::clone(clock));
    let builder = if let Some(path) = path {
        builder.state_file(path)
    } else {
        builder
    };
    builder.build().unwrap()
}

fn at_most_half(limiter: &Timed, rule: &str) {
    let remaining = limiter.peek(&7, Cost::ONE).unwrap().remaining();
    assert!(remaining <= 5, "{rule}: {remaining} remain");
}

#[test]
fn a_state_that_fits_no_word_after_a_change_is_rounded_up() {
    for [old, cost, new] in UNFIT {
        let scratch = Scratch::alone();
        let clock = clock();
        let mut in_memory = limiter(old, &clock, None);
        let in_file = limiter(old, &clock, Some(scratch.path()));
        for limiter in [&in_memory, &in_file] {
            assert!(
                limiter
                    .charge(&7, cost.parse().unwrap())
                    .unwrap()
                    .is_allowed()
            );
        }
        let engine = MemoryEngine::with_clock(100, Arc::clone(&clock)).unwrap();
        let rule = engine.prepare("login", &old.parse().unwrap()).unwrap();
        let charge = |cost| Charge {
            rule,
            key: b"alice",
            cost,
        };
        let charges = [charge(cost.parse().unwrap())];
        assert!(
            engine
                .decide(&charges, Mode::Check, None)
                .into_inner()
                .unwrap()
                .allowed
        );

        clock.advance(ODD);
        in_memory.change(new.parse().unwrap()).unwrap();
        at_most_half(&in_memory, new);
        drop(in_file);
        at_most_half(&limiter(new, &clock, Some(scratch.path())), new);
        engine.prepare("login", &new.parse().unwrap()).unwrap();
        let peek = engine
            .decide(&[charge(Cost::ONE)], Mode::Peek, None)
            .into_inner()
            .unwrap();
        assert!(peek.remaining <= 5, "{new}: {}", peek.remaining);
    }
}

/// Processes that are killed at any moment of the change leave the file as it was before or is
/// after it.
#[test]
fn a_killed_change_loses_no_client() {
    let scratch = Scratch::new();
    let rules = [
        "token-bucket 9 refill=1/365d",
        "token-bucket 9 refill=2/365d",
    ];
    let first = open(rules[0], &scratch.path(), CAPACITY).unwrap();
    for client in 0..1000 {
        (0..client % 9).for_each(|_| assert!(first.check(&client).is_allowed()));
    }
    drop(first);
    let episodes = if std::env::var_os("EARRRL_LONG").is_some() {
        400
    } else {
        40
    };
    for episode in 0..episodes {
        let mut changing = decider(&scratch, rules[1 - episode % 2], CAPACITY);
        let mut process = start(changing.stdin(Stdio::piped()).stdout(Stdio::null()));
        std::thread::sleep(Duration::from_micros(episode as u64 * 7919 % 20_000));
        process.kill().unwrap();
        process.wait().unwrap();
        fs::remove_file(idle_ledger(&scratch)).ok();
    }
    let _alone = no_starts();
    let last = open(rules[0], &scratch.path(), CAPACITY).unwrap();
    for client in 0..1000 {
        let remaining = last.peek(&client, Cost::ONE).unwrap().remaining();
        assert_eq!(remaining, 9 - client % 9, "{client}");
    }
    drop(last);
    pruned(&scratch, &[]);
    assert_eq!(fs::read_dir(&scratch.0).unwrap().count(), 1);
}

/// A limiter finds its clients only under its own hash key.
#[test]
fn a_change_goes_on_with_no_other_hash_key() {
    let scratch = Scratch::new();
    let [first, second, third] =
        [1, 2, 3].map(|refill| format!("token-bucket 5 refill={refill}/d"));
    let mut old = open(&first, &scratch.path(), 100).unwrap();
    let file = |generation: u64| scratch.0.join(format!("login.{generation}.earrrl"));
    fs::remove_file(file(1)).unwrap();
    old.change(second.parse().unwrap()).unwrap();
    let new = open(&second, &scratch.path(), 100).unwrap();
    assert_eq!(old.hash(&7), new.hash(&7));
    assert!((0..5).all(|_| old.check(&7).is_allowed()));
    assert!(!new.check(&7).is_allowed());
    fs::remove_file(file(1)).unwrap();
    open(&second, &scratch.path(), 100).unwrap();
    let error = old.change(third.parse().unwrap()).unwrap_err().to_string();
    assert!(error.contains("hash key"), "{error}");
    assert!(!old.check(&7).is_allowed());
}

/// Another process changes the rule while a reservation is live. The bucket has refilled since, or the window
/// has ended, so that the state has nothing of the estimate, and nothing is given back.
#[test]
fn a_hold_from_before_a_change_gives_back_what_is_left() {
    for (old, new, quota, expected) in [
        (
            "token-bucket 100 refill=1/d",
            "token-bucket 100 refill=100/s",
            100,
            0,
        ),
        ("fixed-window 100/1m", "fixed-window 100/1h", 100, 0),
        ("fixed-window 100/1d", "fixed-window 100/2d", 40, 60),
    ] {
        let scratch = Scratch::new();
        let clock = clock();
        let one = limiter(old, &clock, Some(scratch.path()));
        let held = Cost::from_units(if expected == 0 { 100 } else { expected });
        let hold = one.hold(&7, held).unwrap();
        let other = limiter(new, &clock, Some(scratch.path()));
        clock.advance(Duration::from_secs(70));
        let _charged = other.charge(&7, Cost::from_units(quota)).unwrap();
        assert_eq!(other.peek(&7, Cost::ONE).unwrap().remaining(), 0);
        hold.release();
        assert_eq!(
            other.peek(&7, Cost::ONE).unwrap().remaining(),
            expected,
            "{old}, {new}"
        );
    }
}
