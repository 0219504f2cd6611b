//! Programs that tests start: those that `scripts/setup` installs, or else those on the machine's
//! PATH.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns the folder of the programs that `scripts/setup` installs.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools")
}

/// Returns the path of a program in `target/tools/bin` or on the PATH. A missing program is an
/// error, never a skipped test.
pub fn tool(name: &str) -> Command {
    let ours = folder().join("bin").join(name);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let machines = std::env::split_paths(&path).map(|folder| folder.join(name));
    let mut found = std::iter::once(ours)
        .chain(machines)
        .filter(|file| file.is_file());
    let program: PathBuf = found
        .next()
        .unwrap_or_else(|| panic!("{name} is not installed: run scripts/setup"));
    Command::new(program)
}

/// Returns the path of Valkey, or of the Redis that `EARRRL_TEST_REDIS` names.
pub fn redis_server() -> Command {
    std::env::var_os("EARRRL_TEST_REDIS").map_or_else(|| tool("valkey-server"), Command::new)
}
