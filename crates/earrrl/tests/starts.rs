//! The starts of other processes. A process that is being started has copies of all open files of
//! this one, and so their locks, until its program begins.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

use std::process::{Child, Command};
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

static STARTS: RwLock<()> = RwLock::new(());

/// Starts a process. Tests of this binary start processes only by this function.
pub(crate) fn start(command: &mut Command) -> Child {
    let _starting = STARTS.write().unwrap_or_else(PoisonError::into_inner);
    command.spawn().unwrap()
}

/// Lets no process start while the returned guard lives, so that a file has no users but those that
/// a test knows of. A thread must not have two such guards.
pub(crate) fn no_starts() -> RwLockReadGuard<'static, ()> {
    STARTS.read().unwrap_or_else(PoisonError::into_inner)
}
