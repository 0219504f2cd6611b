//! Engines that keep the clients of several rules in one directory.

use std::fs;
use std::sync::Arc;

use earrrl::internal::StateDirectory;
use earrrl::{Charge, Clock, Cost, Engine, ManualClock, MemoryEngine, Mode, SystemClock};

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
    let files = ["_engine", "login", "search"].map(|rule| scratch.files_of(rule).len());
    // The fourth file is that of reservations.
    assert_eq!(
        (files, fs::read_dir(&scratch.0).unwrap().count()),
        ([1; 3], 4)
    );
}

#[test]
fn limits_of_one_store_share_a_file_where_states_mean_the_same() {
    let scratch = Scratch::alone();
    let engines = [(); 2].map(|()| MemoryEngine::with_state_for(100, &scratch.0).unwrap());
    for (nth, engine) in engines.iter().enumerate() {
        for (name, text, left) in [
            ("api", "fixed-window 5/1d", [4, 1]),
            ("api-more", "fixed-window 9/1d", [7, 4]),
            ("api-else", "fixed-window 9/2d", [8, 7]),
            ("api", "fixed-window 5/1d", [2, 0]),
        ] {
            let rule = engine.prepare_in("api", name, &text.parse().unwrap());
            let charge = Charge {
                rule: rule.unwrap(),
                key: b"alice",
                cost: Cost::ONE,
            };
            let decision = engine.decide(&[charge], Mode::Check, None);
            assert_eq!(
                decision.into_inner().unwrap().remaining,
                left[nth],
                "{name}"
            );
        }
    }
    let files = ["api", "api-more", "api-else"].map(|rule| scratch.files_of(rule).len());
    assert_eq!(files, [1, 0, 1]);
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
    assert_eq!((&*login.name, login.clients), ("login", 7));
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
            .contains(".earrrl: processes: some; expected none"),
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

    let file = scratch.file();
    assert_eq!(pruned(&scratch, &names), [file]);
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

/// Another capacity takes effect at the first start without other users of the file, which has the clients.
#[test]
fn another_capacity_takes_effect_when_nobody_uses_the_file() {
    let scratch = Scratch::alone();
    let engine = || MemoryEngine::with_state_for(1000, &scratch.0).unwrap();
    let one = engine();
    let bucket = BUCKET.parse().unwrap();
    assert_eq!(admitted(&one, "login", BUCKET, b"alice"), 5);
    let capacity_of = |engine: &MemoryEngine, capacity| {
        engine.prepare_with("login", &bucket, capacity).unwrap();
        let listed = StateDirectory::list(&scratch.0).unwrap();
        let notices = engine.notices().into_iter();
        let notices: Vec<_> = notices.map(|notice| notice.to_string()).collect();
        (listed[1].as_ref().unwrap().capacity, notices)
    };
    let stays =
        "login: keeps its capacity of 1000: another capacity takes effect at the next start";
    assert_eq!(capacity_of(&one, 1005), (1000, vec![]), "as many sets");
    assert_eq!(capacity_of(&one, 9000), (1000, vec![stays.into()]));
    let two = engine();
    assert_eq!(capacity_of(&two, 9000), (1000, vec![stays.into()]));
    drop((one, two));
    let three = engine();
    assert_eq!(capacity_of(&three, 9000), (9000, vec![]));
    assert_eq!(admitted(&three, "login", BUCKET, b"alice"), 0);
}

/// A rule whose limit gets another meaning has another file. The former one goes when nobody uses it.
#[test]
fn another_meaning_is_another_file() {
    let scratch = Scratch::alone();
    let engine = || MemoryEngine::with_state_for(100, &scratch.0).unwrap();
    let window = "fixed-window 5/3650d";
    let said = |engine: &MemoryEngine| {
        let notices = engine.notices().into_iter();
        notices.map(|notice| notice.to_string()).collect::<Vec<_>>()
    };
    let files = || scratch.files_of("login").len();
    let one = engine();
    let two = engine();
    assert_eq!(admitted(&one, "login", BUCKET, b"alice"), 5);
    assert_eq!(admitted(&two, "login", BUCKET, b"alice"), 0);
    assert_eq!((said(&one), said(&two), files()), (vec![], vec![], 1));
    assert_eq!(admitted(&one, "login", window, b"alice"), 5);
    assert_eq!(admitted(&two, "login", BUCKET, b"bob"), 5);
    let afresh = [format!(
        "login: begins afresh, since `{BUCKET}` had other states"
    )];
    assert_eq!(
        (said(&one), said(&two), files()),
        (afresh.into(), vec![], 2)
    );
    // A survey shows the clients of the present file.
    let id = one.prepare("login", &window.parse().unwrap()).unwrap();
    assert_eq!(one.survey(id, 9).unwrap().rates.clients(), 1);
    one.tidy();
    assert_eq!(files(), 2, "in use");
    drop(two);
    one.tidy();
    assert_eq!(files(), 1);
    drop(one);
    let three = engine();
    assert_eq!(admitted(&three, "login", AVERAGE, b"alice"), 5);
    let afresh = format!("login: begins afresh, since `{window} leaky` had other states");
    assert_eq!((said(&three), files()), (vec![afresh], 1));
}
