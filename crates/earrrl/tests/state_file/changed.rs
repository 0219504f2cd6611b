//! Files whose rule changed between two starts: the clients go on under the new rule.

use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::process::Stdio;
use std::time::Duration;

use earrrl::internal::StateDirectory;
use earrrl::{Cost, Limiter, MemoryEngine, Rule};

use super::process::{decider, idle_ledger};
use super::{BUCKET, CAPACITY, FIVE, Scratch, open, pruned};
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

/// Pairs of rules whose states mean the same.
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
        "recent-average 8/30d period=30d strict",
    ],
    ["fixed-window 9/3650d", "fixed-window 12/3650d"],
    ["fixed-window 9/year", "fixed-window 12/year strict"],
    ["sliding-counter 9/3650d", "sliding-counter 7/3650d strict"],
];

/// Pairs of rules whose states have different meanings.
const MEANINGS: [[&str; 2]; 7] = [
    [
        "recent-average 4/30d period=30d leaky",
        "recent-average 4/30d period=60d leaky",
    ],
    ["fixed-window 9/3650d", "fixed-window 9/3000d"],
    ["fixed-window 9/year", "fixed-window 9/year tz=Asia/Kolkata"],
    ["sliding-counter 9/3650d", "sliding-counter 9/3000d"],
    ["token-bucket 9 refill=1/365d", "fixed-window 9/3650d"],
    ["gcra 1/365d burst=9", "sliding-counter 9/3000d"],
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

/// A limiter in a file that is opened again under another rule is like a limiter in memory whose rule changes.
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
        assert_eq!(listed(&scratch), new.parse::<Rule>().unwrap());
    }
}

/// Processes that share a file each apply their own rule to the shared states.
#[test]
fn each_process_applies_its_own_rule() {
    // The buckets are apart, since a change in memory bounds their waits, and one in another process does not.
    let [.., average, window, counter] = CHANGES;
    let changes = [average, window, counter];
    for [one, other] in changes.into_iter().flat_map(|[a, b]| [[a, b], [b, a]]) {
        let scratch = Scratch::alone();
        let [mut first, mut expected] = charged(one, &scratch);
        let second = open(other, &scratch.path(), CAPACITY).unwrap();
        expected.change(other.parse().unwrap()).unwrap();
        assert_same(&second, &expected, &format!("{one} beside {other}"));
        let next = |limiter: &Limiter<u64>| {
            let check = |client| limiter.check(&client).is_allowed();
            (0..1000).map(check).collect::<Vec<_>>()
        };
        assert_eq!(next(&second), next(&expected), "{one} beside {other}");
        expected.change(one.parse().unwrap()).unwrap();
        assert_eq!(next(&first), next(&expected), "{other} beside {one}");
        first.change(other.parse().unwrap()).unwrap();
        expected.change(other.parse().unwrap()).unwrap();
        assert_same(&first, &second, &format!("{one} to {other}"));
        assert_same(&first, &expected, &format!("{one} to {other}"));
        assert_eq!(first.len(), second.len());
    }
    let scratch = Scratch::alone();
    let [first, second] = [9, 12].map(|burst| {
        let bucket = format!("token-bucket {burst} refill=1/365d");
        open(&bucket, &scratch.path(), CAPACITY).unwrap()
    });
    let admitted =
        |limiter: &Limiter<u64>| (0..20).filter(|_| limiter.check(&7).is_allowed()).count();
    assert_eq!([&first, &second, &first].map(admitted), [9, 3, 0]);
}

/// Under a limit that gives states another meaning, clients begin afresh in another file, with the same hash
/// key. The former file goes as soon as no process uses it.
#[test]
fn clients_begin_afresh_where_states_mean_something_else() {
    for [old, new] in MEANINGS.into_iter().flat_map(|[a, b]| [[a, b], [b, a]]) {
        let scratch = Scratch::alone();
        let [mut first, _] = charged(old, &scratch);
        let second = open(old, &scratch.path(), CAPACITY).unwrap();
        let fresh = Limiter::builder(new.parse::<Rule>().unwrap())
            .capacity(CAPACITY)
            .build()
            .unwrap();
        let hash = first.hash(&7);
        first.change(new.parse().unwrap()).unwrap();
        assert_eq!((first.len(), first.hash(&7)), (0, hash));
        assert_same(&first, &fresh, &format!("{old} to {new}"));
        assert!(second.len() > 700 && !second.check(&11).is_allowed());
        assert_eq!(scratch.files_of("login").len(), 2);
        drop(second);
        assert!(first.check(&7).is_allowed());
        let third = open(new, &scratch.path(), CAPACITY).unwrap();
        assert_eq!(scratch.files_of("login").len(), 1, "{old} to {new}");
        assert_same(&first, &third, &format!("{old} to {new}, shared"));
        drop((first, third));
        let back = open(old, &scratch.path(), CAPACITY).unwrap();
        assert_eq!(back.len(), 0, "{new} to {old}");
    }
}

/// A file of another size has all clients, and goes on without them once they are idle.
#[test]
fn a_capacity_changes_when_nobody_uses_the_file() {
    let sizes = [1000, 3000, 1300, 100_000, 40_000, 700];
    for rule in FIVE {
        let scratch = Scratch::alone();
        let mut charged = 0;
        for capacity in sizes {
            let limiter = open(rule, &scratch.path(), capacity).unwrap();
            let is_denied = |client: &u64| !limiter.check(client).is_allowed();
            let kept = (0..charged).filter(is_denied).count();
            assert_eq!(kept as u64, charged, "{rule}: {capacity}");
            for client in charged..charged + 10 {
                (0..5).for_each(|_| assert!(limiter.check(&client).is_allowed(), "{rule}"));
            }
            charged += 10;
            let beside = open(rule, &scratch.path(), 7 * capacity).unwrap();
            assert!((0..charged).all(|client| !beside.check(&client).is_allowed()));
            assert!(beside.check(&u64::MAX).is_allowed());
            beside.reset(&u64::MAX);
        }
        assert_eq!(scratch.files_of("login").len(), 1);
    }
}

/// A copy can put a client into both of its sets. A reset forgets it in both.
#[test]
fn a_client_can_be_reset_after_a_change_of_the_capacity() {
    let scratch = Scratch::alone();
    for (nth, capacity) in [30, 400, 60, 500].into_iter().enumerate() {
        let limiter = open(BUCKET, &scratch.path(), capacity).unwrap();
        let clients = 7 * (nth as u64 + 1);
        for client in 0..clients {
            limiter.reset(&client);
            let admitted = (0..9).filter(|_| limiter.check(&client).is_allowed());
            assert_eq!(admitted.count(), 5, "{client} of {capacity}");
        }
    }
}

/// Processes that are killed at any moment of the copy leave the file as it was before or is after it.
#[test]
fn a_killed_copy_loses_no_client() {
    let scratch = Scratch::new();
    let rule = "token-bucket 9 refill=1/365d";
    let first = open(rule, &scratch.path(), CAPACITY).unwrap();
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
        let mut changing = decider(&scratch, rule, CAPACITY * (1 + episode % 2));
        let mut process = start(changing.stdin(Stdio::piped()).stdout(Stdio::null()));
        std::thread::sleep(Duration::from_micros(episode as u64 * 7919 % 20_000));
        process.kill().unwrap();
        process.wait().unwrap();
        fs::remove_file(idle_ledger(&scratch)).ok();
    }
    let _alone = no_starts();
    let last = open(rule, &scratch.path(), CAPACITY).unwrap();
    for client in 0..1000 {
        let remaining = last.peek(&client, Cost::ONE).unwrap().remaining();
        assert_eq!(remaining, 9 - client % 9, "{client}");
    }
    drop(last);
    pruned(&scratch, &[]);
    assert_eq!(fs::read_dir(&scratch.0).unwrap().count(), 1);
}

/// A file of the format before this one is a file of another meaning: its clients are not known.
#[test]
fn a_file_of_an_earlier_version_is_begun_afresh() {
    let scratch = Scratch::alone();
    let engine = || MemoryEngine::with_state_for(100, &scratch.0).unwrap();
    drop(engine());
    let old = scratch.0.join("login.1.earrrl");
    fs::write(&old, [7; 10_000]).unwrap();
    fs::set_permissions(&old, fs::Permissions::from_mode(0o600)).unwrap();
    let engine = engine();
    engine
        .prepare_with("login", &BUCKET.parse().unwrap(), 100)
        .unwrap();
    let notices = engine.notices();
    assert!(
        notices[0].to_string().contains("another version"),
        "{notices:?}"
    );
    assert!(!old.exists());
}
