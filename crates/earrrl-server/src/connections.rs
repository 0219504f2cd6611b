//! Open connections: the limits on their number in all and by address, their deadlines, and their
//! end at shutdown.
//!
//! A connection stores its deadline as a number. Once a second [`Connections::tick`] wakes the
//! connections that are past their deadlines, so that requests set no timers.

use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::io;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use atomic_waker::AtomicWaker;
use slab::Slab;
use tokio::sync::Notify;

use crate::config::server::Limits;
use earrrl_tower::Prefixes;

/// The time in seconds that an idle connection stays open when the server stops.
const LAST_MOMENT: u32 = 1;
/// The number of requests without a valid token after which a connection is closed.
const MOST_REFUSED_TOKENS: u8 = 3;
/// The number of connections for health checks that are admitted beyond the limits.
const RESERVED: usize = 16;
/// The approximate size of a connection's buffers and task in bytes, besides the bytes that it
/// holds.
const CONNECTION: usize = 32 * 1024;
/// The smallest number of freed bytes that is worth returning to the system.
const WORTH_GIVING_BACK: usize = 1024 * 1024;
/// The largest number of connections beyond the limits, including those that were asked to close
/// and have not closed yet.
const MOST_RESERVED: usize = 4 * RESERVED;

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

/// All open connections of a server.
#[derive(Debug)]
pub struct Connections {
    limits: Limits,
    /// The seconds since the server started, which [`Connections::tick`] increments.
    now: AtomicU32,
    stopping: AtomicBool,
    held: AtomicUsize,
    /// The largest number of bytes in use since memory was last returned to the system.
    highest: AtomicUsize,
    table: Mutex<Table>,
    all_gone: Notify,
}

#[derive(Debug, Default)]
struct Table {
    entries: Slab<Arc<Entry>>,
    by_address: HashMap<IpAddr, usize>,
    /// The number of open connections beyond the limits.
    reserved: usize,
    /// The connections beyond the limits that were not asked to close, oldest first.
    places: Vec<Arc<Entry>>,
}

#[derive(Debug)]
struct Entry {
    deadline: AtomicU32,
    waker: AtomicWaker,
    /// True while a request is in flight.
    busy: AtomicBool,
    /// True once the client can no longer extend the connection's deadline.
    leaving: AtomicBool,
}

/// One admitted connection; dropping it frees its place for another one.
#[derive(Debug)]
pub struct Connection {
    all: Arc<Connections>,
    entry: Arc<Entry>,
    index: usize,
    address: IpAddr,
    held: AtomicUsize,
    kind: PlaceKind,
    /// The number of HTTP requests on this connection with a wrong token, or with none.
    refused_tokens: AtomicU8,
}

/// The kind of place that a connection takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlaceKind {
    /// A place within the limits.
    Usual,
    /// One of a few places that are reserved for health checks.
    Reserved,
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
            now: AtomicU32::new(0),
            stopping: AtomicBool::new(false),
            held: AtomicUsize::new(0),
            highest: AtomicUsize::new(0),
            table: Mutex::default(),
            all_gone: Notify::new(),
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
        if table.entries.len() - table.reserved >= self.limits.connections {
            return Err(Refused::Full);
        }
        table.join(address, self.limits.connections_by_address)?;
        Ok(self.insert(&mut table, address, PlaceKind::Usual, self.limits.idle))
    }

    /// Admits a connection for a health check beyond the limits, for a short time. If all such
    /// places are taken, the oldest connection in them that has sent nothing is closed, or if all
    /// have sent something, the oldest. Returns `None` if too many connections that were asked to
    /// close are still open.
    pub fn admit_reserved(self: &Arc<Self>, address: IpAddr) -> Option<Connection> {
        let mut table = self.table();
        if table.reserved >= MOST_RESERVED || self.stopping.load(Relaxed) {
            return None;
        }
        if table.places.len() >= RESERVED {
            // Connections with an incomplete request must not keep out a health check, so the
            // oldest one is closed if none is silent.
            let silent = table.places.iter().position(|entry| !entry.busy.load(Relaxed));
            let gone = table.places.remove(silent.unwrap_or(0));
            gone.deadline.store(0, Relaxed);
            gone.waker.wake();
        }
        table.reserved += 1;
        let connection = self.insert(&mut table, address, PlaceKind::Reserved, LAST_MOMENT);
        table.places.push(Arc::clone(&connection.entry));
        Some(connection)
    }

    fn insert(
        self: &Arc<Self>,
        table: &mut Table,
        address: IpAddr,
        kind: PlaceKind,
        seconds: u32,
    ) -> Connection {
        let deadline = AtomicU32::new(self.deadline(seconds));
        let (waker, busy) = (AtomicWaker::new(), AtomicBool::new(false));
        let entry = Arc::new(Entry { deadline, waker, busy, leaving: AtomicBool::new(false) });
        let index = table.entries.insert(Arc::clone(&entry));
        let held = AtomicUsize::new(0);
        let refused_tokens = AtomicU8::new(0);
        Connection { all: Arc::clone(self), entry, index, address, held, kind, refused_tokens }
    }

    /// Returns the number of open connections.
    pub fn len(&self) -> usize {
        self.table().entries.len()
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
        for (_, entry) in &self.table().entries {
            if entry.deadline.load(Relaxed) <= now {
                entry.waker.wake();
            }
        }
    }

    /// Returns true if connections use far less memory than at their peak, so that the freed memory
    /// should be returned to the system. This must be called once a second.
    pub fn memory_has_fallen(&self) -> bool {
        let present = self.in_use();
        let highest = self.highest.fetch_max(present, Relaxed).max(present);
        let fallen = highest - present;
        let has_fallen = fallen >= WORTH_GIVING_BACK && fallen >= highest / 4;
        if has_fallen {
            self.highest.store(present, Relaxed);
        }
        has_fallen
    }

    fn in_use(&self) -> usize {
        self.held() + CONNECTION * self.len()
    }

    /// Stops admitting connections, and asks every connection to finish.
    pub fn stop(&self) {
        let table = self.table();
        self.stopping.store(true, Relaxed);
        for (_, entry) in &table.entries {
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
        self.now.load(Relaxed).saturating_add(seconds).saturating_add(1)
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        // Every change is a single insert or remove, so a panic leaves nothing half done.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    /// Counts one more connection of an address, unless it has `most` already.
    fn join(&mut self, address: IpAddr, most: usize) -> Result<(), Refused> {
        let count = self.by_address.entry(address).or_default();
        if *count >= most {
            return Err(Refused::AddressFull);
        }
        *count += 1;
        Ok(())
    }

    /// Counts one connection less of an address.
    fn leave(&mut self, address: IpAddr) {
        if let Some(count) = self.by_address.get_mut(&address) {
            *count -= 1;
            if *count == 0 {
                self.by_address.remove(&address);
            }
        }
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

    /// Waits for `work` as long as a request may take, and at most a moment once the server is
    /// stopping.
    ///
    /// # Errors
    /// Returns the error of `work`, or `TimedOut`.
    pub async fn in_time<T>(&self, work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
        self.busy();
        let mut work = pin!(work);
        let mut leaving = false;
        let result = poll_fn(|context| {
            if let Poll::Ready(result) = work.as_mut().poll(context) {
                return Poll::Ready(result);
            }
            match self.standing(context) {
                ConnectionState::Overdue => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
                ConnectionState::Stopping if !leaving => {
                    leaving = true;
                    self.leave();
                    Poll::Pending
                }
                ConnectionState::Stopping | ConnectionState::Good => Poll::Pending,
            }
        })
        .await;
        self.idle();
        result
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
            self.entry.deadline.store(self.all.deadline(seconds), Relaxed);
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
        // The peak is recorded now, since many connections may open and close between two checks.
        self.all.highest.fetch_max(self.all.in_use(), Relaxed);
        self.hold(0);
        let mut table = self.all.table();
        table.entries.try_remove(self.index);
        if self.kind == PlaceKind::Reserved {
            table.reserved -= 1;
            table.places.retain(|entry| !Arc::ptr_eq(entry, &self.entry));
        }
        if self.kind == PlaceKind::Usual {
            table.leave(self.address);
        }
        if table.entries.is_empty() {
            self.all.all_gone.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn address(last: u8) -> IpAddr {
        Ipv4Addr::new(127, 0, 0, last).into()
    }

    fn standing(connection: &Connection) -> ConnectionState {
        connection.standing(&Context::from_waker(std::task::Waker::noop()))
    }

    #[test]
    fn limits_in_all_and_by_address() {
        let limits = Limits { connections: 3, connections_by_address: 2, ..Limits::default() };
        let all = Connections::new(limits);
        let first = all.admit(address(1)).unwrap();
        let _second = all.admit(address(1)).unwrap();
        assert_eq!(all.admit(address(1)).unwrap_err(), Refused::AddressFull);
        let _third = all.admit(address(2)).unwrap();
        assert_eq!(all.admit(address(3)).unwrap_err(), Refused::Full);
        drop(first);
        assert!(all.admit(address(1)).is_ok());
    }

    #[test]
    fn a_load_balancers_connection_counts_for_the_client_that_it_names() {
        let all = Connections::new(Limits { connections_by_address: 1, ..Limits::default() });
        let mut first = all.admit(address(1)).unwrap();
        first.belongs_to(address(2)).unwrap();
        let mut second = all.admit(address(1)).unwrap();
        assert_eq!(second.belongs_to(address(2)), Err(Refused::AddressFull));
        drop(second);
        let mut third = all.admit(address(1)).unwrap();
        drop(first);
        third.belongs_to(address(2)).unwrap();
        third.belongs_to(address(2)).unwrap();
        assert!(all.admit(address(1)).is_ok() && all.admit(address(2)).is_err());
    }

    /// Idle connections cannot use up the places reserved for health checks.
    #[test]
    fn silent_connections_make_room_for_questions_about_health() {
        let all = Connections::new(Limits::default());
        let admit = || all.admit_reserved(address(1));
        let silent: Vec<_> = (0..RESERVED).map(|_| admit().unwrap()).collect();
        silent[0].busy();
        let asking = admit().unwrap();
        let overdue = |connection: &Connection| standing(connection) == ConnectionState::Overdue;
        assert!(!overdue(&silent[0]) && overdue(&silent[1]) && !overdue(&silent[2]));
        asking.busy();
        silent.iter().for_each(Connection::busy);
        let probe = admit().unwrap();
        assert!(overdue(&silent[0]) && !overdue(&probe), "the oldest of those that have begun");
        let crowd: Vec<_> = (0..10 * RESERVED).map_while(|_| admit()).collect();
        assert!(all.len() <= MOST_RESERVED && !crowd.is_empty(), "{}", all.len());
    }

    #[test]
    fn an_ipv6_subscriber_is_a_network() {
        let all = Connections::new(Limits { connections_by_address: 1, ..Limits::default() });
        let admits = |text: &str| all.admit(text.parse().unwrap());
        let _first = admits("2001:db8:1:2:3:4:5:6").unwrap();
        assert_eq!(admits("2001:db8:1:2::1").unwrap_err(), Refused::AddressFull);
        let _mapped = admits("::ffff:192.0.2.7").unwrap();
        assert_eq!(admits("192.0.2.7").unwrap_err(), Refused::AddressFull);
    }

    #[test]
    fn a_deadline_passes_not_early() {
        let all = Connections::new(Limits { idle: 5, request: 2, ..Limits::default() });
        let connection = all.admit(address(1)).unwrap();
        connection.busy();
        for _ in 0..2 {
            all.tick();
            assert_eq!(standing(&connection), ConnectionState::Good);
        }
        all.tick();
        assert_eq!(standing(&connection), ConnectionState::Overdue);
        connection.idle();
        assert_eq!(standing(&connection), ConnectionState::Good);
    }

    #[test]
    fn held_bytes_are_bounded_together() {
        let all = Connections::new(Limits { held_bytes: 100, ..Limits::default() });
        let first = all.admit(address(1)).unwrap();
        let second = all.admit(address(1)).unwrap();
        assert!(first.hold(60) && second.hold(40) && !second.hold(41));
        assert!(second.hold(0) && first.hold(100));
        drop(first);
        assert!(second.hold(100));
    }

    #[test]
    fn stopping_admits_nobody() {
        let all = Connections::new(Limits::default());
        let connection = all.admit(address(1)).unwrap();
        all.stop();
        assert_eq!(standing(&connection), ConnectionState::Stopping);
        assert_eq!(all.admit(address(1)).unwrap_err(), Refused::Stopping);
    }
}
