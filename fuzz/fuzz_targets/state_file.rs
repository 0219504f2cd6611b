//! Arbitrary state files: opening one is an error, or gives a limiter that admits new clients up to
//! the limit.
#![no_main]

use std::fs::{self, OpenOptions, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};

use arbitrary::Arbitrary;
use earrrl::{Limiter, Rule};
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
enum Input {
    /// The whole content of the file.
    Whole(Vec<u8>),
    /// Changes of a valid file: bytes at a place, then a new length if the number is odd.
    Changed(Vec<(u16, Vec<u8>)>, u16),
}

fn open(directory: &Path) -> Option<Limiter<u64>> {
    let rule: Rule = "token-bucket 5 refill=1/d".parse().ok()?;
    Limiter::builder(rule)
        .capacity(20)
        .state_file(directory.join("fuzz"))
        .build()
        .ok()
}

/// Returns the path of the only file of states in the directory. Its name contains a tag for the meaning of the states.
fn state_file(directory: &Path) -> PathBuf {
    let entries = fs::read_dir(directory).unwrap();
    let mut paths = entries.map(|entry| entry.unwrap().path());
    let is_state_file = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy();
        name.starts_with("fuzz.") && name.ends_with(".earrrl")
    };
    paths.find(is_state_file).expect("a file of states")
}

fuzz_target!(|input: Input| {
    let directory = std::env::temp_dir().join(format!("earrrl-fuzz-{}", std::process::id()));
    let _ = fs::remove_dir_all(&directory);
    drop(open(&directory).expect("a new file can be opened"));
    let path = state_file(&directory);
    match input {
        Input::Whole(bytes) => {
            fs::write(&path, bytes).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        }
        Input::Changed(changes, length) => {
            let file = OpenOptions::new().write(true).open(&path).unwrap();
            for (at, bytes) in changes {
                file.write_all_at(&bytes, at.into()).unwrap();
            }
            if length % 2 == 1 {
                file.set_len(length.into()).unwrap();
            }
        }
    }
    if let Some(limiter) = open(&directory) {
        for client in 0..3 {
            let admitted = (0..9)
                .filter(|_| limiter.check(&client).is_allowed())
                .count();
            assert!(admitted <= 5, "{admitted} requests of client {client}");
        }
    }
});
