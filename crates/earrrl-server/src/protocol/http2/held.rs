//! Counts the memory that the requests of one HTTP/2 connection hold: their streams and tasks, the
//! parts of bodies that have arrived, and responses that the client has not read.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use axum::http::HeaderMap;
use tokio::sync::Semaphore;

use crate::connections::{Connection, STREAM_PLACE};

/// The estimated memory of a waiting request without its body and response, in bytes: its stream,
/// headers and task. It was measured with many waiting streams in the test `memory`.
pub(in crate::protocol) const STREAM: usize = 8 * 1024;
/// The memory of a header field besides its text, in bytes.
const FIELD: usize = 128;
/// The number of bytes that a connection may always hold, so that one small request is admitted
/// even if other connections have used up the memory limit.
const ALWAYS_FREE: usize = STREAM + 4 * 1024;
/// The largest number of calls of one connection that only the client ends (`Watch`, which reports
/// changes of the server's health). A client needs one for each service's name.
const MAX_ENDLESS: usize = 8;

/// The count of bytes that all requests of one connection hold.
#[derive(Debug)]
pub(in crate::protocol) struct HeldBytes {
    connection: Arc<Connection>,
    /// The number of bytes that waiting requests hold.
    waiting: AtomicUsize,
    /// The number of bytes of responses that were queued since the socket last accepted everything.
    unsent: AtomicUsize,
    /// The number of streams whose places are reserved.
    reserved: usize,
    /// The largest number of requests of this connection that were in flight at once, or `reserved` if that is more.
    /// Cancelled requests take places until they are accepted, so that a client can take more than are reserved.
    places: AtomicUsize,
    /// The places for calls that only the client ends.
    pub(in crate::protocol) endless: Arc<Semaphore>,
    /// True if a request was refused because the memory limit was reached.
    refused: AtomicBool,
    /// True once the client has sent HTTP/2's preface.
    greeted: AtomicBool,
}

/// The count of bytes that one waiting request holds. Dropping it releases them.
#[derive(Debug)]
pub(in crate::protocol) struct HeldShare {
    all: Arc<HeldBytes>,
    bytes: usize,
}

impl HeldBytes {
    /// Creates the count for `connection`, which has no request yet, and reserves the places of its streams.
    pub(super) fn new(connection: Arc<Connection>) -> Arc<Self> {
        let reserved = connection.reserve_streams() as usize;
        Arc::new(Self {
            connection,
            reserved,
            waiting: AtomicUsize::new(0),
            unsent: AtomicUsize::new(0),
            places: AtomicUsize::new(reserved),
            endless: Arc::new(Semaphore::new(MAX_ENDLESS)),
            refused: AtomicBool::new(false),
            greeted: AtomicBool::new(false),
        })
    }

    /// Returns the connection whose requests hold these bytes.
    pub(in crate::protocol) fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }

    /// Returns the number of streams that the client may have open at once.
    pub(super) fn streams(&self) -> usize {
        self.reserved
    }

    /// Counts `count` requests that arrived together. Their responses count as unsent until the
    /// socket has accepted them. Returns false if the requests took more places than are reserved, and that exceeds
    /// the memory limit of all connections together.
    pub(super) fn arrived(&self, count: usize) -> bool {
        self.unsent.fetch_add(count * STREAM, Relaxed);
        let present = count + self.waiting.load(Relaxed) / STREAM;
        if present <= self.places.load(Relaxed) {
            return true;
        }
        self.places.store(present, Relaxed);
        self.account(0)
    }

    /// Counts the places of streams that the client has sent parts of bodies for, if they are more than are reserved.
    /// The memory limit is checked when the connection's task waits.
    pub(super) fn bears(&self, streams: usize) {
        if streams > self.places.load(Relaxed) {
            self.places.store(streams, Relaxed);
        }
    }

    /// Resets the count of unsent bytes, once the socket has accepted everything that was written.
    pub(super) fn sent(&self) {
        self.unsent.store(0, Relaxed);
    }

    /// Adds the unsent responses of a client that does not read to the memory that the connection
    /// holds. Returns false if that exceeds the memory limit of all connections together, or if the limit is exceeded
    /// and the connection has taken more places than are reserved, which only its end gives back.
    pub(super) fn hold_unsent(&self) -> bool {
        let enough = self.account(self.unsent.load(Relaxed));
        let has_taken = self.places.load(Relaxed) > self.reserved;
        enough && !(has_taken && self.connection.is_memory_short())
    }

    /// Records that the client has sent HTTP/2's preface. The connection is idle from then on.
    pub(super) fn greet(&self) {
        self.greeted.store(true, Relaxed);
        self.connection.idle();
    }

    /// Returns true once the client has sent HTTP/2's preface.
    pub(super) fn is_greeted(&self) -> bool {
        self.greeted.load(Relaxed)
    }

    /// Returns true if a request of this connection is waiting for its response.
    pub(super) fn any_waits(&self) -> bool {
        self.waiting.load(Relaxed) > 0
    }

    /// Returns true if a request of this connection was refused because the memory limit was
    /// reached.
    pub(super) fn was_refused(&self) -> bool {
        self.refused.load(Relaxed)
    }

    fn account(&self, unsent: usize) -> bool {
        let places = self.places.load(Relaxed) - self.reserved;
        let bytes = self.waiting.load(Relaxed) + STREAM_PLACE * places + unsent;
        let enough = self.connection.hold(bytes) || bytes <= ALWAYS_FREE;
        if !enough {
            self.refused.store(true, Relaxed);
        }
        enough
    }
}

impl HeldShare {
    /// Creates the count of a request that holds no bytes yet.
    pub(in crate::protocol) fn new(all: &Arc<HeldBytes>) -> Self {
        Self {
            all: Arc::clone(all),
            bytes: 0,
        }
    }

    /// Counts a response of this many bytes as unsent until the socket has accepted it, since the
    /// response stays in its stream after the request's task has ended.
    pub(super) fn count_unsent(&self, bytes: usize) {
        self.all.unsent.fetch_add(STREAM + bytes, Relaxed);
    }

    /// Sets the number of bytes that the request holds. Returns false if that exceeds the memory
    /// limit of all connections together.
    pub(in crate::protocol) fn set(&mut self, bytes: usize) -> bool {
        let before = std::mem::replace(&mut self.bytes, bytes);
        self.all.waiting.fetch_add(bytes, Relaxed);
        self.all.waiting.fetch_sub(before, Relaxed);
        self.all.account(0)
    }
}

impl Drop for HeldShare {
    fn drop(&mut self) {
        self.set(0);
    }
}

/// Returns the number of bytes that a request with these headers holds before any of its body has
/// arrived.
pub(in crate::protocol) fn head(headers: &HeaderMap) -> usize {
    let fields = headers
        .iter()
        .map(|(name, value)| FIELD + name.as_str().len() + value.len());
    STREAM + fields.sum::<usize>()
}
