//! Open connections: the limits on their number in all and by address, their deadlines, and their
//! end at shutdown.
//!
//! A connection stores its deadline as a number. Once a second [`Connections::tick`] wakes the
//! connections that are past their deadlines, so that requests set no timers.

mod table;
mod wait;

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Context;

use earrrl::internal::lock;
use tokio::sync::Notify;

use self::table::{ConnectionEntry, ConnectionTable};
use crate::config::server::Limits;
use earrrl_tower::Prefixes;

pub use self::table::{PlaceKind, Refused};
pub use self::wait::{StopGrace, WaitEnd};

/// The time in seconds that an idle connection stays open when the server stops.
const LAST_MOMENT: u32 = 1;
/// The number of requests without a valid token after which a connection is closed.
const MOST_REFUSED_TOKENS: u8 = 3;
/// The approximate size of a connection's buffers and task in bytes, besides the bytes that it
/// holds.
const CONNECTION: usize = 32 * 1024;
/// The memory of one HTTP/2 stream's place in its connection, in bytes: the entries of `h2` for the stream, its
/// request and its response. A connection keeps the places of the most streams that it ever had at once.
pub const STREAM_PLACE: usize = 2048;
/// The number of streams that an HTTP/2 connection always gets. Their places are part of the memory that is documented
/// for a connection.
const FEWEST_STREAMS: u32 = 8;
/// An HTTP/2 connection gets at most this part of the memory that is left for streams' places, so that those who
/// connect later still get some.
const PART_OF_LEFT: usize = 4;
/// The smallest number of freed bytes that is worth returning to the system.
const WORTH_GIVING_BACK: usize = 1024 * 1024;

/// All open connections of a server.
#[derive(Debug, Default)]
pub struct Connections {
    limits: Limits,
    /// The seconds since the server started, which [`Connections::tick`] increments.
    now: AtomicU32,
    stopping: AtomicBool,
    held: AtomicUsize,
    /// The number of bytes that HTTP/2 connections have reserved for the places of their streams.
    places: AtomicUsize,
    /// The largest number of bytes in use since memory was last returned to the system.
    highest: AtomicUsize,
    table: Mutex<ConnectionTable>,
    all_gone: Notify,
}

/// One admitted connection; dropping it frees its place for another one.
#[derive(Debug)]
pub struct Connection {
    all: Arc<Connections>,
    entry: Arc<ConnectionEntry>,
    index: usize,
    address: IpAddr,
    held: AtomicUsize,
    /// The number of bytes that are reserved for the places of streams.
    places: AtomicUsize,
    kind: PlaceKind,
    /// The number of HTTP requests on this connection with a wrong token, or with none.
    refused_tokens: AtomicU8,
}

/// The state of a connection that waits for input or output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionState {
    /// The connection may continue to wait.
    Good,
    /// The server is stopping: the connection must answer the requests that have arrived, then
    /// close.
    Stopping,
    /// The deadline of the connection has passed, so it must close.
    Overdue,
}

impl Connections {
    /// Creates an empty set of connections with these limits.
    pub fn new(limits: Limits) -> Arc<Self> {
        Arc::new(Self {
            limits,
            ..Self::default()
        })
    }

    /// Admits a connection from `address`.
    ///
    /// # Errors
    /// Returns [`Refused`] if a limit is reached or the server is stopping.
    pub fn admit(self: &Arc<Self>, address: IpAddr) -> Result<Connection, Refused> {
        // For IPv6 the limit applies to the network that a provider assigns to one subscriber.
        let address = Prefixes::default().network(address);
        let mut table = self.table();
        if self.stopping.load(Relaxed) {
            return Err(Refused::Stopping);
        }
        if table.usual() >= self.limits.connections {
            return Err(Refused::Full);
        }
        table.join(address, self.limits.connections_by_address)?;
        let inserted = table.insert(self.deadline(self.limits.idle));
        Ok(self.connection(inserted, address, PlaceKind::Usual))
    }

    /// Admits a connection for a health check beyond the limits, for a short time. If all such
    /// places are taken, the oldest connection in them that has sent nothing is closed, or if all
    /// have sent something, the oldest. Returns `None` if too many connections that were asked to
    /// close are still open.
    pub fn admit_reserved(self: &Arc<Self>, address: IpAddr) -> Option<Connection> {
        let mut table = self.table();
        if self.stopping.load(Relaxed) {
            return None;
        }
        let inserted = table.insert_reserved(self.deadline(LAST_MOMENT))?;
        Some(self.connection(inserted, address, PlaceKind::Reserved))
    }

    fn connection(
        self: &Arc<Self>,
        (index, entry): (usize, Arc<ConnectionEntry>),
        address: IpAddr,
        kind: PlaceKind,
    ) -> Connection {
        Connection {
            all: Arc::clone(self),
            entry,
            index,
            address,
            held: AtomicUsize::new(0),
            places: AtomicUsize::new(0),
            kind,
            refused_tokens: AtomicU8::new(0),
        }
    }

    /// Returns the number of open connections.
    pub fn len(&self) -> usize {
        self.table().len()
    }

    /// Returns true if there are no open connections.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of bytes that all connections together hold.
    pub fn held(&self) -> usize {
        self.held.load(Relaxed)
    }

    /// Records that a second has passed, and wakes the connections that are past their deadlines.
    pub fn tick(&self) {
        let now = self.now.fetch_add(1, Relaxed) + 1;
        for entry in self.table().entries() {
            if entry.deadline.load(Relaxed) <= now {
                entry.waker.wake();
            }
        }
    }

    /// Returns true if connections use far less memory than at their peak, so that the freed memory
    /// should be returned to the system. This must be called once a second.
    pub fn memory_has_fallen(&self) -> bool {
        let present = self.in_use(self.len());
        let highest = self.highest.fetch_max(present, Relaxed).max(present);
        let fallen = highest - present;
        let has_fallen = fallen >= WORTH_GIVING_BACK && fallen >= highest / 4;
        if has_fallen {
            self.highest.store(present, Relaxed);
        }
        has_fallen
    }

    /// Returns about how many bytes so many open connections use.
    fn in_use(&self, connections: usize) -> usize {
        self.held() + self.places.load(Relaxed) + CONNECTION * connections
    }

    /// Stops admitting connections, and asks every connection to finish.
    pub fn stop(&self) {
        let table = self.table();
        self.stopping.store(true, Relaxed);
        for entry in table.entries() {
            entry.waker.wake();
        }
    }

    /// Returns true once [`Connections::stop`] was called.
    pub fn are_stopping(&self) -> bool {
        self.stopping.load(Relaxed)
    }

    /// Waits until all connections are closed.
    pub async fn gone(&self) {
        loop {
            let notified = self.all_gone.notified();
            if self.is_empty() {
                return;
            }
            notified.await;
        }
    }

    fn deadline(&self, seconds: u32) -> u32 {
        // One second is added, since the current second has partly passed.
        self.now
            .load(Relaxed)
            .saturating_add(seconds)
            .saturating_add(1)
    }

    fn table(&self) -> MutexGuard<'_, ConnectionTable> {
        // Every change is a single insert or remove, so a panic leaves nothing half done.
        lock(&self.table)
    }
}

impl Connection {
    /// Counts the connection as one of `address` instead of its present address. A load balancer's
    /// connection belongs to the client that it names.
    ///
    /// # Errors
    /// Returns [`Refused::AddressFull`] if this address has too many connections.
    pub fn belongs_to(&mut self, address: IpAddr) -> Result<(), Refused> {
        let address = Prefixes::default().network(address);
        if self.kind == PlaceKind::Usual && address != self.address {
            let mut table = self.all.table();
            table.join(address, self.all.limits.connections_by_address)?;
            table.leave(self.address);
            self.address = address;
        }
        Ok(())
    }

    /// Returns a number that no other open connection has.
    pub fn id(&self) -> usize {
        self.index
    }

    /// Counts a request with a wrong token, or with none. Returns true if the connection must be
    /// closed after it.
    pub fn refuses_a_token(&self) -> bool {
        self.refused_tokens.fetch_add(1, Relaxed) + 1 >= MOST_REFUSED_TOKENS
    }

    /// Returns the kind of place that the connection takes.
    pub fn kind(&self) -> PlaceKind {
        self.kind
    }

    /// Marks the connection as idle: it may be silent for the configured idle time from now on.
    pub fn idle(&self) {
        self.entry.busy.store(false, Relaxed);
        self.set_deadline(self.all.limits.idle);
    }

    /// Marks the connection as busy: from now on the client has the configured request time to send
    /// its request or to read its response.
    pub fn busy(&self) {
        self.entry.busy.store(true, Relaxed);
        self.set_deadline(self.all.limits.request);
    }

    /// Returns true while a request is in flight.
    pub fn is_busy(&self) -> bool {
        self.entry.busy.load(Relaxed)
    }

    /// Sets a last deadline one second ahead, which the client cannot extend.
    pub fn leave(&self) {
        self.set_last_deadline(LAST_MOMENT);
    }

    /// Sets a last deadline one request time ahead, which the client cannot extend.
    pub fn finish(&self) {
        self.set_last_deadline(self.all.limits.request);
    }

    fn set_last_deadline(&self, seconds: u32) {
        self.set_deadline(seconds);
        self.entry.leaving.store(true, Relaxed);
    }

    fn set_deadline(&self, seconds: u32) {
        if self.kind == PlaceKind::Usual && !self.entry.leaving.load(Relaxed) {
            self.entry
                .deadline
                .store(self.all.deadline(seconds), Relaxed);
        }
    }

    /// Returns whether the connection may continue to wait. The connection's task must call this
    /// before it waits.
    pub fn standing(&self, context: &Context<'_>) -> ConnectionState {
        self.entry.waker.register(context.waker());
        if self.entry.deadline.load(Relaxed) <= self.all.now.load(Relaxed) {
            ConnectionState::Overdue
        } else if self.all.stopping.load(Relaxed) {
            ConnectionState::Stopping
        } else {
            ConnectionState::Good
        }
    }

    /// Reserves the places of this connection's HTTP/2 streams, and returns how many streams it may have at once: as
    /// many as are configured, or fewer if there are many connections. All places together take no more than the limit
    /// on held bytes, besides the few that each connection always gets.
    ///
    /// The number is fixed before the first request, because a client learns it with the server's settings. So memory
    /// is bounded without refusing a request of a client that keeps to it. A connection reserves once.
    pub fn reserve_streams(&self) -> u32 {
        let most = self.all.limits.streams;
        let mut streams = 0;
        let reserve = |reserved: usize| {
            let left = self.all.limits.held_bytes.saturating_sub(reserved);
            let part = left / PART_OF_LEFT / STREAM_PLACE;
            let part = u32::try_from(part).unwrap_or(u32::MAX);
            streams = part.max(FEWEST_STREAMS).min(most);
            // The fewest streams are part of the connection, so that they need not be left.
            let counted = streams.saturating_sub(FEWEST_STREAMS) as usize;
            self.places.store(counted * STREAM_PLACE, Relaxed);
            Some(reserved + counted * STREAM_PLACE)
        };
        let _ = self.all.places.fetch_update(Relaxed, Relaxed, reserve);
        streams
    }

    /// Returns true if all connections together hold more than they may.
    pub fn is_memory_short(&self) -> bool {
        self.all.held() > self.all.limits.held_bytes
    }

    /// Records the number of bytes that are held for this connection while it waits. Returns false
    /// if all connections together hold too many bytes, and this connection must be closed.
    pub fn hold(&self, bytes: usize) -> bool {
        let before = self.held.swap(bytes, Relaxed);
        if bytes == before {
            return true;
        }
        self.all.held.fetch_add(bytes, Relaxed);
        let held = self.all.held.fetch_sub(before, Relaxed) - before;
        let enough = bytes < before || held <= self.all.limits.held_bytes;
        if !enough {
            // The peak is recorded now, since the bytes may be freed before the next check.
            self.all.highest.fetch_max(held, Relaxed);
        }
        enough
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let mut table = self.all.table();
        // The peak is recorded now, since many connections may open and close between two checks.
        self.all
            .highest
            .fetch_max(self.all.in_use(table.len()), Relaxed);
        self.hold(0);
        self.all
            .places
            .fetch_sub(self.places.load(Relaxed), Relaxed);
        table.remove(self.index, self.kind, self.address);
        if table.len() == 0 {
            self.all.all_gone.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests;
