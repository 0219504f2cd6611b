//! Engines that keep the clients of several rules in one directory.

use std::fs;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use earrrl::{
    Charge, Clock, Cost, Engine, ManualClock, MemoryEngine, Mode, StateDirectory, SystemClock,
};

use super::{AVERAGE, BUCKET, Scratch, pruned};

fn admitted<C: Clock>(engine: &MemoryEngine<C>, name: &str, rule: &str, key: &[u8]) -> usize {
    let rule = engine.prepare(name, &rule.parse().unwrap()).unwrap();
    let charge = Charge {
        rule,
        key,
        cost: Cost::ONE,
    };
    let check = |_: &usize| {
        engine
            .decide(&[charge], Mode::Check, None)
            .into_inner()
            .unwrap()
    };
    (0..9).filter(|nth| check(nth).allowed).count()
}

#[test]
fn engines_of_one_directory_share_the_clients_of_every_rule() {
    let scratch = Scratch::alone();
    let one = MemoryEngine::with_state_for(100, &scratch.0).unwrap();
    let two = MemoryEngine::with_state_for(100, &scratch.0).unwrap();
    assert_eq!(admitted(&one, "login", BUCKET, b"alice"), 5);
    assert_eq!(admitted(&two, "login", BUCKET, b"alice"), 0);
    assert_eq!(admitted(&two, "search", AVERAGE, b"alice"), 5);
    drop((one, two));
    let three = MemoryEngine::with_state_for(100, &scratch.0).unwrap();
    assert_eq!(admitted(&three, "search", AVERAGE, b"alice"), 0);
    assert_eq!(admitted(&three, "login", BUCKET, b"alice"), 0);
    assert_eq!(admitted(&three, "login", BUCKET, b"bob"), 5);
    assert_eq!(three.swept(), []);
    let mut names: Vec<_> = fs::read_dir(&scratch.0)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    names.sort();
    assert_eq!(
        names,
        ["_engine.1.earrrl", "login.1.earrrl", "search.1.earrrl"]
    );
}

#[test]
fn rules_with_larger_states_are_refused_unless_they_may_start_empty() {
    let scratch = Scratch::alone();
    let engine = MemoryEngine::with_state_for(100, &scratch.0).unwrap();
    let windows = "fixed-window 5/1d";
    let error = engine
        .prepare("windows", &"sliding-log 5/1d".parse().unwrap())
        .unwrap_err();
    assert!(
        error
            .to_string()
            .contains("rule windows: state file: `sliding-log"),
        "{error}"
    );
    let directory = StateDirectory::open(&scratch.0)
        .unwrap()
        .accept_rules_in_memory(true);
    let clock = SystemClock::with_anchor(directory.anchor());
    let engine = MemoryEngine::in_directory(100, directory, clock).unwrap();
    assert_eq!(admitted(&engine, "windows", windows, b"alice"), 5);
    assert_eq!(admitted(&engine, "windows", windows, b"alice"), 0);
}

#[test]
fn a_file_of_another_directory_is_refused() {
    let one = Scratch::alone();
    let two = Scratch::new();
    for scratch in [&one, &two] {
        let engine = MemoryEngine::with_state_for(100, &scratch.0).unwrap();
        assert_eq!(admitted(&engine, "login", BUCKET, b"alice"), 5);
    }
    fs::copy(one.file(), two.file()).unwrap();
    let engine = MemoryEngine::with_state_for(100, &two.0).unwrap();
    let error = engine
        .prepare("login", &BUCKET.parse().unwrap())
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("hash of a known key") || error.contains("hash key"),
        "{error}"
    );
}

/// Balances refill by the clock of the directory, whatever clock the processes have had before.
#[test]
fn a_clock_of_the_anchor_continues_the_time_of_the_directory() {
    let scratch = Scratch::alone();
    let directory = StateDirectory::open(&scratch.0).unwrap();
    let start = SystemClock::with_anchor(directory.anchor()).now();
    let clock = Arc::new(ManualClock::new(start));
    let engine = MemoryEngine::in_directory(100, directory, Arc::clone(&clock)).unwrap();
    let rule = "token-bucket 5 refill=1/h";
    assert_eq!(admitted(&engine, "login", rule, b"alice"), 5);
    clock.advance(std::time::Duration::from_secs(2 * 3600));
    assert_eq!(admitted(&engine, "login", rule, b"alice"), 2);
}

#[test]
fn files_are_listed_copied_and_pruned() {
    let scratch = Scratch::alone();
    let target = Scratch::new();
    let engine = MemoryEngine::with_state_for(100, &scratch.0).unwrap();
    for key in 0..7_u8 {
        assert_eq!(admitted(&engine, "login", BUCKET, &[key]), 5);
    }
    let listed = StateDirectory::list(&scratch.0).unwrap();
    let [root, login] = &listed[..] else {
        panic!("{listed:?}")
    };
    let login = login.as_ref().unwrap();
    assert_eq!(root.as_ref().unwrap().clients, 0);
    assert_eq!(
        (&*login.name, login.generation, login.clients),
        ("login", 1, 7)
    );
    assert_eq!(
        (&*login.limit, login.capacity, login.claims),
        (BUCKET, 100, 0)
    );
    assert_eq!(login.bytes, fs::metadata(&login.path).unwrap().len());

    // The file is in use.
    fs::write(scratch.0.join(".login.tmp"), "unfinished").unwrap();
    let names = ["login".to_string()];
    let found = StateDirectory::prune(&scratch.0, &names).unwrap();
    let [Ok(unfinished), Err(used)] = &found[..] else {
        panic!("{found:?}")
    };
    assert_eq!(*unfinished, scratch.0.join(".login.tmp"));
    assert!(
        used.to_string()
            .contains("login.1.earrrl: processes: some; expected none"),
        "{used}"
    );

    let copied = StateDirectory::copy(&scratch.0, &target.0).unwrap();
    assert_eq!(copied.len(), 2);
    assert_eq!(
        StateDirectory::copy(&scratch.0, &target.0).unwrap().len(),
        0
    );
    let copy = MemoryEngine::with_state_for(100, &target.0).unwrap();
    assert_eq!(admitted(&copy, "login", BUCKET, &[3]), 0);
    drop((engine, copy));

    assert_eq!(pruned(&scratch, &names), [scratch.file()]);
    fs::write(target.file(), "no header").unwrap();
    let damaged = StateDirectory::list(&target.0).unwrap();
    assert!(
        damaged[1]
            .as_ref()
            .unwrap_err()
            .to_string()
            .contains("length"),
        "{damaged:?}"
    );
    assert!(StateDirectory::list(target.0.join("absent")).is_err());
}

/// A reload with a capacity that needs no other file leaves the store as it is, for this process and
/// for others. Another capacity makes the next generation, in which all go on.
#[test]
fn a_capacity_may_change_while_others_use_the_file() {
    let scratch = Scratch::alone();
    let path = scratch.0.clone();
    let (done, waiting) = mpsc::channel();
    std::thread::spawn(move || {
        let [one, two] = [(); 2].map(|()| MemoryEngine::with_state_for(1000, &path).unwrap());
        let admitted_by = [&one, &two].map(|engine| admitted(engine, "login", BUCKET, b"alice"));
        assert_eq!(admitted_by, [5, 0]);
        one.prepare_with("login", &BUCKET.parse().unwrap(), 1005)
            .unwrap();
        for (engine, key) in [(&one, b"bob"), (&two, b"eve")] {
            assert_eq!(admitted(engine, "login", BUCKET, key), 5);
            assert_eq!(admitted(engine, "login", BUCKET, b"alice"), 0);
        }
        let rule = two
            .prepare_with("login", &BUCKET.parse().unwrap(), 1000)
            .unwrap();
        one.prepare_with("login", &BUCKET.parse().unwrap(), 9000)
            .unwrap();
        for (key, expected) in [
            (&b"alice"[..], 0),
            (b"bob", 0),
            (b"carol", 5),
            (b"carol", 0),
        ] {
            let charge = Charge {
                rule,
                key,
                cost: Cost::ONE,
            };
            let check = || {
                two.decide(&[charge], Mode::Check, None)
                    .into_inner()
                    .unwrap()
            };
            assert_eq!(
                (0..9).filter(|_| check().allowed).count(),
                expected,
                "{key:?}"
            );
        }
        for tidied in [&two, &one, &two, &one] {
            tidied.tidy();
        }
        assert_eq!(two.top(rule, 9).unwrap().len(), 4);
        done.send(()).unwrap();
    });
    waiting.recv_timeout(Duration::from_secs(30)).unwrap();
}
