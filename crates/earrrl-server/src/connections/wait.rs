//! Waits of one connection, which end at its deadline or when the server stops.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Sleep, sleep};

use super::{Connection, ConnectionState};

/// The reason why a connection must not wait any longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitEnd {
    /// The deadline of the connection has passed.
    Overdue,
    /// The server is stopping, and the time that this leaves to the connection has passed.
    Stopping,
}

/// Ends the wait of a connection at its deadline, or some time after the server began to stop.
#[derive(Debug)]
pub struct StopGrace {
    time: Duration,
    sleep: Option<Pin<Box<Sleep>>>,
}

impl StopGrace {
    /// Creates a wait that lasts at most `time` once the server is stopping.
    pub fn new(time: Duration) -> Self {
        Self { time, sleep: None }
    }

    /// Is ready once the connection must not wait any longer. While a request is in flight, a
    /// stopping server waits for it, too.
    pub fn poll(
        &mut self,
        connection: &Connection,
        is_in_flight: bool,
        context: &mut Context<'_>,
    ) -> Poll<WaitEnd> {
        match connection.standing(context) {
            ConnectionState::Overdue => Poll::Ready(WaitEnd::Overdue),
            ConnectionState::Stopping if !is_in_flight => {
                let sleep = self.sleep.get_or_insert_with(|| Box::pin(sleep(self.time)));
                sleep.as_mut().poll(context).map(|()| WaitEnd::Stopping)
            }
            ConnectionState::Stopping | ConnectionState::Good => Poll::Pending,
        }
    }
}

impl Connection {
    /// Polls `work` unless the deadline has passed.
    ///
    /// # Errors
    /// Returns the error of `work`, or `TimedOut`.
    pub fn poll_in_time<T>(
        &self,
        context: &mut Context<'_>,
        work: impl FnOnce(&mut Context<'_>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        match self.standing(context) {
            ConnectionState::Overdue => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            ConnectionState::Stopping | ConnectionState::Good => work(context),
        }
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
}
