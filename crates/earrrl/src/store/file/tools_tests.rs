use std::fs::{self, File, OpenOptions, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::string::ToString;
use std::{env, format, process};

use super::super::header::FIXED;
use super::super::open::read_header;
use super::*;
use crate::Rule;

const RULE: &str = "token-bucket 5 refill=1/d";

/// Returns the name of the file of a rule. The root is a bucket too.
fn name(rule: &str) -> String {
    let limit: Rule = RULE.parse().unwrap();
    Stem(rule.into()).with_tag(tag_of(limit.limit())).text()
}

/// A directory with files of the rules `login` and `search`, which is removed at the end of a test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = env::temp_dir().join(format!("earrrl-tools-{name}-{}", process::id()));
        let scratch = Self(path);
        ["login", "search"]
            .iter()
            .for_each(|name| scratch.open(name).unwrap());
        scratch
    }

    fn file(&self, name: &str) -> File {
        OpenOptions::new()
            .read(true)
            .write(true)
            .open(self.0.join(name))
            .unwrap()
    }

    /// Changes the header of `login`, which has a valid checksum again.
    fn change(&self, change: impl FnOnce(&mut FileHeader)) {
        let name = name("login");
        let path = self.0.join(&name);
        let file = NamedFile {
            file: self.file(&name).into(),
            path,
        };
        let mut header = read_header(&file).unwrap();
        change(&mut header);
        file.file.write_all_at(&header.encode(), 0).unwrap();
    }

    /// Opens the file of a rule as an engine does.
    fn open(&self, name: &str) -> Result<(), StateError> {
        let rule: Rule = RULE.parse().unwrap();
        StateDirectory::open(&self.0)?.with_file(name, rule.limit(), 100, |wanted| {
            super::super::open(wanted, |anchor| anchor.wall).map(drop)
        })
    }

    /// Returns the errors of the list, and the error of an engine that opens `login`.
    fn errors(&self) -> (Vec<String>, String) {
        let listed = StateDirectory::list(&self.0).unwrap();
        let errors = listed
            .into_iter()
            .filter_map(Result::err)
            .map(|error| error.to_string());
        let opened = self.open("login").map_err(|error| error.to_string());
        (errors.collect(), opened.err().unwrap_or_default())
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A list has the error that a server would start with.
#[test]
fn a_list_refuses_what_an_engine_refuses() {
    type Change = fn(&mut FileHeader);
    let changes: [(&str, Change); 5] = [
        ("rule", |header| header.rule = "nonsense".into()),
        ("rule", |header| header.rule = "sliding-log 5/1d".into()),
        ("hash function", |header| header.hash ^= 1),
        ("hash of a known key", |header| header.known ^= 1),
        ("hash key", |header| {
            header.key[0] ^= 1;
            header.known = known(&KeyHasher::with_key(&header.key));
        }),
    ];
    for (field, change) in changes {
        let scratch = Scratch::new("list");
        assert_eq!(scratch.errors(), (Vec::new(), String::new()));
        scratch.change(change);
        let (listed, opened) = scratch.errors();
        let [error] = &listed[..] else {
            panic!("{field}: {listed:?}")
        };
        let wanted = format!("{}: {field}: ", name("login"));
        assert!(
            error.contains(&wanted) && opened == *error,
            "{error}; {opened}"
        );
    }
}

/// The time of `_engine` is wrong: too late, which is always refused, or damaged, which is repaired by
/// the first process that uses the file.
#[test]
fn a_list_refuses_a_time_in_the_far_future() {
    let scratch = Scratch::new("time");
    let root = scratch.file(&name("_engine"));
    root.write_all_at(&[0xFF], FIXED as u64).unwrap();
    assert_eq!(scratch.errors(), (Vec::new(), String::new()));
    root.write_all_at(&u64::MAX.to_ne_bytes(), FIXED as u64 + 64)
        .unwrap();
    let (listed, opened) = scratch.errors();
    assert!(
        listed[0].contains(&format!("{}: time: ", name("_engine"))) && listed.len() == 1,
        "{listed:?}"
    );
    assert!(opened.contains(": time: "), "{opened}");
}

#[test]
fn a_file_that_cannot_be_removed_stops_no_other_removal() {
    let scratch = Scratch::new("prune");
    let wrong = scratch.0.join(name("login"));
    fs::set_permissions(&wrong, Permissions::from_mode(0o644)).unwrap();
    let names = ["login", "search"].map(String::from);
    let pruned = StateDirectory::prune(&scratch.0, &names).unwrap();
    let [Err(error), Ok(removed)] = &pruned[..] else {
        panic!("{pruned:?}")
    };
    assert!(error.to_string().contains(": mode: 0644"), "{error}");
    assert_eq!(*removed, scratch.0.join(name("search")));
    assert!(wrong.exists() && !removed.exists());
}

/// A server removes a file at any moment, after it has begun to use another one of the rule.
#[test]
fn a_file_that_is_removed_meanwhile_is_no_error() {
    let scratch = Scratch::new("meanwhile");
    let folder = Folder::open_to_read(&scratch.0).unwrap();
    let mut times = 0;
    let read = while_files_stay(&folder, |files| {
        times += 1;
        if times == 1 {
            fs::remove_file(scratch.0.join(name("login"))).unwrap();
        }
        files
            .iter()
            .try_for_each(|name| open_header(&folder, name).map(drop))
    });
    assert_eq!((read, times), (Ok(()), 2));
}

/// Without its root, every other file of a directory would be useless.
#[test]
fn the_root_of_a_directory_is_not_pruned() {
    let scratch = Scratch::new("root");
    let error = StateDirectory::prune(&scratch.0, &[String::from(ROOT)]).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("rule: _engine; expected the name of a rule"),
        "{error}"
    );
    assert_eq!(fs::read_dir(&scratch.0).unwrap().count(), 3);
}

#[test]
fn files_are_copied_only_to_a_directory_with_their_hash_key() {
    let scratch = Scratch::new("copy");
    let other = Scratch::new("copied");
    fs::remove_file(other.0.join(name("login"))).unwrap();
    let error = StateDirectory::copy(&scratch.0, &other.0).unwrap_err();
    assert!(error.to_string().contains(": hash key: "), "{error}");
    assert!(!other.0.join(name("login")).exists());
    fs::remove_dir_all(&other.0).unwrap();
    assert_eq!(StateDirectory::copy(&scratch.0, &other.0).unwrap().len(), 3);
    assert_eq!(other.errors(), (Vec::new(), String::new()));
}
