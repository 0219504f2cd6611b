//! One connection: one read, all its decisions, one write.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;

use super::buffers::{Buffers, OUTPUT_HIGH_WATER};
use super::codec::{Decoder, Malformed};
use super::gather::Then;
use super::reply::Writer;
use super::session::{Next, Session};
use crate::connections::{Connection, Standing};

/// Serves a connection to its end. What goes wrong with it ends it and concerns nobody else.
pub async fn serve(stream: TcpStream, connection: Connection, session: Session) {
    let mut client = Client {
        stream,
        connection,
        session,
        decoder: Decoder::default(),
        unfinished: Box::default(),
        leaving: false,
    };
    match client.requests().await {
        Ok(()) => client.linger().await,
        Err(error) => client.lost(&error),
    }
}

/// Why a batch of requests ended.
enum Ended {
    /// There is no whole request left.
    Starved,
    /// The connection is to be closed.
    Closing,
    /// Its answers have to be written first.
    Full,
}

pub(super) struct Client {
    stream: TcpStream,
    pub(super) connection: Connection,
    pub(super) session: Session,
    pub(super) decoder: Decoder,
    /// The beginning of a request whose end has not come.
    unfinished: Box<[u8]>,
    /// The server is stopping, and this client has been given a last moment to ask: a connection is
    /// best closed right behind an answer, when no request is under way.
    leaving: bool,
}

impl Client {
    /// Answers requests until the client or the server ends it. All answers are written on return.
    async fn requests(&mut self) -> io::Result<()> {
        loop {
            let was_partial = self.decoder.is_partial();
            let buffers = self.read().await?;
            if buffers.input.len() <= self.unfinished.len() {
                buffers.give_back();
                return Ok(());
            }
            self.unfinished = Box::default();
            let (mut buffers, answered) = if self.session.server.service.engine().waits() {
                // Boxed, so that it takes no room in connections where nothing is waited for.
                Box::pin(self.answer_together(buffers)).await?
            } else {
                self.answer(buffers).await?
            };
            let Some(consumed) = answered else {
                return self.flush(buffers).await;
            };
            if consumed < buffers.input.len() {
                self.unfinished = buffers.input[consumed..].into();
            }
            if !self.connection.hold(self.unfinished.len()) {
                Writer::new(&mut buffers.output, self.session.version()).error("server overloaded");
                return self.flush(buffers).await;
            }
            self.flush(buffers).await?;
            if self.session.server.connections.are_stopping() && self.unfinished.is_empty() {
                return Ok(());
            }
            self.set_deadline(was_partial && consumed == 0);
        }
    }

    fn lost(&self, error: &io::Error) {
        if matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::OutOfMemory) {
            self.session.server.service.metrics.shed.increment();
        }
        tracing::debug!(%error, "connection ended");
    }

    /// A request that trickles in keeps the deadline it began with.
    fn set_deadline(&self, still_the_same: bool) {
        match self.decoder.is_partial() {
            true if still_the_same => {}
            true => self.connection.busy(),
            false => self.connection.idle(),
        }
    }

    /// Decides every whole request of the input. The bytes consumed, or `None` when the connection
    /// is to be closed after the answers given.
    async fn answer(&mut self, mut buffers: Buffers) -> io::Result<(Buffers, Option<usize>)> {
        let mut consumed = 0;
        loop {
            match self.answer_batch(&mut buffers, &mut consumed).await {
                Ended::Starved => return Ok((buffers, Some(consumed))),
                Ended::Closing => return Ok((buffers, None)),
                Ended::Full => buffers = self.drain(buffers, &mut consumed).await?,
            }
        }
    }

    async fn answer_batch(&mut self, buffers: &mut Buffers, consumed: &mut usize) -> Ended {
        let server = Arc::clone(&self.session.server);
        let rules = server.service.rules();
        let (started, mut requests) = (Instant::now(), 0);
        let ended = loop {
            let Buffers { input, questions, output } = &mut *buffers;
            if output.len() >= OUTPUT_HIGH_WATER {
                break Ended::Full;
            }
            let then = self.gather(input, consumed, &rules, questions);
            requests += questions.len() as u64;
            for (start, kept) in questions.drain(..) {
                self.session.answer(kept.within(&input[start..]), &rules, output).await;
            }
            match then {
                Then::More => {}
                Then::Command(start, kept) => {
                    requests += 1;
                    let request = kept.within(&input[start..]);
                    if self.session.answer(request, &rules, output).await == Next::Close {
                        break Ended::Closing;
                    }
                }
                Then::Starved => break Ended::Starved,
                Then::Malformed(malformed) => {
                    self.refuse(malformed, output);
                    break Ended::Closing;
                }
            }
        };
        server.service.metrics.resp_requests.add(requests);
        server.service.metrics.resp_batch.record(started.elapsed());
        ended
    }

    pub(super) fn refuse(&self, malformed: Malformed, output: &mut Vec<u8>) {
        self.session.server.service.metrics.malformed.increment();
        let mut reply = Writer::new(output, self.session.version());
        reply.error(&format!("Protocol error: {malformed}"));
    }

    /// Waits for bytes. Without any to read, no buffer is held.
    async fn read(&mut self) -> io::Result<Buffers> {
        poll_fn(|context| self.poll_read(context)).await
    }

    fn poll_read(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Buffers>> {
        let standing = self.connection.standing(context);
        if standing == Standing::Overdue {
            let overdue = Err(io::ErrorKind::TimedOut.into());
            return Poll::Ready(if self.leaving { Ok(Buffers::take()) } else { overdue });
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
                buffers.give_back();
                if standing == Standing::Stopping && !self.leaving {
                    self.leaving = true;
                    self.connection.leave();
                }
                Poll::Pending
            }
        }
    }

    /// Writes all of the output and gives the buffers back.
    async fn flush(&mut self, buffers: Buffers) -> io::Result<()> {
        let mut written = 0;
        let done = self.write_now(&buffers, &mut written)?;
        if done {
            buffers.give_back();
            return Ok(());
        }
        let rest: Box<[u8]> = buffers.output[written..].into();
        buffers.give_back();
        self.write_patiently(&rest).await
    }

    /// Writes all of the output, amid a long pipeline; what is still to be decided is kept aside.
    async fn drain(&mut self, mut buffers: Buffers, consumed: &mut usize) -> io::Result<Buffers> {
        let mut written = 0;
        if self.write_now(&buffers, &mut written)? {
            buffers.output.clear();
            return Ok(buffers);
        }
        let input: Box<[u8]> = buffers.input[*consumed..].into();
        let output: Box<[u8]> = buffers.output[written..].into();
        buffers.give_back();
        if !self.connection.hold(input.len() + output.len()) {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        self.write_patiently(&output).await?;
        let mut buffers = Buffers::take();
        buffers.input.extend_from_slice(&input);
        *consumed = 0;
        Ok(buffers)
    }

    /// Writes as much as the socket takes. `true` when that was all.
    fn write_now(&mut self, buffers: &Buffers, written: &mut usize) -> io::Result<bool> {
        while *written < buffers.output.len() {
            match self.stream.try_write(&buffers.output[*written..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => *written += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Writes to a client that is slow to read; no request of its is read meanwhile.
    pub(super) async fn write_patiently(&mut self, output: &[u8]) -> io::Result<()> {
        self.connection.busy();
        let mut written = 0;
        while written < output.len() {
            written += poll_fn(|context| {
                if self.connection.standing(context) == Standing::Overdue {
                    return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
                }
                Pin::new(&mut self.stream).poll_write(context, &output[written..])
            })
            .await?;
        }
        Ok(())
    }

    /// Closes so that the last answers arrive: bytes left unread would make the kernel reset the
    /// connection, and what the client has not fetched yet would be lost.
    async fn linger(&mut self) {
        self.connection.busy();
        if self.stream.shutdown().await.is_err() {
            return;
        }
        let mut last_words = [0; 512];
        loop {
            let read = poll_fn(|context| {
                if self.connection.standing(context) == Standing::Overdue {
                    return Poll::Ready(Ok(0));
                }
                let mut buffer = ReadBuf::new(&mut last_words);
                ready!(Pin::new(&mut self.stream).poll_read(context, &mut buffer))?;
                Poll::Ready(io::Result::Ok(buffer.filled().len()))
            });
            if !matches!(read.await, Ok(1..)) {
                return;
            }
        }
    }
}
