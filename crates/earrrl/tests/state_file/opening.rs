//! Opening files: restarts, security, and files of other rules.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use earrrl::internal::{StateDirectory, table::KeyHasher};
use earrrl::{Limiter, Rule};

use super::{BUCKET, CAPACITY, Scratch, field, open};

#[test]
fn a_file_keeps_clients_and_has_one_owner() {
    let scratch = Scratch::alone();
    let first = open(BUCKET, &scratch.path(), 100).unwrap();
    assert_eq!((0..9).filter(|_| first.check(&7).is_allowed()).count(), 5);
    drop(first);
    let second = open(BUCKET, &scratch.path(), 100).unwrap();
    assert!(!second.check(&7).is_allowed());
    assert!(second.check(&8).is_allowed());
    assert_eq!(second.len(), 2);
    let mode = |path| fs::metadata(path).unwrap().mode() & 0o7777;
    assert_eq!(
        (mode(scratch.0.clone()), mode(scratch.file())),
        (0o700, 0o600)
    );
    assert_eq!(fs::read_dir(&scratch.0).unwrap().count(), 1);
}

#[test]
fn two_limiters_of_one_file_have_one_clock() {
    let scratch = Scratch::alone();
    let one = open("gcra 1/s burst=1", &scratch.path(), CAPACITY).unwrap();
    let two = open("gcra 1/s burst=1", &scratch.path(), CAPACITY).unwrap();
    let first = one.check(&1).decided_at();
    let between = two.check(&1).decided_at();
    let last = one.check(&1).decided_at();
    assert!(between.since(first).as_secs() < 1 && last.since(between).as_secs() < 1);
}

#[test]
fn a_file_that_others_could_change_is_refused() {
    let scratch = Scratch::alone();
    let again = || field(open(BUCKET, &scratch.path(), CAPACITY)).0;
    drop(open(BUCKET, &scratch.path(), CAPACITY).unwrap());
    let file = scratch.file();
    let mode = |mode| Permissions::from_mode(mode);
    for wrong in [0o660, 0o606, 0o604, 0o640] {
        fs::set_permissions(&file, mode(wrong)).unwrap();
        assert_eq!(again(), "mode");
    }
    fs::set_permissions(&file, mode(0o600)).unwrap();
    fs::set_permissions(&scratch.0, mode(0o770)).unwrap();
    assert_eq!(again(), "mode");
    fs::set_permissions(&scratch.0, mode(0o700)).unwrap();
    fs::hard_link(&file, scratch.0.join("other")).unwrap();
    assert_eq!(again(), "link count");
    fs::rename(scratch.0.join("other"), scratch.0.join("moved")).unwrap();
    fs::remove_file(&file).unwrap();
    symlink(scratch.0.join("moved"), &file).unwrap();
    assert_eq!(again(), "");
    fs::remove_file(&file).unwrap();
    fs::create_dir(&file).unwrap();
    assert_eq!(again(), "");
    fs::remove_dir(&file).unwrap();
    fs::rename(scratch.0.join("moved"), &file).unwrap();
    assert_eq!(again(), "accepted");
}

#[test]
fn a_symbolic_link_to_a_directory_is_not_followed() {
    let scratch = Scratch::alone();
    drop(open(BUCKET, &scratch.path(), CAPACITY).unwrap());
    let link = Scratch::new();
    symlink(&scratch.0, &link.0).unwrap();
    let (_, text) = field(open(BUCKET, &link.path(), CAPACITY));
    fs::remove_file(&link.0).unwrap();
    assert!(
        text.contains("type: a symbolic link; expected a directory"),
        "{text}"
    );
}

/// In `/dev/shm` and `/tmp`, a file gets a directory of its own, since others can create files there.
#[test]
fn a_file_in_a_directory_of_all_users_has_a_directory_of_its_own() {
    let _alone = crate::starts::no_starts();
    let name = format!("earrrl-shared-{}", std::process::id());
    for parent in ["/dev/shm", "/tmp"].map(Path::new) {
        assert_eq!(
            fs::metadata(parent).unwrap().mode() & 0o7777,
            0o1777,
            "{parent:?}"
        );
        let path = parent.join(format!("{name}.earrrl"));
        let own = Scratch(parent.join(&name), None);
        for admitted in [5, 0] {
            let limiter = open(BUCKET, &path, 100).unwrap();
            assert_eq!(
                (0..9).filter(|_| limiter.check(&7).is_allowed()).count(),
                admitted
            );
        }
        let file = own.files_of(&name).remove(0);
        assert_eq!(fs::metadata(&own.0).unwrap().mode() & 0o7777, 0o700);
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o7777, 0o600);
        fs::set_permissions(&own.0, Permissions::from_mode(0o777)).unwrap();
        assert_eq!(field(open(BUCKET, &path, 100)).0, "mode");
        fs::remove_dir_all(&own.0).unwrap();
        let other = Scratch::new();
        fs::create_dir(&other.0).unwrap();
        symlink(&other.0, &own.0).unwrap();
        let (_, text) = field(open(BUCKET, &path, 100));
        fs::remove_file(&own.0).unwrap();
        assert!(
            text.contains("type: a symbolic link; expected a directory"),
            "{text}"
        );
    }
}

#[test]
fn a_file_of_another_owner_is_refused() {
    let scratch = Scratch::alone();
    drop(open(BUCKET, &scratch.path(), CAPACITY).unwrap());
    // Only root can give a file away.
    if std::os::unix::fs::chown(scratch.file(), Some(12_345), None).is_ok() {
        assert_eq!(field(open(BUCKET, &scratch.path(), CAPACITY)).0, "owner");
    }
}

/// Root and the owner of a file without write permission may list and copy it.
#[test]
fn files_that_cannot_be_written_are_read() {
    let scratch = Scratch::alone();
    let target = Scratch::new();
    let limiter = open(BUCKET, &scratch.path(), 100).unwrap();
    assert!(limiter.check(&7).is_allowed());
    drop(limiter);
    fs::set_permissions(scratch.file(), Permissions::from_mode(0o400)).unwrap();
    // Only root can give a file away.
    for path in [scratch.file(), scratch.0.clone()] {
        let _ = std::os::unix::fs::chown(path, Some(12_345), None);
    }
    let listed = StateDirectory::list(&scratch.0).unwrap();
    assert_eq!(listed[0].as_ref().unwrap().clients, 1);
    assert_eq!(
        StateDirectory::copy(&scratch.0, &target.0).unwrap().len(),
        1
    );
    assert!(
        open(BUCKET, &target.path(), 100)
            .unwrap()
            .check(&7)
            .is_allowed()
    );
    assert_ne!(field(open(BUCKET, &scratch.path(), 100)).0, "accepted");
}

/// The blocks of a sparse copy are allocated before the file is used, so that no write finds the disk
/// full.
#[test]
fn a_sparse_file_gets_its_blocks_when_it_is_opened() {
    let scratch = Scratch::alone();
    drop(open(BUCKET, &scratch.path(), CAPACITY).unwrap());
    let blocks = || fs::metadata(scratch.file()).unwrap().blocks();
    let whole = blocks();
    let length = fs::metadata(scratch.file()).unwrap().len();
    let file = fs::OpenOptions::new()
        .write(true)
        .open(scratch.file())
        .unwrap();
    file.set_len(8192).unwrap();
    file.set_len(length).unwrap();
    assert!(blocks() < whole);
    drop(open(BUCKET, &scratch.path(), CAPACITY).unwrap());
    assert!(blocks() >= whole);
}

#[test]
fn a_file_of_other_keys_is_refused() {
    let scratch = Scratch::alone();
    let used = open(BUCKET, &scratch.path(), CAPACITY).unwrap();
    let text: Rule = BUCKET.parse().unwrap();
    let text = || Limiter::<str>::builder(text.clone()).capacity(CAPACITY);
    let error = text()
        .state_file(scratch.path())
        .build()
        .unwrap_err()
        .to_string();
    assert!(error.contains("hash of a known key"), "{error}");
    let hasher = KeyHasher::with_key(&[1; 16]);
    let error = text()
        .hasher(hasher)
        .state_file(scratch.path())
        .build()
        .unwrap_err()
        .to_string();
    assert!(error.contains("hasher: set; expected none"), "{error}");
    drop(used);
}

#[test]
fn a_changed_limit_of_a_recent_average_keeps_its_file() {
    let scratch = Scratch::alone();
    let first = open(
        "recent-average 4/30d period=30d leaky",
        &scratch.path(),
        100,
    )
    .unwrap();
    assert_eq!((0..9).filter(|_| first.check(&7).is_allowed()).count(), 5);
    let mut second = open(
        "recent-average 6/30d period=30d leaky",
        &scratch.path(),
        100,
    )
    .unwrap();
    assert_eq!((0..9).filter(|_| second.check(&7).is_allowed()).count(), 2);
    second
        .change("recent-average 7/30d period=30d strict".parse().unwrap())
        .unwrap();
    assert!(second.check(&7).is_allowed());
    second.change(BUCKET.parse().unwrap()).unwrap();
    let admitted =
        [&first, &second].map(|limiter| (0..9).filter(|_| limiter.check(&7).is_allowed()).count());
    assert_eq!(admitted, [0, 5], "another file");
}

#[test]
fn algorithms_with_larger_states_are_refused() {
    let scratch = Scratch::alone();
    for rule in [
        "exponential 20/10s",
        "sliding-log 20/10s",
        "sliding-window 20/10s",
    ] {
        let (_, text) = field(open(rule, &scratch.path(), CAPACITY));
        assert!(text.contains("keeps its states in memory only"), "{text}");
    }
    for (rule, bound) in [
        ("fixed-window 8388608/1s", "at most 8388607"),
        ("fixed-window 600000000/1m", "at most 503316479"),
        ("sliding-counter 16777215/1s", "at most 16777214"),
        ("sliding-counter 2000000000/1h", "at most 1073741822"),
    ] {
        let (_, text) = field(open(rule, &scratch.path(), CAPACITY));
        assert!(text.contains(bound), "{text}");
    }
    assert!(!scratch.0.exists());
    assert!(open(BUCKET, &scratch.path(), 0).is_err());
}

#[test]
fn a_changed_quota_of_a_window_keeps_its_file() {
    for name in ["fixed-window", "sliding-counter"] {
        let scratch = Scratch::alone();
        let rule = |quota: &str| format!("{name} {quota}");
        let mut limiter = open(&rule("5/3650d"), &scratch.path(), 100).unwrap();
        assert_eq!((0..9).filter(|_| limiter.check(&7).is_allowed()).count(), 5);
        limiter.change(rule("7/3650d").parse().unwrap()).unwrap();
        assert_eq!((0..9).filter(|_| limiter.check(&7).is_allowed()).count(), 2);
        let mut refused = |quota: &str| limiter.change(rule(quota).parse().unwrap()).unwrap_err();
        assert!(
            refused("1e18/3650d")
                .to_string()
                .contains("expected at most ")
        );
    }
}

/// A state that fits no word exactly is rounded up, since other processes could not find it anywhere
/// else.
#[test]
fn a_file_rounds_counts_of_too_many_digits_up() {
    let scratch = Scratch::alone();
    let rule = "sliding-counter 100000000/3650d";
    let cost = |text: &str| text.parse().unwrap();
    let limiter = open(rule, &scratch.path(), 100).unwrap();
    assert!(
        limiter
            .charge(&7, cost("12345678.123456789"))
            .unwrap()
            .is_allowed()
    );
    assert_eq!(
        limiter.peek(&7, cost("87654321.87")).unwrap().remaining(),
        87_654_321
    );
    assert!(
        !limiter
            .peek(&7, cost("87654321.876543211"))
            .unwrap()
            .is_allowed()
    );
    assert!(!limiter.charge(&8, cost("1e18")).unwrap().is_allowed());
    limiter.refund(&8, cost("1e18"), None);
    assert!(!limiter.check(&8).is_allowed());
    assert!(limiter.check(&9).is_allowed());
}
