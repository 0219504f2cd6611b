//! One RESP connection: one read, the decisions on all requests that were read, and one write.
//!
//! ```text
//! socket -> Buffers::input -> batch.rs: requests -> question.rs, command.rs -> Buffers::output -> socket
//! ```
//!
//! A connection takes a set of buffers from its thread's pool when bytes arrive and returns it before it waits, so one
//! set serves all idle connections of a thread. What must outlive a wait is copied: the beginning of a request, and
//! replies that the client does not read.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWrite as _};
use tokio::time::sleep;

use super::codec::MAX_REQUEST_LEN;
use super::question::Questions;
use super::reply::Writer;
use super::session::Session;
use crate::connections::{Connection, ConnectionState};
use crate::protocol::linger::linger;
use crate::stream::Stream;

/// The delay of the reply to the last wrong token that a client may send. The connection is closed
/// after that reply.
const PENALTY: Duration = Duration::from_secs(1);

/// Serves a connection until it ends. An error of its socket ends only this connection.
pub fn serve(stream: Stream, connection: Connection, session: Session) -> impl Future<Output = ()> {
    let mut client = Client::new(stream, connection, session);
    // An `async fn` would store its arguments besides the client, and take more memory.
    async move {
        match client.requests().await {
            Ok(()) => client.linger().await,
            Err(error) => client.lost(&error),
        }
    }
}

/// One connected client.
pub(super) struct Client {
    stream: Stream,
    pub(super) connection: Connection,
    pub(super) session: Session,
    /// The beginning of a request whose end has not arrived.
    pub(super) unfinished: Box<[u8]>,
}

/// # Requests
impl Client {
    /// Answers requests until the client closes the connection or the server ends it. All replies
    /// have been written when it returns.
    async fn requests(&mut self) -> io::Result<()> {
        loop {
            let was_partial = !self.unfinished.is_empty();
            let buffers = self.read().await?;
            if buffers.input.len() <= self.unfinished.len() {
                buffers.give_back();
                return Ok(());
            }
            self.unfinished = Box::default();
            // The future is boxed, so that idle connections reserve no space for it.
            let (mut buffers, answered) = Box::pin(self.answer(buffers)).await?;
            let Some(consumed) = answered else {
                return self.say_last(buffers).await;
            };
            if consumed < buffers.input.len() {
                self.unfinished = buffers.input[consumed..].into();
            }
            if self.hold(0).is_err() {
                self.refuse_for_memory(&mut buffers.output);
                return self.flush(buffers).await;
            }
            self.flush(buffers).await?;
            if self.session.server.connections.are_stopping() && self.unfinished.is_empty() {
                return Ok(());
            }
            self.set_deadline(was_partial && consumed == 0);
        }
    }

    /// Writes the last replies before the connection is closed. They are delayed for a client that
    /// has sent too many wrong tokens.
    async fn say_last(&mut self, buffers: Buffers) -> io::Result<()> {
        if !self.session.is_locked_out() {
            return self.flush(buffers).await;
        }
        let output: Box<[u8]> = buffers.output[..].into();
        buffers.give_back();
        // The timer is boxed, so that it takes no memory in other connections.
        Box::pin(sleep(PENALTY)).await;
        self.write_patiently(&output).await
    }

    fn lost(&self, error: &io::Error) {
        if matches!(
            error.kind(),
            io::ErrorKind::TimedOut | io::ErrorKind::OutOfMemory
        ) {
            self.session.server.service.metrics.shed.increment();
        }
        tracing::debug!(%error, "connection ended");
    }

    /// Sets the connection's deadline after a read. While the same request is incomplete, the
    /// deadline stays as its first bytes set it, so a client cannot extend it by sending slowly.
    fn set_deadline(&self, still_the_same: bool) {
        match self.unfinished.is_empty() {
            true => self.connection.idle(),
            false if still_the_same => {}
            false => self.connection.busy(),
        }
    }
}

/// # The socket
impl Client {
    fn new(stream: Stream, connection: Connection, session: Session) -> Self {
        Self {
            stream,
            connection,
            session,
            unfinished: Box::default(),
        }
    }

    /// Appends the error for a client that is disconnected because the memory limit was reached.
    /// The client's memory is released first.
    pub(super) fn refuse_for_memory(&mut self, output: &mut Vec<u8>) {
        self.unfinished = Box::default();
        self.connection.hold(0);
        self.session.server.service.metrics.shed.increment();
        Writer::new(output, self.session.version).error("server overloaded");
    }

    /// Waits until bytes arrive, and returns the buffers that they were read into. No buffers are
    /// held while it waits.
    pub(super) async fn read(&mut self) -> io::Result<Buffers> {
        poll_fn(|context| self.poll_read(context)).await
    }

    fn poll_read(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Buffers>> {
        let standing = self.connection.standing(context);
        if standing == ConnectionState::Overdue {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        let mut buffers = Buffers::take();
        buffers.input.extend_from_slice(&self.unfinished);
        match pin!(self.stream.read_buf(&mut buffers.input)).poll(context) {
            Poll::Ready(Ok(_)) => Poll::Ready(Ok(buffers)),
            Poll::Ready(Err(error)) => {
                buffers.give_back();
                Poll::Ready(Err(error))
            }
            Poll::Pending => {
                // A stopping server does not wait for a client that has no request in flight.
                if standing == ConnectionState::Stopping
                    && self.unfinished.is_empty()
                    && !self.stream.has_input()
                {
                    return Poll::Ready(Ok(buffers));
                }
                buffers.give_back();
                Poll::Pending
            }
        }
    }

    /// Writes all of the output, and returns the buffers to the pool.
    pub(super) async fn flush(&mut self, buffers: Buffers) -> io::Result<()> {
        let mut written = 0;
        let done = self.write_now(&buffers, &mut written)?;
        if done {
            buffers.give_back();
            return Ok(());
        }
        let rest: Box<[u8]> = buffers.output[written..].into();
        buffers.give_back();
        self.hold(rest.len())?;
        self.write_patiently(&rest).await?;
        self.hold(0)
    }

    /// Counts the bytes that the connection holds: its session, its unfinished request, and `more`
    /// bytes. Returns an error if the memory limit of all connections together is exceeded.
    pub(super) fn hold(&self, more: usize) -> io::Result<()> {
        match self
            .connection
            .hold(self.unfinished.len() + self.session.held() + more)
        {
            true => Ok(()),
            false => Err(io::ErrorKind::OutOfMemory.into()),
        }
    }

    /// Writes all of the output in the middle of a long pipeline. If the client is slow to read,
    /// the remaining input is copied, so that the buffers can be returned to the pool meanwhile.
    pub(super) async fn drain(
        &mut self,
        mut buffers: Buffers,
        consumed: &mut usize,
    ) -> io::Result<Buffers> {
        let mut written = 0;
        if self.write_now(&buffers, &mut written)? {
            buffers.output.clear();
            return Ok(buffers);
        }
        let input: Box<[u8]> = buffers.input[*consumed..].into();
        let output: Box<[u8]> = buffers.output[written..].into();
        buffers.give_back();
        self.hold(input.len() + output.len())?;
        self.write_patiently(&output).await?;
        let mut buffers = Buffers::take();
        buffers.input.extend_from_slice(&input);
        *consumed = 0;
        Ok(buffers)
    }

    /// Writes as much as the socket accepts. Returns true if that was everything.
    fn write_now(&mut self, buffers: &Buffers, written: &mut usize) -> io::Result<bool> {
        while *written < buffers.output.len() {
            match self.stream.try_write(&buffers.output[*written..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => *written += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(!self.stream.is_unflushed())
    }

    /// Writes to a client that is slow to read. No further request of this client is read
    /// meanwhile.
    async fn write_patiently(&mut self, output: &[u8]) -> io::Result<()> {
        self.connection.busy();
        let mut written = 0;
        while written < output.len() {
            let rest = &output[written..];
            written += poll_fn(|context| {
                let stream = Pin::new(&mut self.stream);
                self.connection
                    .poll_in_time(context, |context| stream.poll_write(context, rest))
            })
            .await?;
        }
        poll_fn(|context| {
            let stream = Pin::new(&mut self.stream);
            self.connection
                .poll_in_time(context, |context| stream.poll_flush(context))
        })
        .await
    }

    /// Closes the connection in a way that lets the client still read the last replies.
    pub(super) async fn linger(&mut self) {
        self.unfinished = Box::default();
        // The future is boxed, so that it takes no memory in connections that are not being closed.
        Box::pin(linger(&mut self.stream, &self.connection)).await;
    }
}

/// The capacity of the input buffer, in bytes. It holds the longest request and still has space to
/// read.
const INPUT_LEN: usize = MAX_REQUEST_LEN + 8 * 1024;
/// The number of bytes of replies at which they are written to the socket.
pub(super) const OUTPUT_HIGH_WATER: usize = 64 * 1024;
/// The largest number of unused sets that a thread keeps.
const SPARE: usize = 4;

/// A set of buffers, which a connection reads into and writes from.
#[derive(Debug)]
pub(super) struct Buffers {
    /// The bytes that were read. They never exceed the buffer's initial capacity.
    pub(super) input: Vec<u8>,
    /// A list for the questions of a batch. It is empty between batches, and only keeps its
    /// allocation.
    pub(super) questions: Questions<'static>,
    /// The replies that have not been written to the socket.
    pub(super) output: Vec<u8>,
}

thread_local! {
    static POOL: RefCell<Vec<Buffers>> = const { RefCell::new(Vec::new()) };
}

impl Buffers {
    /// Returns an empty set, from the thread's pool if that has one.
    pub(super) fn take() -> Self {
        POOL.with_borrow_mut(Vec::pop).unwrap_or_else(|| Self {
            input: Vec::with_capacity(INPUT_LEN),
            questions: Questions::new(),
            output: Vec::with_capacity(OUTPUT_HIGH_WATER),
        })
    }

    /// Returns a copy that takes only the memory of the bytes in it, and returns the set to the pool.
    pub(super) fn apart(self) -> Self {
        let copy = Self {
            input: self.input.clone(),
            questions: Questions::new(),
            output: self.output.clone(),
        };
        self.give_back();
        copy
    }

    /// Empties the set and returns it to the thread's pool, unless it is a copy.
    fn give_back(mut self) {
        self.input.clear();
        self.output.clear();
        self.output.shrink_to(2 * OUTPUT_HIGH_WATER);
        POOL.with_borrow_mut(|pool| {
            if pool.len() < SPARE && self.input.capacity() >= INPUT_LEN {
                pool.push(self);
            }
        });
    }
}
