//! The open connections of a server by number, with the places that they take.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

use atomic_waker::AtomicWaker;
use slab::Slab;

/// The number of connections for health checks that are admitted beyond the limits.
pub(super) const RESERVED: usize = 16;
/// The largest number of connections beyond the limits, including those that were asked to close
/// and have not closed yet.
pub(super) const MOST_RESERVED: usize = 4 * RESERVED;

/// The reason why a connection was not admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The limit on all connections is reached.
    Full,
    /// The limit on connections from this address is reached.
    AddressFull,
    /// The server is stopping.
    Stopping,
}

/// The kind of place that a connection takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlaceKind {
    /// A place within the limits.
    Usual,
    /// One of a few places that are reserved for health checks.
    Reserved,
}

/// The open connections, and the number of them by address.
#[derive(Debug, Default)]
pub(super) struct ConnectionTable {
    entries: Slab<Arc<ConnectionEntry>>,
    by_address: HashMap<IpAddr, usize>,
    /// The number of open connections beyond the limits.
    reserved: usize,
    /// The connections beyond the limits that were not asked to close, oldest first.
    places: Vec<Arc<ConnectionEntry>>,
}

/// The part of a connection's state that other tasks read or change.
#[derive(Debug, Default)]
pub(super) struct ConnectionEntry {
    /// The second at which the connection must close.
    pub(super) deadline: AtomicU32,
    /// Wakes the task of the connection.
    pub(super) waker: AtomicWaker,
    /// True while a request is in flight.
    pub(super) busy: AtomicBool,
    /// True once the client can no longer extend the connection's deadline.
    pub(super) leaving: AtomicBool,
}

impl ConnectionTable {
    /// Returns the number of all open connections.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns the number of open connections within the limits.
    pub(super) fn usual(&self) -> usize {
        self.entries.len() - self.reserved
    }

    /// Returns all open connections.
    pub(super) fn entries(&self) -> impl Iterator<Item = &ConnectionEntry> {
        self.entries.iter().map(|(_, entry)| &**entry)
    }

    /// Adds a connection with this deadline. Returns its number and its entry.
    pub(super) fn insert(&mut self, deadline: u32) -> (usize, Arc<ConnectionEntry>) {
        let entry = Arc::new(ConnectionEntry {
            deadline: AtomicU32::new(deadline),
            ..ConnectionEntry::default()
        });
        (self.entries.insert(Arc::clone(&entry)), entry)
    }

    /// Adds a connection beyond the limits, and asks another one to close if their places are
    /// taken. Returns `None` if too many that were asked to close are still open.
    pub(super) fn insert_reserved(
        &mut self,
        deadline: u32,
    ) -> Option<(usize, Arc<ConnectionEntry>)> {
        if self.reserved >= MOST_RESERVED {
            return None;
        }
        if self.places.len() >= RESERVED {
            // Connections with an incomplete request must not keep out a health check, so the
            // oldest one is closed if none is silent.
            let silent = self
                .places
                .iter()
                .position(|entry| !entry.busy.load(Relaxed));
            let gone = self.places.remove(silent.unwrap_or(0));
            gone.deadline.store(0, Relaxed);
            gone.waker.wake();
        }
        self.reserved += 1;
        let (index, entry) = self.insert(deadline);
        self.places.push(Arc::clone(&entry));
        Some((index, entry))
    }

    /// Removes the connection with this number, which was admitted for `address`.
    pub(super) fn remove(&mut self, index: usize, kind: PlaceKind, address: IpAddr) {
        let entry = self.entries.try_remove(index);
        match kind {
            PlaceKind::Usual => self.leave(address),
            PlaceKind::Reserved => {
                self.reserved -= 1;
                self.places
                    .retain(|known| entry.as_ref().is_none_or(|gone| !Arc::ptr_eq(known, gone)));
            }
        }
    }

    /// Counts one more connection of an address, unless it has `most` already.
    pub(super) fn join(&mut self, address: IpAddr, most: usize) -> Result<(), Refused> {
        let count = self.by_address.entry(address).or_default();
        if *count >= most {
            return Err(Refused::AddressFull);
        }
        *count += 1;
        Ok(())
    }

    /// Counts one connection less of an address.
    pub(super) fn leave(&mut self, address: IpAddr) {
        if let Some(count) = self.by_address.get_mut(&address) {
            *count -= 1;
            if *count == 0 {
                self.by_address.remove(&address);
            }
        }
    }
}
