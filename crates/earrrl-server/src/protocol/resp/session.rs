//! The state that the server keeps for one connected RESP client.

use std::sync::Arc;

use super::refusal::Refusal;
use super::reply::Version;
use super::transaction::Transaction;
use crate::config::access::{Access, Scope, Tokens};
use crate::server::Server;

/// The number of successive wrong tokens after which a connection is closed.
pub(super) const MAX_FAILED_LOGINS: u32 = 3;

/// The state of one connected RESP client.
#[derive(Debug)]
pub struct Session {
    /// The server that the client is connected to.
    pub server: Arc<Server>,
    pub(super) version: Version,
    pub(super) access: Access,
    /// The server's tokens when `access` was last determined.
    tokens: Arc<Tokens>,
    /// The last valid token that the client has sent.
    shown: Option<Box<[u8]>>,
    pub(super) id: usize,
    /// The index of the rule that the client named last. Its next request most likely names the
    /// same rule.
    pub(super) last_rule: usize,
    /// The number of wrong tokens that the client has sent since its last valid one.
    pub(super) failed_logins: u32,
    /// The commands that the client has sent since `MULTI`.
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

    /// Checks the client's token again if a reload has replaced the server's tokens. Must be called
    /// for each batch of requests.
    #[inline]
    pub(super) fn review(&mut self) {
        let present = self.server.tokens();
        if !Arc::ptr_eq(&present, &self.tokens) {
            self.tokens = Arc::clone(&present);
            self.access = self
                .shown
                .as_ref()
                .map_or(self.tokens.without(), |token| self.tokens.with(token));
        }
    }

    /// Grants the client the access of `token`. Returns false if the token is wrong.
    pub(super) fn show(&mut self, token: &[u8]) -> bool {
        let access = self.tokens.with(token);
        let valid = access != Access::Nothing;
        if valid {
            (self.access, self.shown) = (access, Some(token.into()));
        }
        valid
    }

    /// Removes the stored token of the client.
    pub(super) fn forget_token(&mut self) {
        (self.access, self.shown) = (self.tokens.without(), None);
    }

    /// Returns the version of RESP that the client has requested.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Returns true if the client has sent so many wrong tokens that its connection is to be
    /// closed.
    pub(super) fn is_locked_out(&self) -> bool {
        self.failed_logins >= MAX_FAILED_LOGINS
    }

    /// Returns the number of bytes that the session keeps between the client's requests.
    pub(super) fn held(&self) -> usize {
        self.transaction
            .as_ref()
            .map_or(0, |transaction| transaction.held())
    }

    /// Checks that the client has sent a valid token, if it needs one.
    #[inline]
    pub(super) fn authenticated(&self) -> Result<(), Refusal> {
        match self.access {
            Access::Nothing => Err(Refusal::Unauthenticated),
            Access::Everything | Access::Granted(_) => Ok(()),
        }
    }

    /// Checks that the client's token permits an operation. Returns the error for the client if
    /// not.
    #[inline]
    pub(super) fn may(&self, needed: Scope) -> Result<(), Refusal> {
        self.authenticated()?;
        Ok(self.access.permit(needed)?)
    }
}
