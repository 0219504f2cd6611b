//! What one connection holds for requests that are under way at once: what has come of them, and answers
//! that the client has not fetched.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll};

use axum::http::HeaderMap;
use hyper::body::{Body, Frame, SizeHint};

use crate::connections::Connection;

/// Bytes that a request takes beside what has come of it: its stream and its task.
pub(super) const REQUEST: usize = 1024;

/// The bytes of all requests together.
#[derive(Debug)]
pub(super) struct HeldBytes {
    connection: Arc<Connection>,
    bytes: AtomicUsize,
}

/// One request's part of them.
#[derive(Debug)]
pub(super) struct HeldShare {
    all: Arc<HeldBytes>,
    bytes: usize,
}

impl HeldBytes {
    pub(super) fn new(connection: Arc<Connection>) -> Arc<Self> {
        Arc::new(Self { connection, bytes: AtomicUsize::new(0) })
    }
}

impl HeldShare {
    /// Nothing yet.
    pub(super) fn new(all: &Arc<HeldBytes>) -> Self {
        Self { all: Arc::clone(all), bytes: 0 }
    }

    /// From here on the request holds this much. `false` when all connections together would hold too
    /// much.
    pub(super) fn set(&mut self, bytes: usize) -> bool {
        let before = std::mem::replace(&mut self.bytes, bytes);
        self.all.bytes.fetch_add(bytes, Relaxed);
        let held = self.all.bytes.fetch_sub(before, Relaxed) - before;
        self.all.connection.hold(held)
    }
}

impl Drop for HeldShare {
    fn drop(&mut self) {
        self.set(0);
    }
}

/// What a request takes before any of its body has come.
pub(super) fn head(headers: &HeaderMap) -> usize {
    let fields = headers.iter().map(|(name, value)| name.as_str().len() + value.len());
    REQUEST + fields.sum::<usize>()
}

pin_project_lite::pin_project! {
    /// The body of an answer, held until it is on its way.
    #[derive(Debug)]
    pub(super) struct Holding<B> {
        #[pin]
        pub(super) body: B,
        pub(super) share: HeldShare,
    }
}

impl<B: Body> Body for Holding<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        self.project().body.poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
