//! Memory that one connection's requests hold: their streams and tasks, the parts of bodies that have
//! arrived, and answers that the client has not fetched.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use axum::http::HeaderMap;

use crate::connections::Connection;

/// Bytes of a request that waits, beside its body and answer: its stream, headers and task. It was
/// measured with many streams that wait; see the test `memory`.
pub(in crate::protocol) const STREAM: usize = 8 * 1024;
/// Bytes of a stream's place in the connection's table, which does not shrink.
const PLACE: usize = 512;
/// Bytes for which a connection always has room, so that others cannot keep it from one small request.
const ALWAYS_FREE: usize = STREAM + 4 * 1024;

/// The memory of all requests of one connection.
#[derive(Debug)]
pub(in crate::protocol) struct HeldBytes {
    connection: Arc<Connection>,
    /// Bytes of requests that wait.
    waiting: AtomicUsize,
    /// Bytes of answers that were written since the socket last took all of them.
    unsent: AtomicUsize,
    /// The most requests that were in flight at once.
    places: AtomicUsize,
    /// The number of calls that go on until the client ends them.
    endless: AtomicUsize,
    /// True if a request was refused for want of memory.
    refused: AtomicBool,
    /// True once the client has sent HTTP/2's preface.
    greeted: AtomicBool,
}

/// The memory of one request that waits.
#[derive(Debug)]
pub(in crate::protocol) struct HeldShare {
    all: Arc<HeldBytes>,
    bytes: usize,
}

impl HeldBytes {
    /// Counts for `connection`, which has no request yet.
    pub(super) fn new(connection: Arc<Connection>) -> Arc<Self> {
        Arc::new(Self {
            connection,
            waiting: AtomicUsize::new(0),
            unsent: AtomicUsize::new(0),
            places: AtomicUsize::new(0),
            endless: AtomicUsize::new(0),
            refused: AtomicBool::new(false),
            greeted: AtomicBool::new(false),
        })
    }

    /// Returns the connection that accounts for these bytes.
    pub(in crate::protocol) fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }

    /// Counts `count` requests that arrived together. Their answers count as unsent until the socket has
    /// taken them.
    pub(super) fn arrived(&self, count: usize) {
        self.unsent.fetch_add(count * STREAM, Relaxed);
        let present = count + self.waiting.load(Relaxed) / STREAM;
        if present > self.places.load(Relaxed) {
            self.places.store(present, Relaxed);
            self.account(0);
        }
    }

    /// Notes that the socket has taken everything that was written.
    pub(super) fn sent(&self) {
        self.unsent.store(0, Relaxed);
    }

    /// Counts unsent answers of a client that does not read. Returns false if all connections together
    /// hold too much.
    pub(super) fn hold_unsent(&self) -> bool {
        self.account(self.unsent.load(Relaxed))
    }

    /// Notes that the client has sent HTTP/2's preface.
    pub(super) fn greet(&self) {
        self.greeted.store(true, Relaxed);
        self.connection.idle();
    }

    /// Returns true once the client has sent HTTP/2's preface.
    pub(super) fn is_greeted(&self) -> bool {
        self.greeted.load(Relaxed)
    }

    /// Counts a call that goes on until the client ends it; `None` if the connection has `most` of them.
    pub(in crate::protocol) fn begin_endless(self: &Arc<Self>, most: usize) -> Option<EndlessCall> {
        let more = |count| (count < most).then_some(count + 1);
        self.endless.fetch_update(Relaxed, Relaxed, more).ok()?;
        Some(EndlessCall(Arc::clone(self)))
    }

    /// Returns true if a request waits.
    pub(super) fn any_waits(&self) -> bool {
        self.waiting.load(Relaxed) > 0
    }

    /// Returns true if the connection was refused memory.
    pub(super) fn was_refused(&self) -> bool {
        self.refused.load(Relaxed)
    }

    fn account(&self, unsent: usize) -> bool {
        let bytes = self.waiting.load(Relaxed) + PLACE * self.places.load(Relaxed) + unsent;
        let enough = self.connection.hold(bytes) || bytes <= ALWAYS_FREE;
        if !enough {
            self.refused.store(true, Relaxed);
        }
        enough
    }
}

/// A call that goes on until the client ends it.
#[derive(Debug)]
pub(in crate::protocol) struct EndlessCall(Arc<HeldBytes>);

impl Drop for EndlessCall {
    fn drop(&mut self) {
        self.0.endless.fetch_sub(1, Relaxed);
    }
}

impl HeldShare {
    /// Counts a request that holds nothing yet.
    pub(in crate::protocol) fn new(all: &Arc<HeldBytes>) -> Self {
        Self { all: Arc::clone(all), bytes: 0 }
    }

    /// Counts an answer of this many bytes as unsent until the socket has taken it: its stream outlives
    /// the request's task.
    pub(super) fn count_unsent(&self, bytes: usize) {
        self.all.unsent.fetch_add(STREAM + bytes, Relaxed);
    }

    /// Sets the request's memory. Returns false if all connections together would hold too much.
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

/// Returns the bytes of a request before any of its body has arrived.
pub(in crate::protocol) fn head(headers: &HeaderMap) -> usize {
    let fields = headers.iter().map(|(name, value)| name.as_str().len() + value.len());
    STREAM + fields.sum::<usize>()
}
