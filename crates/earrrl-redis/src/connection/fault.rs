//! The reasons why Redis did not answer a call.

use earrrl::EngineError;
use redis::{ErrorKind, RedisError};

/// The reason why a call was not answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The answer did not come in time.
    Late,
    /// The connection was lost or never established; contains the cause.
    Lost(String),
    /// Redis rejects the call, for example because it is out of memory, read-only or loading, or
    /// the password is wrong; contains the cause.
    Refused(String),
    /// The record cannot be used: its key has another type, or the script's answer is invalid.
    /// Contains the cause.
    Record(String),
    /// Redis was not asked, since the breaker is open or there is no connection.
    Skipped,
}

impl Fault {
    /// Returns a short name for metrics and logs.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Late => "late",
            Self::Lost(_) => "lost",
            Self::Refused(_) => "refused",
            Self::Record(_) => "record",
            Self::Skipped => "left alone",
        }
    }

    /// Returns the fault of an answer that no script of ours gives.
    pub(crate) fn nonsense() -> Self {
        Self::Record("the script's answer makes no sense".to_owned())
    }

    /// Returns the fault of calls each of which found another time in Redis than expected.
    pub(crate) fn clock() -> Self {
        Self::Refused("its clock is set all the time".to_owned())
    }

    /// Returns the fault with the place where it happened before the cause.
    pub(crate) fn at(self, place: &str) -> Self {
        match self {
            Self::Lost(why) => Self::Lost(format!("{place}: {why}")),
            Self::Refused(why) => Self::Refused(format!("{place}: {why}")),
            Self::Late => Self::Lost(format!("{place}: no answer")),
            Self::Record(_) | Self::Skipped => self,
        }
    }

    /// Returns the cause in words.
    pub(crate) fn detail(&self) -> &str {
        match self {
            Self::Late => "no answer within the deadline",
            Self::Skipped => "Redis failed just now",
            Self::Lost(why) | Self::Refused(why) | Self::Record(why) => why,
        }
    }
}

/// The conversion for calls that only Redis can execute, such as a reset.
impl From<Fault> for EngineError {
    fn from(fault: Fault) -> Self {
        Self::Unavailable(format!("{}: {}", fault.name(), fault.detail()))
    }
}

impl From<RedisError> for Fault {
    fn from(error: RedisError) -> Self {
        let mut text = error.to_string();
        // Redis quotes the arguments of a command that it does not know, among them a script.
        text.truncate(text.find(", with args beginning").unwrap_or(text.len()));
        if error.is_timeout() {
            return Self::Late;
        }
        if error.kind() == ErrorKind::AuthenticationFailed {
            return Self::Refused("authentication failed: wrong user or password".to_owned());
        }
        if let Some((node, slot)) = error.redirect_node() {
            return Self::Refused(format!("slot {slot} is on {node}, which can't be reached"));
        }
        if error.is_io_error() || error.is_unrecoverable_error() {
            return Self::Lost(text);
        }
        let wrong_type = text.contains("WRONGTYPE");
        if wrong_type || error.detail().is_some_and(is_of_script) {
            Self::Record(text)
        } else {
            Self::Refused(text)
        }
    }
}

/// Returns true if a script failed on the data in Redis. Redis 7 and Valkey report this in one
/// form, earlier versions in another. The error of a command that a script may not use begins
/// differently.
fn is_of_script(detail: &str) -> bool {
    let earlier = detail.starts_with("Error running script") && detail.contains(": user_script:");
    earlier || detail.starts_with("user_script:")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_name_the_server() {
        let moved = ErrorKind::Server(redis::ServerErrorKind::Moved);
        let moved = RedisError::from((moved, "moved", "11779 10.0.0.5:6379".to_owned()));
        let why = "slot 11779 is on 10.0.0.5:6379, which can't be reached";
        assert_eq!(Fault::from(moved).detail(), why);
        let refused = RedisError::from((ErrorKind::AuthenticationFailed, "failed"));
        let why = "10.0.0.5:6379: authentication failed: wrong user or password";
        assert_eq!(Fault::from(refused).at("10.0.0.5:6379").detail(), why);
        assert_eq!(
            Fault::Late.at("10.0.0.5:6379").detail(),
            "10.0.0.5:6379: no answer"
        );
    }

    #[test]
    fn only_what_is_wrong_with_a_record_is_the_record_s() {
        let fault = |code: &str, detail: &str| {
            Fault::from(redis::make_extension_error(
                code.into(),
                Some(detail.into()),
            ))
        };
        for (code, detail) in [
            (
                "WRONGTYPE",
                "Operation against a key holding the wrong kind of value",
            ),
            (
                "ERR",
                "user_script:1: bad argument #2 to 'unpack' script: 5f51, on @user_script:1.",
            ),
            (
                "ERR",
                "Error running script (call to f_5f51): @user_script:1: user_script:1: bad",
            ),
        ] {
            assert!(matches!(fault(code, detail), Fault::Record(_)), "{detail}");
        }
        for (code, detail) in [
            ("OOM", "command not allowed when used memory > 'maxmemory'."),
            (
                "NOPERM",
                "this user has no permissions to run the 'evalsha' command",
            ),
            (
                "ERR",
                "unknown command 'EVALSHA', with args beginning with: ",
            ),
            (
                "ERR",
                "The user executing the script can't run this command, on @user_script:1.",
            ),
            (
                "ERR",
                "Error running script (call to f_5f51): @user_script:1: @user_script: 1: -OOM",
            ),
        ] {
            let refused = fault(code, detail);
            assert!(matches!(refused, Fault::Refused(_)), "{detail}");
            assert!(!refused.detail().contains("args"), "{refused:?}");
        }
    }
}
