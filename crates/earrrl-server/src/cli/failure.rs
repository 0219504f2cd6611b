//! Errors that end a command: one line on standard error, exit status 2.

use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::Command;
use clap::error::{ContextKind, ErrorKind};
use earrrl_logs::text::plain;

use super::environment::refused_variable;

/// The exit status of a command that failed.
pub(crate) const ERROR: u8 = 2;

/// The exit status if a log was read, but probably not in the format or with the fields that were
/// meant.
pub(crate) const DOUBTFUL: u8 = 3;

/// The reason why a command ended early.
#[derive(Debug)]
pub(crate) enum CliFailure {
    /// An error with a message of one line.
    Message(String),
    /// An error that has been printed already.
    Reported,
    /// The output was closed, as by `| head`; this is not an error.
    Closed,
}

impl CliFailure {
    /// Makes a failure with a message.
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self::Message(message.into())
    }

    /// Prints the message and returns the exit status.
    pub(crate) fn report(self) -> ExitCode {
        match self {
            Self::Message(message) => {
                warn(&message);
                ExitCode::from(ERROR)
            }
            Self::Reported => ExitCode::from(ERROR),
            Self::Closed => ExitCode::SUCCESS,
        }
    }
}

impl From<io::Error> for CliFailure {
    /// Converts an error of writing the output, or of allocating memory for it.
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::Closed,
            io::ErrorKind::OutOfMemory => Self::Message(error.to_string()),
            _ => Self::Message(format!("can't write the output: {}", plain(&error))),
        }
    }
}

/// Prints a line on standard error.
pub(crate) fn warn(message: &str) {
    // A failure is ignored: if standard error is closed, it cannot be reported.
    let _ = writeln!(io::stderr(), "earrrl: {message}");
}

/// Prints several mistakes, each on a line of its own, and returns the failure.
pub(super) fn lines(text: &str) -> CliFailure {
    text.lines().for_each(warn);
    CliFailure::Reported
}

/// Prints help unchanged, or a mistake in the arguments in one line, and returns the exit status.
pub(super) fn usage(error: &clap::Error, command: &Command) -> ExitCode {
    if !error.use_stderr() || error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        let _ = error.print();
        return if error.use_stderr() {
            ExitCode::from(ERROR)
        } else {
            ExitCode::SUCCESS
        };
    }
    let text = error.to_string();
    let lines = text
        .lines()
        .map(str::trim)
        .take_while(|line| !line.starts_with("Usage:"));
    let lines: Vec<&str> = lines.filter(|line| !line.is_empty()).collect();
    let message = lines.join(" ");
    let message = message.strip_prefix("error: ").unwrap_or(&message);
    let message = message
        .split(" For more information, try")
        .next()
        .unwrap_or(message);
    let message = message.replace(
        "invalid digit found in string",
        "expected a whole number, 0 or more",
    );
    let variable = refused_variable(error, command);
    let message = variable.map_or(message.clone(), |name| format!("{name}: {message}"));
    let first = std::env::args_os().nth(1).unwrap_or_default();
    match hint(error, first.as_encoded_bytes()) {
        // The parser's own proposal would be a second answer.
        Some(hint) => {
            let mistake = message.split(" tip: ").next().unwrap_or_default();
            warn(&format!("{mistake}{hint}"));
        }
        None => warn(&message),
    }
    ExitCode::from(ERROR)
}

/// Returns a hint for arguments that other programs take, if the first argument is `first`.
fn hint(error: &clap::Error, first: &[u8]) -> Option<String> {
    let unknown = match error.kind() {
        ErrorKind::UnknownArgument => error.get(ContextKind::InvalidArg)?.to_string(),
        _ => String::new(),
    };
    match (first, unknown.as_str()) {
        ([b'-', ..], _) => Some("; a command comes first, as in `earrrl serve`".to_owned()),
        (b"start" | b"run" | b"server", _) => Some("; did you mean `earrrl serve`?".to_owned()),
        (b"serve" | b"replay", "--limit") => {
            Some("; did you mean --rule 'recent-average 1/s half-life=10s'?".to_owned())
        }
        (b"version", _) => Some("; did you mean `earrrl --version`?".to_owned()),
        (b"serve", "--port") => Some("; --http 8080 or --resp 6380?".to_owned()),
        (b"serve", file) if !file.is_empty() && !file.starts_with('-') => {
            Some(format!("; did you mean --config {file}?"))
        }
        _ => None,
    }
}
