//! The state that the server keeps for one connected RESP client: its token, its version of the protocol and the
//! commands that it has queued; and the reasons to refuse a command.

use std::sync::Arc;

use super::codec::Request;
use super::reply::Version;
use crate::config::access::{Access, Forbidden, Scope, Tokens};
use crate::server::Server;
use crate::service::error::AskError;

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

    /// Checks a token and grants its access. After a wrong token, the client keeps the access that it
    /// already had, as in Redis.
    pub(super) fn authenticate(&mut self, token: &[u8]) -> Result<(), Refusal> {
        let access = self.tokens.with(token);
        if access == Access::Nothing {
            self.failed_logins += 1;
            self.server.service.metrics.failed_logins.increment();
            return Err(Refusal::WrongToken);
        }
        (self.access, self.shown) = (access, Some(token.into()));
        self.failed_logins = 0;
        Ok(())
    }

    /// Removes the stored token of the client.
    pub(super) fn forget_token(&mut self) {
        (self.access, self.shown) = (self.tokens.without(), None);
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
            .map_or(0, |transaction| transaction.bytes.capacity())
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

/// The largest number of commands in a transaction.
const MAX_COMMANDS: usize = 512;
/// The largest total length of a transaction's commands, in bytes.
const MAX_LEN: usize = 64 * 1024;

/// The commands that a client has queued since `MULTI`, which are executed in order at `EXEC`.
///
/// Client libraries wrap pipelines in a transaction by default. A transaction is not atomic: commands of other clients
/// may be executed between its commands.
#[derive(Debug, Default)]
pub(super) struct Transaction {
    pub(super) bytes: Vec<u8>,
    pub(super) commands: usize,
    /// True if a command was refused when it was queued, so that `EXEC` executes none.
    pub(super) has_failed: bool,
}

impl Transaction {
    /// Queues a command. If the transaction is full, marks it as failed and returns an error.
    pub(super) fn keep(&mut self, request: &Request<'_>) -> Result<(), Refusal> {
        if self.commands >= MAX_COMMANDS || self.bytes.len() + request.bytes.len() > MAX_LEN {
            self.fail();
            let why = format!("MULTI: at most {MAX_COMMANDS} commands of {MAX_LEN} bytes in all");
            return Err(Refusal::Error(why));
        }
        self.commands += 1;
        self.bytes.extend_from_slice(request.bytes);
        Ok(())
    }

    /// Marks the transaction as failed, so that `EXEC` refuses it.
    pub(super) fn fail(&mut self) {
        self.has_failed = true;
        self.bytes = Vec::new();
    }
}

/// The reason why a command is not executed.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The command is invalid, for this reason.
    Error(String),
    /// The command has too few or too many words.
    WordCount,
    /// The client has sent no token.
    Unauthenticated,
    /// The client's token does not permit the command, for this reason.
    Forbidden(String),
    /// The token is not configured on this server.
    WrongToken,
    /// The version of RESP in `HELLO` is not supported.
    Version,
    /// The transaction is not executed, since one of its commands was refused when it was queued.
    Aborted,
}

impl From<AskError> for Refusal {
    #[cold]
    fn from(error: AskError) -> Self {
        Self::Error(error.to_string())
    }
}

impl From<Forbidden> for Refusal {
    #[cold]
    fn from(forbidden: Forbidden) -> Self {
        Self::Forbidden(forbidden.to_string())
    }
}

impl Refusal {
    /// Returns the error's code, which client libraries recognize, and its text.
    pub(super) fn shown(&self) -> (&'static str, &str) {
        match self {
            Self::Error(text) => ("ERR", text),
            Self::WordCount => ("ERR", "wrong number of arguments for this command"),
            Self::Unauthenticated => ("NOAUTH", "Authentication required."),
            Self::Forbidden(text) => ("NOPERM", text),
            Self::WrongToken => ("WRONGPASS", "invalid token"),
            Self::Version => ("NOPROTO", "unsupported protocol version"),
            Self::Aborted => (
                "EXECABORT",
                "Transaction discarded because of previous errors.",
            ),
        }
    }
}
