//! What the server remembers of one client.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use super::reply::Version;
use super::transaction::Transaction;
use crate::config::access::Access;
use crate::server::Server;

/// Wrong tokens in a row after which a connection is closed.
pub(super) const MAX_FAILED_LOGINS: u32 = 3;

/// One client.
#[derive(Debug)]
pub struct Session {
    /// The server it is connected to.
    pub server: Arc<Server>,
    pub(super) version: Version,
    pub(super) access: Access,
    pub(super) id: usize,
    /// Where its last rule was found: the next one is most likely the same.
    pub(super) last_rule: AtomicUsize,
    /// Wrong tokens that it has shown since the last right one.
    pub(super) failed_logins: u32,
    /// What it has sent since `MULTI`.
    pub(super) transaction: Option<Box<Transaction>>,
}

/// Why a command is not carried out.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// Something is wrong with it.
    Error(String),
    /// It has too few words or too many.
    WordCount,
    /// No token was shown.
    Unauthenticated,
    /// The token shown is not good for it.
    Forbidden,
    /// The token is none of this server's.
    WrongToken,
    /// A version of the protocol that is not spoken.
    Version,
    /// One of the commands since `MULTI` was refused.
    Aborted,
}

impl Refusal {
    /// The error's code, which clients know, and its text.
    pub(super) fn shown(&self) -> (&'static str, &str) {
        match self {
            Self::Error(text) => ("ERR", text),
            Self::WordCount => ("ERR", "wrong number of arguments for this command"),
            Self::Unauthenticated => ("NOAUTH", "Authentication required."),
            Self::Forbidden => ("NOPERM", "this needs the admin token"),
            Self::WrongToken => ("WRONGPASS", "invalid token"),
            Self::Version => ("NOPROTO", "unsupported protocol version"),
            Self::Aborted => ("EXECABORT", "Transaction discarded because of previous errors."),
        }
    }
}

impl Session {
    /// A client that has shown no token; `id` tells it from the others that are connected.
    pub fn new(server: Arc<Server>, id: usize) -> Self {
        let access = server.tokens().without();
        let (version, last_rule) = (Version::V2, AtomicUsize::new(0));
        Self { server, version, access, id, last_rule, failed_logins: 0, transaction: None }
    }

    /// The version the client asked for.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Whether it has shown so many wrong tokens that it is to go, slowly.
    pub(super) fn is_locked_out(&self) -> bool {
        self.failed_logins >= MAX_FAILED_LOGINS
    }

    /// Bytes that are kept between its requests.
    pub(super) fn held(&self) -> usize {
        self.transaction.as_ref().map_or(0, |transaction| transaction.held())
    }

    /// Whether the client may do what needs this access.
    #[inline]
    pub(super) fn may(&self, needed: Access) -> Result<(), Refusal> {
        match self.access {
            access if access >= needed => Ok(()),
            Access::Nothing => Err(Refusal::Unauthenticated),
            _ => Err(Refusal::Forbidden),
        }
    }
}
