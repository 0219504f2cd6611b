//! The socket of one RESP connection: reading, writing, and closing in a way that lets the client
//! still read the last replies.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use tokio::io::{AsyncReadExt as _, AsyncWrite as _};

use super::buffers::Buffers;
use super::codec::Decoder;
use super::reply::Writer;
use super::session::Session;
use crate::connections::{Connection, ConnectionState};
use crate::protocol::linger::linger;
use crate::stream::Stream;

pub(super) struct Client {
    stream: Stream,
    pub(super) connection: Connection,
    pub(super) session: Session,
    pub(super) decoder: Decoder,
    /// The beginning of a request whose end has not arrived.
    pub(super) unfinished: Box<[u8]>,
}

impl Client {
    pub(super) fn new(stream: Stream, connection: Connection, session: Session) -> Self {
        let decoder = Decoder::default();
        let unfinished = Box::default();
        Self {
            stream,
            connection,
            session,
            decoder,
            unfinished,
        }
    }

    /// Appends the error for a client that is disconnected because the memory limit was reached.
    /// The client's memory is released first.
    pub(super) fn refuse_for_memory(&mut self, output: &mut Vec<u8>) {
        self.unfinished = Box::default();
        self.connection.hold(0);
        self.session.server.service.metrics.shed.increment();
        Writer::new(output, self.session.version()).error("server overloaded");
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
    pub(super) async fn write_patiently(&mut self, output: &[u8]) -> io::Result<()> {
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
