//! Why a command is not carried out, and how a client is told.

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
