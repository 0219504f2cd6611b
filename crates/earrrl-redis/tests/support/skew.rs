//! Servers whose wall clock is wrong by an amount that a test sets.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

/// Returns the environment variables of a server in `folder` whose clock can be shifted.
pub fn environment(folder: &Path) -> [(&'static str, PathBuf); 2] {
    let skew = folder.join("skew");
    std::fs::write(&skew, 0i64.to_le_bytes()).unwrap();
    [
        ("LD_PRELOAD", library().to_path_buf()),
        ("EARRRL_TEST_SKEW", skew),
    ]
}

/// Sets the clock of the server in `folder` behind by `by`.
pub fn put_behind(folder: &Path, by: Duration) {
    // The file is changed in place, since the server has mapped it into memory.
    let mut file = OpenOptions::new()
        .write(true)
        .open(folder.join("skew"))
        .unwrap();
    file.write_all(&(-(by.as_micros() as i64)).to_le_bytes())
        .unwrap();
}

/// Returns the library that shifts the clock, which is compiled once per process.
fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let unique = format!("earrrl-skew-{}.so", std::process::id());
        let path = std::env::temp_dir().join(unique);
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/skew.c");
        let mut cc = Command::new("cc");
        let made = cc
            .args(["-shared", "-fPIC", "-O1", "-o"])
            .arg(&path)
            .arg(source)
            .status();
        assert!(made.expect("cc is installed: Rust links with it").success());
        path
    })
}
