//! Decides when an HTTP/2 connection is closed: at its deadline, at its maximum age, when memory is
//! short, or when the server stops.

use std::pin::Pin;
use std::sync::Arc;
use std::task::Context;
use std::time::Duration;

use tokio::time::{Sleep, sleep};

use super::held::HeldBytes;
use crate::connections::{Connection, ConnectionState};
use crate::server::Server;

/// The conditions that end a connection.
pub(super) struct Term<'s> {
    held: Arc<HeldBytes>,
    server: &'s Server,
    age: Option<Pin<Box<Sleep>>>,
    leaving: bool,
}

/// The next step for a connection whose task is about to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// Continue to serve the connection.
    GoOn,
    /// Send GOAWAY, accept no more requests, and answer those in flight.
    Farewell,
    /// Close the connection without answering requests in flight.
    Close,
}

impl<'s> Term<'s> {
    pub(super) fn new(held: Arc<HeldBytes>, server: &'s Server) -> Self {
        let connection = held.connection();
        // The maximum age is increased by up to a tenth, which depends on the connection's number,
        // so that clients that connected together do not all reconnect at once.
        let spread = |age: Duration| age + age / 10 * (connection.id() % 16) as u32 / 16;
        let age = server
            .config
            .max_connection_age
            .map(|seconds| Duration::from_secs(seconds.into()));
        let age = age.map(|age| Box::pin(sleep(spread(age))));
        Self {
            held,
            server,
            age,
            leaving: false,
        }
    }

    /// Returns true once GOAWAY has been sent or must be sent next.
    pub(super) fn is_leaving(&self) -> bool {
        self.leaving
    }

    /// Returns the next step for the connection. Must be called whenever the connection's task is
    /// about to wait.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Turn {
        let standing = self.connection().standing(context);
        let waits = self.held.any_waits();
        if self.leaving {
            return match standing {
                ConnectionState::Overdue => Turn::Close,
                // GOAWAY was sent. The connection stays open until its pending responses are sent.
                ConnectionState::Good | ConnectionState::Stopping => Turn::GoOn,
            };
        }
        let aged = self
            .age
            .as_mut()
            .is_some_and(|age| age.as_mut().poll(context).is_ready());
        let refused = self.held.was_refused();
        if standing == ConnectionState::Good && !aged && !refused {
            return Turn::GoOn;
        }
        if standing == ConnectionState::Overdue {
            self.server.service.metrics.shed.increment();
        }
        self.leaving = true;
        match standing {
            ConnectionState::Overdue => self.connection().leave(),
            _ if waits => self.connection().finish(),
            ConnectionState::Stopping => self.connection().leave(),
            ConnectionState::Good => self.connection().finish(),
        }
        Turn::Farewell
    }

    fn connection(&self) -> &Connection {
        self.held.connection()
    }
}
