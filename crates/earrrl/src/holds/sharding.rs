//! The number of shards of reservations, and their locks.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// The number of shards, a power of two.
pub(super) const SHARDS: usize = 16;

/// Locks a shard, also after a thread has panicked with it: every change leaves it consistent.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
