//! The state that the server keeps of one client.

use std::sync::Arc;

use super::refusal::Refusal;
use super::reply::Version;
use super::transaction::Transaction;
use crate::config::access::{Access, Tokens};
use crate::server::Server;

/// Wrong tokens in a row after which a connection is closed.
pub(super) const MAX_FAILED_LOGINS: u32 = 3;

/// One client.
#[derive(Debug)]
pub struct Session {
    /// The server it is connected to.
    pub server: Arc<Server>,
    pub(super) version: Version,
    access: Access,
    /// The tokens that `access` was granted by.
    tokens: Arc<Tokens>,
    /// The last good token that the client has shown.
    shown: Option<Box<[u8]>>,
    pub(super) id: usize,
    /// The index of the rule that it named last, which the next request most likely names, too.
    pub(super) last_rule: usize,
    /// The number of wrong tokens that it has sent since the last right one.
    pub(super) failed_logins: u32,
    /// The commands that it has sent since `MULTI`.
    pub(super) transaction: Option<Box<Transaction>>,
}

impl Session {
    /// Creates the session of a client that has sent no token; `id` distinguishes the connected
    /// clients.
    pub fn new(server: Arc<Server>, id: usize) -> Self {
        let tokens = Arc::clone(&server.tokens());
        Self {
            access: tokens.without(),
            tokens,
            shown: None,
            server,
            version: Version::V2,
            id,
            last_rule: 0,
            failed_logins: 0,
            transaction: None,
        }
    }

    /// Checks the client's token again if a reload has replaced the tokens. To be called for each
    /// batch of requests.
    #[inline]
    pub(super) fn review(&mut self) {
        let present = self.server.tokens();
        if !Arc::ptr_eq(&present, &self.tokens) {
            self.tokens = Arc::clone(&present);
            self.access =
                self.shown.as_ref().map_or(self.tokens.without(), |token| self.tokens.with(token));
        }
    }

    /// Grants the access of a token, and returns it.
    pub(super) fn show(&mut self, token: &[u8]) -> Access {
        let access = self.tokens.with(token);
        if access > Access::Nothing {
            (self.access, self.shown) = (access, Some(token.into()));
        }
        access
    }

    /// Forgets the token that the client has shown.
    pub(super) fn forget_token(&mut self) {
        (self.access, self.shown) = (self.tokens.without(), None);
    }

    /// Returns the version the client asked for.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Returns true if the client has sent so many wrong tokens that its connection is to be
    /// closed.
    pub(super) fn is_locked_out(&self) -> bool {
        self.failed_logins >= MAX_FAILED_LOGINS
    }

    /// Returns the number of bytes that are kept between its requests.
    pub(super) fn held(&self) -> usize {
        self.transaction.as_ref().map_or(0, |transaction| transaction.held())
    }

    /// Checks that the client has at least this access.
    #[inline]
    pub(super) fn may(&self, needed: Access) -> Result<(), Refusal> {
        match self.access {
            access if access >= needed => Ok(()),
            Access::Nothing => Err(Refusal::Unauthenticated),
            _ => Err(Refusal::Forbidden),
        }
    }
}
