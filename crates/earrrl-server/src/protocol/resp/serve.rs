//! Serves one RESP connection in a loop: one read, the decisions on all requests that were read,
//! and one write.

use std::io;
use std::time::Duration;

use tokio::time::sleep;

use super::buffers::Buffers;
use super::client::Client;
use super::session::Session;
use crate::connections::Connection;
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

impl Client {
    /// Answers requests until the client closes the connection or the server ends it. All replies
    /// have been written when it returns.
    async fn requests(&mut self) -> io::Result<()> {
        loop {
            let was_partial = self.decoder.is_partial();
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
        match self.decoder.is_partial() {
            true if still_the_same => {}
            true => self.connection.busy(),
            false => self.connection.idle(),
        }
    }
}
