//! The reasons to refuse a command, and the replies that report them.

use crate::config::access::Forbidden;
use crate::service::error::AskError;

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
